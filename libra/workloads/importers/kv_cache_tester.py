"""Coding-agent sessions as kv-cache-tester (WEKA) records them: token counts and times of every API call, no text.

A session is cut into episodes where the model ended its turn, that is where a human spoke next; nothing else ends one.
Many calls lack their answer (`stop` is empty): the next call then shows text in place of the tool result, but follows
within seconds and in growth and pace like any other. And where a call with a known tool use is followed by a context
smaller by 100,000 tokens and more, the context was compacted and the agent goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from libra.core.records import TrajectoryStatus
from libra.workloads.importers.base import Findings, ImporterSpec, Place, RowError, Sample, clean, convert
from libra.workloads.importers.turns import TurnBuilder

END = "end_turn"
CUT = "max_tokens"
TOOL = "tool_use"
"""The format has no tool names."""
COMPACTED_SHARE = 0.5
"""A context of less than half of what it was has been compacted; cleared tool results take away less."""


class _Entry(msgspec.Struct):
    """An API call, or a sub-agent with calls of its own."""

    t: float | None = None
    num_in: int | None = msgspec.field(default=None, name="in")
    num_out: int | None = msgspec.field(default=None, name="out")
    input_types: list[str] = []
    stop: str | None = None
    api_time: float | None = None
    agent_id: str | None = None
    status: str | None = None
    requests: list[_Entry] = []

    @property
    def is_agent(self) -> bool:
        """It has a name or calls, and no counts of its own."""
        return self.num_in is None and (self.agent_id is not None or bool(self.requests))


class _Session(msgspec.Struct):
    id: str
    requests: list[_Entry]


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    is_session = isinstance(value, dict) and isinstance(value.get("requests"), list) and "id" in value
    return 0 if not is_session else 2 if "block_size" in value or "hash_id_scope" in value else 1


def identify(value: Any) -> str | None:
    """See `ImporterSpec`."""
    return str(value["id"])


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample | RowError]:
    """See `ImporterSpec`: episodes in order, then each sub-agent; a bad one does not lose the others."""
    session = convert(value, _Session)
    name = clean(session.id)
    for number, episode in enumerate(_episodes(session.requests)):
        yield _sample_or_error(f"{name}#{number}", episode, None, findings)
    for number, agent in enumerate(_agents(session.requests)):
        findings.count("agent")
        calls = [entry for entry in agent.requests if not entry.is_agent]
        if calls:
            status: TrajectoryStatus = "completed" if agent.status == "completed" else "aborted"
            yield _sample_or_error(f"{name}/{clean(agent.agent_id or str(number))}", agent.requests, status, findings)


def _episodes(entries: Sequence[_Entry]) -> Iterator[list[_Entry]]:
    episode: list[_Entry] = []
    for entry in entries:
        episode.append(entry)
        if entry.stop == END:
            yield episode
            episode = []
    if any(not entry.is_agent for entry in episode):
        yield episode


def _agents(entries: Sequence[_Entry]) -> Iterator[_Entry]:
    for entry in entries:
        if entry.is_agent:
            yield entry
            yield from _agents(entry.requests)


def _sample_or_error(
    name: str, entries: Sequence[_Entry], status: TrajectoryStatus | None, findings: Findings
) -> Sample | RowError:
    try:
        return _sample(name, entries, status, findings)
    except RowError as error:
        return RowError(f"{name}: {error}")


def _sample(name: str, entries: Sequence[_Entry], status: TrajectoryStatus | None, findings: Findings) -> Sample:
    turns = TurnBuilder(findings)
    before: _Entry | None = None
    first_in: int | None = None
    has_agent = False
    for number, entry in enumerate(entries):
        if entry.is_agent:
            has_agent = True
            continue
        if entry.num_in is None or entry.num_out is None:
            raise RowError(f"request {number} has no token counts (`in`, `out`)")
        if before:
            tool = "agent" if has_agent else _tool(before, entry)
            turns.observe(tool, 0, "unknown", _latency_s(before, entry))
            _note_oddities(before, entry, findings)
        turns.generate(entry.num_out, context_tok=entry.num_in)
        first_in = entry.num_in if first_in is None else first_in
        before, has_agent = entry, False
    if before is None or first_in is None:
        raise RowError("no requests")
    return Sample(name, first_in, turns.build(), status=status or _end(before), is_exact=True)


def _tool(before: _Entry, entry: _Entry) -> str:
    """A call with a known tool use that no tool result answers was interrupted by the user or by a compaction."""
    is_interrupted = before.stop == TOOL and entry.input_types and "tool_result" not in entry.input_types
    return "user" if is_interrupted else TOOL


def _latency_s(before: _Entry, entry: _Entry) -> float | None:
    """From the end of an answer to the next call; the dump's own think time runs on where an answer was lost."""
    if before.t is None or entry.t is None or before.api_time is None:
        return None
    return max(entry.t - before.t - before.api_time, 0.0)


def _note_oddities(before: _Entry, entry: _Entry, findings: Findings) -> None:
    assert before.num_in is not None and entry.num_in is not None, "checked by the caller"
    if not before.stop:
        findings.count("no_stop")
    if entry.num_in < COMPACTED_SHARE * before.num_in:
        findings.count("compaction")


def _end(last: _Entry) -> TrajectoryStatus:
    """The recording may stop while the agent works: then the lengths are lower bounds."""
    return "completed" if last.stop == END else "truncated" if last.stop == CUT else "aborted"


IMPORTER = ImporterSpec(
    name="kv-cache-tester",
    summary="coding-agent sessions with exact tokens and times per API call (WEKA, AIPerf); cut into episodes (.json)",
    sniff=sniff,
    read=read,
    identify=identify,
)
