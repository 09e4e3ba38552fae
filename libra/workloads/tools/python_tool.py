"""The Python tool: runs a program of the policy's in the sandbox and returns what it prints."""

from __future__ import annotations

import time
from pathlib import Path

from libra.core.records import ToolStatus
from libra.workloads.tools.sandbox import Limits, Sandbox, SandboxResult

LIMITS = Limits()

MAX_OUTPUT_CHARS = 1_000
"""About 300 tokens: a policy that prints a table pays for it with its context, and gains nothing by more."""


async def run_python(sandbox: Sandbox, program: str, folder: Path) -> tuple[str, ToolStatus, float]:
    """Text, status and latency in seconds. Of an error only the last line is told: frames of `<stdin>` say nothing."""
    start_s = time.monotonic()
    argv = ("python3", "-I", "-")  # the sandbox shows the interpreter, not its virtual environment
    try:
        result = await sandbox.run(argv, folder, LIMITS, stdin=program.encode(errors="replace"))
    except OSError:
        return "no sandbox", "error", time.monotonic() - start_s
    return _text(result), result.status, result.latency_s


def _text(result: SandboxResult) -> str:
    text = result.output.strip()
    if result.status == "timeout":
        return f"timeout after {LIMITS.wall_s:g} s"
    if result.status == "error":
        text = text.rpartition("\n")[2] or "error"
    return text if len(text) <= MAX_OUTPUT_CHARS else text[:MAX_OUTPUT_CHARS] + "..."
