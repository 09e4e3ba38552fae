"""What tools ask of a sandbox; the live backend brings the real one (`libra.backends.live.sandbox`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from libra.core.records import ToolStatus

LimitName = Literal["wall_s", "cpu_s", "memory_mb", "folder_mb", "namespaces"]
"""Fields of `Limits`; "namespaces" for a program that made a user namespace, in which it could mount more memory."""


class Limits(msgspec.Struct, frozen=True):
    """Per call, over all its processes together, but for `file_mb`, the size of any one file.

    `output_bytes` bounds what is kept of stdout and stderr together; the rest is drained and dropped. `folder_mb`
    bounds the folder's size, that of its older files included.
    """

    wall_s: float = 5.0
    cpu_s: int = 5
    memory_mb: int = 512
    processes: int = 32
    output_bytes: int = 16_384
    file_mb: int = 16
    folder_mb: int = 64


class SandboxResult(msgspec.Struct, frozen=True):
    """How a call ended. `exit_status` is None when it was killed for `limit_hit`; a program that a signal ended has
    128 plus its number. `output` is stdout and stderr as they came.
    """

    exit_status: int | None
    output: str
    latency_s: float
    limit_hit: LimitName | None = None
    is_truncated: bool = False

    @property
    def status(self) -> ToolStatus:
        """From the way it ended alone, never from the text."""
        if self.limit_hit == "wall_s":
            return "timeout"
        return "ok" if self.exit_status == 0 else "error"


class Sandbox(Protocol):
    """Runs a program with no network, with `folder` as its only lasting writable place and its working directory.

    Nothing of a call is alive when `run` returns or is cancelled. Inside, paths are relative, or below `/box`.
    """

    async def run(self, argv: Sequence[str], folder: Path, limits: Limits, stdin: bytes = b"") -> SandboxResult: ...
