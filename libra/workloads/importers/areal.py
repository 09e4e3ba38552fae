"""AReaL: session traces (`sessions-r<rank>.jsonl`, once `requests-r<rank>.jsonl`) and rollout dumps (`rollout/`).

The two complete each other, and cannot be joined: a session has times of every turn and tool call but no tokens, a dump
has tokens and policy versions but no turns. Sessions are given the tokens that their generation times stand for at a
usual pace, and say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from libra.core.records import TrajectoryStatus, Turn, VersionSpan
from libra.workloads.importers.base import (
    Findings,
    ImporterSpec,
    Place,
    RowError,
    Sample,
    as_float,
    clean,
    convert,
    digest,
    shown,
)
from libra.workloads.importers.turns import TurnBuilder

TOK_PER_S = 38
"""Median decode speed of 7,505 public coding-agent episodes (tenth to ninetieth percentile 23 to 60)."""
BY_TIMES = f"generation time x {TOK_PER_S} tok/s (no counts in session traces; 23 to 60 are usual), prompts unknown"
TOOL = "toolcall"
"""AReaL's name of the phase; session traces do not name tools."""
FILTERED = "rejected"
"""Status and reason of a session that was finished and then refused by `should_accept_fn`."""


class _Span(msgspec.Struct):
    start_ts: float
    end_ts: float | None = None

    @property
    def seconds(self) -> float:
        if self.end_ts is None:
            return 0.0
        if self.end_ts < self.start_ts:
            raise RowError("a phase ends before it starts")
        return self.end_ts - self.start_ts


class _Session(msgspec.Struct):
    submit_ts: float
    status: str
    task_id: int | None = None
    session_id: int | None = None
    request_id: str | int | None = None
    rank: int = 0
    reason: str | None = None
    phases: dict[str, list[_Span]] = {}

    @property
    def name(self) -> str:
        return f"task-{self.rank}.{self.task_id}" if self.task_id is not None else f"request-{self.request_id}"


class _Rollout(msgspec.Struct):
    task_id: int
    seqlen: int
    prompt_len: int
    sample_idx: int = 0
    head_version: int | None = None
    tail_version: int | None = None
    reward: float | None = None
    prompt: str = ""


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    if not isinstance(value, dict):
        return 0
    is_session = {"submit_ts", "status"} <= value.keys() and bool({"session_id", "request_id"} & value.keys())
    return 2 if is_session or {"task_id", "seqlen", "prompt_len", "completion"} <= value.keys() else 0


def identify(value: Any) -> str | None:
    """See `ImporterSpec`. Names are per rank; a rollout's content tells it apart."""
    if "submit_ts" in value:
        name = value.get("session_id", value.get("request_id"))
        return f"rank {value.get('rank')} session {name} of {value['submit_ts']}"
    return f"task {value['task_id']} sample {value.get('sample_idx')}"


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample]:
    """See `ImporterSpec`. A task is a prompt, its sessions or samples are the group."""
    if "submit_ts" in value:
        yield from _read_session(convert(value, _Session), place, findings)
    else:
        yield _read_rollout(convert(value, _Rollout), place, findings)


def _read_session(session: _Session, place: Place, findings: Findings) -> Iterator[Sample]:
    calls = sorted(session.phases.get("generate", ()), key=lambda span: span.start_ts)
    if not any(span.end_ts is not None for span in calls):
        raise RowError(f"no turns: nothing was generated ({session.status}, {session.reason or 'no reason given'})")
    findings.note("AReaL session traces have no payloads: tool returns count 0 tokens, their status is unknown")
    findings.note("AReaL session traces do not say what a length limit cut: accepted sessions count as completed")
    group = None if session.task_id is None else f"{shown(place.path.parent)} {session.name}"
    status = _status(session, findings)
    for turns in _turns(calls, session.phases.get(TOOL, ()), findings):
        yield Sample(
            prompt_id=clean(session.name),
            prompt_tok=0,
            turns=turns.build(),
            group=group or f"{shown(place.path)} {session.name}",
            status="aborted" if any(span.end_ts is None for span in calls) else status,
            estimate=BY_TIMES,
        )


def _turns(calls: Sequence[_Span], tools: Sequence[_Span], findings: Findings) -> Iterator[TurnBuilder]:
    """One trajectory of all calls; or one each where they overlap, as parallel samples of one request do."""
    pairs = list(pairwise(calls))
    if any(before.end_ts is not None and after.start_ts < before.end_ts for before, after in pairs):
        findings.note("generations of one request overlap: taken for parallel samples of one turn each")
        for call in calls:
            turns = TurnBuilder(findings)
            turns.generate(_tok(call))
            yield turns
        return
    turns = TurnBuilder(findings)
    for number, call in enumerate(calls):
        turns.generate(_tok(call))
        end_s = calls[number + 1].start_ts if number + 1 < len(calls) else None
        between = [
            span for span in tools if call.start_ts <= span.start_ts and (end_s is None or span.start_ts < end_s)
        ]
        for span in between:
            turns.observe(TOOL, 0, "unknown", None if span.end_ts is None else span.seconds)
        if not between and end_s is not None:
            gap_s = None if call.end_ts is None else end_s - call.end_ts
            turns.observe("gap", 0, "unknown", gap_s)
            findings.note("turns without a recorded tool call: the time between two generations is a return named gap")
    yield turns


def _tok(call: _Span) -> int:
    return max(round(call.seconds * TOK_PER_S), 1)


def _status(session: _Session, findings: Findings) -> TrajectoryStatus:
    if session.status == FILTERED and session.reason == FILTERED:
        findings.count("rejected")
        return "completed"
    return "completed" if session.status == "accepted" else "aborted"


def _read_rollout(rollout: _Rollout, place: Place, findings: Findings) -> Sample:
    generated_tok = rollout.seqlen - rollout.prompt_len
    if rollout.prompt_len < 0 or generated_tok < 1:
        raise RowError(f"a sequence of {rollout.seqlen} tokens with a prompt of {rollout.prompt_len}")
    findings.note(
        "AReaL rollout dumps have sums alone: one turn a sample, what tools returned counts as prompt, and what a "
        "length limit cut counts as completed"
    )
    head, tail = rollout.head_version, rollout.tail_version
    findings.count("mixed_versions", head != tail)
    is_known = head is not None and head == tail and head >= 0
    reward = as_float(rollout.reward)
    findings.count("bad_reward", rollout.reward is not None and reward is None)
    return Sample(
        prompt_id=f"task-{rollout.task_id}-{digest(rollout.prompt)}",
        prompt_tok=rollout.prompt_len,
        turns=(Turn(generated_tok, None, (VersionSpan(head or 0, generated_tok),) if is_known else ()),),
        group=f"{shown(place.path)} {rollout.task_id}",
        reward=reward,
        is_exact=True,
    )


IMPORTER = ImporterSpec(
    name="areal",
    summary="AReaL session traces (sessions-r*.jsonl, requests-r*.jsonl) and rollout dumps (<version>/<task>.jsonl)",
    sniff=sniff,
    read=read,
    identify=identify,
)
