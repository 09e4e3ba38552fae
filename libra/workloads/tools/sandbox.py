"""What tools ask of a sandbox; the live backend brings the real one (`libra.backends.live.sandbox`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from libra.core.records import ToolStatus


class Limits(msgspec.Struct, frozen=True):
    """Per call. `output_bytes` bounds what is kept of stdout and stderr together; the rest is drained and dropped."""

    wall_s: float = 5.0
    cpu_s: int = 5
    memory_mb: int = 512
    processes: int = 32
    output_bytes: int = 16_384
    file_mb: int = 16


class SandboxResult(msgspec.Struct, frozen=True):
    """How a call ended. `exit_status` is None when it was killed; `output` is stdout and stderr as they came."""

    exit_status: int | None
    output: str
    latency_s: float
    is_timeout: bool = False
    is_truncated: bool = False

    @property
    def status(self) -> ToolStatus:
        """From the exit status alone, never from the text."""
        if self.is_timeout:
            return "timeout"
        return "ok" if self.exit_status == 0 else "error"


class Sandbox(Protocol):
    """Runs a program with no network, with `folder` as its only writable place (and its working directory)."""

    async def run(
        self, argv: Sequence[str], folder: Path, limits: Limits, stdin: bytes = b""
    ) -> SandboxResult: ...
