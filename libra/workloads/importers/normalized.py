"""The normalized lines that trace collections use between a raw dump and statistics: counts per turn, no text.

One trajectory a line: `prompt_id, sample, prompt_tokens, turns [{gen, tool, payload, ok, tool_s, stop?}], tok`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from libra.core.records import ToolStatus, TrajectoryStatus
from libra.workloads.importers.base import Findings, ImporterSpec, Place, RowError, Sample, clean, convert
from libra.workloads.importers.turns import TurnBuilder

UNGROUPED = ("kv-cache-tester", "SWE-agent")
"""Sources whose equal prompt ids are no samples of one prompt: parts of a session, or runs of other configurations."""
AGENTS = "kv-cache-tester/"
"""How the source of sub-agents begins: there `success` says whether it ended by itself, and is no reward."""
MAX_NAME_CHARS = 256
"""Trajectory ids may be file paths."""
ENDS_SURE = (None, "end_turn", "stop")
"""`stop` values of a trajectory that came to its end; None: the source has no such field."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class _Turn(msgspec.Struct):
    gen: Count
    tool: str | None = None
    payload: int | None = None
    ok: bool | None = None
    tool_s: float | None = None
    stop: str | None = None


class _Line(msgspec.Struct):
    prompt_id: str | int
    prompt_tokens: Count
    turns: list[_Turn]
    source: str = ""
    traj_id: str | int | None = None
    sample: str | int | None = None
    success: bool | None = None
    tok: str = "unknown"


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    is_line = isinstance(value, dict) and "prompt_tokens" in value and isinstance(value.get("turns"), list)
    return 2 if is_line else 0


def identify(value: Any) -> str | None:
    """See `ImporterSpec`."""
    name = value.get("traj_id")
    if name is None and value.get("sample") is None:
        return None
    return f"{value.get('source')} {value.get('prompt_id')} {value.get('sample')} {name}"


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample]:
    """See `ImporterSpec`."""
    line = convert(value, _Line)
    turns = TurnBuilder(findings)
    for number, turn in enumerate(line.turns):
        turns.generate(turn.gen)
        is_last = number == len(line.turns) - 1
        if turn.tool is None and is_last:
            break
        if turn.payload is None and not is_last:
            raise RowError(f"turn {number}: the payload is missing")
        status, how = _status(turn)
        turns.observe(turn.tool or "unknown", turn.payload or 0, status, turn.tool_s, how=how)
    if not _is_exact(line.tok):
        findings.note(f"tokens of {line.source or 'the dump'} were counted by {clean(line.tok)} before")
    is_grouped = not line.source.startswith(UNGROUPED)
    name = f"{line.source}/{line.prompt_id}" if line.source else str(line.prompt_id)
    if not is_grouped and line.traj_id is not None:
        name = f"{line.sample}/{line.traj_id}" if isinstance(line.sample, str) else str(line.traj_id)
    is_agent = line.source.startswith(AGENTS)
    yield Sample(
        prompt_id=clean(name, MAX_NAME_CHARS),
        prompt_tok=line.prompt_tokens,
        turns=turns.build(),
        group=f"{line.source} {line.prompt_id}" if is_grouped else None,
        reward=None if line.success is None or is_agent else float(line.success),
        status=_end(line, is_agent, findings),
        is_exact=_is_exact(line.tok),
    )


def _is_exact(tok: str) -> bool:
    """The line's counts come from a tokenizer."""
    return tok == "exact"


def _status(turn: _Turn) -> tuple[ToolStatus, str]:
    if turn.tool == "user":
        return "ok", "user_reply"
    if turn.ok is None:
        return "unknown", ""
    return ("ok" if turn.ok else "error"), "status_typed"


def _end(line: _Line, is_agent: bool, findings: Findings) -> TrajectoryStatus:
    if is_agent:
        return "aborted" if line.success is False else "completed"
    stop = line.turns[-1].stop if line.turns else None
    if stop in ENDS_SURE:
        return "completed"
    if stop in ("max_tokens", "length"):
        return "truncated"
    findings.count("open_end")
    return "aborted"


IMPORTER = ImporterSpec(
    name="normalized",
    summary="one trajectory a line: prompt_tokens, turns [{gen, tool, payload, ok, tool_s}] (.jsonl, .jsonl.gz)",
    sniff=sniff,
    read=read,
    identify=identify,
)
