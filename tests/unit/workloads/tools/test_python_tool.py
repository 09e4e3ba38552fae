"""What the policy is told of how its program ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from libra.core.records import ToolStatus
from libra.workloads.tools.python_tool import MAX_OUTPUT_CHARS, run_python
from libra.workloads.tools.sandbox import Limits, SandboxResult

TRACEBACK = (
    "Traceback (most recent call last):\n  File \"<stdin>\", line 1, in <module>\nNameError: name 'x' is not defined\n"
)


class Ended:
    """A sandbox whose every call ends so."""

    def __init__(self, result: SandboxResult | OSError) -> None:
        self.result = result

    async def run(self, argv: Sequence[str], folder: Path, limits: Limits, stdin: bytes = b"") -> SandboxResult:
        if isinstance(self.result, OSError):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "text", "status"),
    [
        (SandboxResult(0, "42\n", 0.1), "42", "ok"),
        (SandboxResult(0, "", 0.1), "", "ok"),
        (SandboxResult(0, "1 error, 0 passed\n", 0.1), "1 error, 0 passed", "ok"),
        (SandboxResult(1, TRACEBACK, 0.1), "NameError: name 'x' is not defined", "error"),
        (SandboxResult(1, "all is well", 0.1), "all is well", "error"),
        (SandboxResult(None, "", 0.1), "error", "error"),
        (SandboxResult(None, "half", 5.0, limit_hit="wall_s"), "timeout after 5 s", "timeout"),
        (SandboxResult(0, "9" * 5_000, 0.1), "9" * MAX_OUTPUT_CHARS + "...", "ok"),
    ],
)
def test_what_is_told(result: SandboxResult, text: str, status: ToolStatus, tmp_path: Path) -> None:
    found = asyncio.run(run_python(Ended(result), "print(42)", tmp_path))
    assert found == (text, status, result.latency_s)


def test_a_sandbox_that_cannot_be_had_is_an_observation(tmp_path: Path) -> None:
    text, status, _ = asyncio.run(run_python(Ended(OSError("no namespaces left")), "print(42)", tmp_path))
    assert (text, status) == ("no sandbox", "error")
