"""The texts that tools put into the context, shared by real episodes and by demonstrations."""

from __future__ import annotations

from libra.workloads.tools.sandbox import SandboxResult

MAX_OUTPUT_CHARS = 480
"""A module and its test fit; a tiny model's context is a few hundred tokens."""


def observation_text(said: str) -> str:
    return f"<output>{said}</output>"


def shown(result: SandboxResult) -> str:
    """What a policy sees of a command: its output, cut, and a word where an end says nothing by itself."""
    said = cut(result.output.rstrip("\n"))
    if result.limit_hit:
        return f"{said}\n[stopped: {result.limit_hit}]".lstrip("\n")
    return said if said or result.exit_status == 0 else f"[exit {result.exit_status}]"


def cut(said: str) -> str:
    return said if len(said) <= MAX_OUTPUT_CHARS else said[:MAX_OUTPUT_CHARS] + "..."
