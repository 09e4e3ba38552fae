"""prime-rl's `rollouts/step_<n>/{train,eval}/{all,effective}/traces.jsonl`: an episode of verifiers a line, with a
trace an agent.

A trace is a graph of messages. Each way from a root to a leaf is a conversation; what a conversation shares with an
earlier one is its prompt, so that every generated token counts once. Tokens are exact where messages keep their token
ids or calls their usage. `effective` repeats a part of `all`: the second copy of a trace is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from libra.core.records import TrajectoryStatus
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
from libra.workloads.importers.chat import TOOL_ROLES, USER, Message
from libra.workloads.importers.status import judge
from libra.workloads.importers.text import estimate_tok, text_of
from libra.workloads.importers.turns import TurnBuilder

CUT = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length")
"""Stop conditions that are limits, as verifiers counts them."""


class _Node(msgspec.Struct):
    message: Message
    parent: int | None = None
    sampled: bool = False
    token_ids: list[int] = []
    mask: list[bool] = []


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Time(msgspec.Struct):
    start: float = 0.0
    end: float = 0.0


class _Call(msgspec.Struct):
    node: int | None = None
    finish_reason: str | None = None
    usage: _Usage | None = None
    time: _Time | None = None


class _Agent(msgspec.Struct):
    name: str = "agent"


class _Trace(msgspec.Struct):
    nodes: list[_Node]
    calls: list[_Call] = []
    id: str | None = None
    agent: _Agent = msgspec.field(default_factory=_Agent)
    rewards: dict[str, Any] = {}
    ok: bool = False
    stop_condition: str | None = None


class _Named(msgspec.Struct):
    id: str | None = None
    name: str | None = None


class _Task(msgspec.Struct):
    type: str = ""
    key: str | None = None
    hash: str | None = None
    data: Any = None


class _Policy(msgspec.Struct):
    start: int
    end: int


class _Work(msgspec.Struct):
    step: int | None = None
    policy: _Policy | None = None


class _Run(msgspec.Struct):
    id: str | None = None
    work: _Work | None = None


class _Episode(msgspec.Struct):
    traces: list[_Trace]
    id: str | None = None
    env: _Named = msgspec.field(default_factory=_Named)
    task: _Task = msgspec.field(default_factory=_Task)
    group: _Named | None = None
    run: _Run | None = None
    errors: list[Any] = []


@dataclass(frozen=True)
class _Branch:
    """A way from a root to a leaf; `start` is where what no earlier branch has generated begins."""

    nodes: list[int]
    start: int


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    if not isinstance(value, dict):
        return 0
    if _is_trace(value):
        return 2
    if not isinstance(value.get("traces"), list):
        return 0
    return 2 if "env" in value or any(isinstance(each, dict) and "nodes" in each for each in value["traces"]) else 0


def identify(value: Any) -> str | None:
    """See `ImporterSpec`."""
    return None if value.get("id") is None else f"episode {value['id']}"


def _is_trace(value: dict[str, Any]) -> bool:
    """A trace alone, as verifiers wrote them before there were episodes."""
    return isinstance(value.get("nodes"), list) and "task" in value and "calls" in value


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample | RowError]:
    """See `ImporterSpec`. Groups are prime-rl's own, one for each agent of an episode; else the runs of one task."""
    episode = convert({"traces": [value], "task": value["task"]} if _is_trace(value) else value, _Episode)
    if not episode.traces:
        raise RowError(f"no turns: an episode without traces ({len(episode.errors)} errors recorded)")
    for number, trace in enumerate(episode.traces):
        try:
            yield from _samples(episode, trace, place, findings)
        except RowError as error:
            yield RowError(f"trace {number}: {error}")


def _samples(episode: _Episode, trace: _Trace, place: Place, findings: Findings) -> Iterator[Sample]:
    work = episode.run.work if episode.run else None
    policy = work.policy if work else None
    version = policy.start if policy and policy.start == policy.end else None
    findings.count("mixed_versions", policy is not None and version is None)
    task = episode.task.key or episode.task.hash or digest(json.dumps(episode.task.data, sort_keys=True))
    name = f"{episode.env.name or episode.env.id or 'env'}/{task}/{trace.agent.name}"
    group = f"{episode.run.id if episode.run else shown(place.path.parent)} {work.step if work else ''}"
    for number, branch in enumerate(_branches(trace)):
        findings.count("branch", number > 0)
        prompt_tok, turns, is_exact = _read_branch(trace, branch, version, findings)
        group_id = episode.group.id if episode.group else None
        is_main = number == 0 and bool(group_id or episode.task.key or episode.task.hash)
        yield Sample(
            prompt_id=clean(name if not number else f"{name}/branch-{number}", 256),
            prompt_tok=prompt_tok,
            turns=turns.build(),
            group=f"{group} {group_id} {name}" if is_main else None,
            reward=_reward(trace, findings),
            status=_end(trace),
            is_exact=is_exact,
            uid=f"{trace.id}/{number}" if trace.id else None,
        )


def _branches(trace: _Trace) -> list[_Branch]:
    parents = {node.parent for node in trace.nodes}
    counted: set[int] = set()
    found = []
    for leaf in (index for index in range(len(trace.nodes)) if index not in parents):
        path: list[int] = []
        index: int | None = leaf
        while index is not None:
            if not 0 <= index < len(trace.nodes) or len(path) > len(trace.nodes):
                raise RowError(f"the message graph is broken at node {index}")
            path.append(index)
            index = trace.nodes[index].parent
        path.reverse()
        new = [k for k, node in enumerate(path) if trace.nodes[node].sampled and node not in counted]
        counted.update(path)
        if new:
            found.append(_Branch(path, new[0]))
    if not found:
        raise RowError("no turns: no message was sampled")
    return found


def _read_branch(
    trace: _Trace, branch: _Branch, version: int | None, findings: Findings
) -> tuple[int, TurnBuilder, bool]:
    """Prompt tokens, turns, and whether all are exact."""
    nodes = [trace.nodes[index] for index in branch.nodes]
    by_node = {call.node: call for call in trace.calls}
    calls = {k: by_node.get(branch.nodes[k]) for k in range(branch.start, len(nodes)) if nodes[k].sampled}
    counts = _counts(nodes, calls)
    turns = TurnBuilder(findings)
    names: dict[str, str] = {}
    latency_s: float | None = None
    for position in range(branch.start, len(nodes)):
        message = nodes[position].message
        if position not in calls:
            _observe(turns, message, names, latency_s)
            continue
        context_tok, generated_tok = counts[position] if counts else (None, estimate_tok(message.num_chars))
        turns.generate(generated_tok, context_tok, version)
        names |= {call.id: call.called.name for call in message.calls if call.id}
        after = next((calls[k] for k in calls if k > position), None)
        latency_s = _between_s(calls[position], after)
    if counts:
        return counts[branch.start][0], turns, True
    texts = (text_of(node.message.content) for node in nodes[: branch.start])
    return sum(estimate_tok(len(text)) for text in texts), turns, False


def _counts(nodes: Sequence[_Node], calls: dict[int, _Call | None]) -> dict[int, tuple[int, int]] | None:
    """Context and generated tokens of each sampled position: by token ids, else by usage, else None."""
    if all(node.token_ids and len(node.mask) == len(node.token_ids) for node in nodes):
        found, before = {}, 0
        for position, node in enumerate(nodes):
            if position in calls:
                # What stands in front of the sampled tokens is the template's opening of the answer.
                found[position] = (before + len(node.token_ids) - sum(node.mask), sum(node.mask))
            before += len(node.token_ids)
        return found
    usages = {position: call.usage for position, call in calls.items() if call and call.usage}
    if len(usages) < len(calls):
        return None
    return {position: (usage.prompt_tokens, usage.completion_tokens) for position, usage in usages.items()}


def _between_s(before: _Call | None, after: _Call | None) -> float | None:
    """From an answer to the next request: tools, and whatever else the harness did. 0 marks a time not taken."""
    if not (before and after and before.time and after.time and before.time.end and after.time.start):
        return None
    return after.time.start - before.time.end


def _observe(turns: TurnBuilder, message: Message, names: dict[str, str], latency_s: float | None) -> None:
    text = text_of(message.content)
    if message.role in TOOL_ROLES:
        status, how = judge(text)
        tool = message.name or names.get(message.tool_call_id or "") or "tool"
        turns.observe(tool, estimate_tok(len(text)), status, latency_s, how=how)
    else:
        how = "user_reply" if message.role == USER else ""
        turns.observe(message.role, estimate_tok(len(text)), "ok", latency_s, how=how)


def _reward(trace: _Trace, findings: Findings) -> float | None:
    """Sum of score times weight, as verifiers has it; None where nothing was scored."""
    parts = [each for each in trace.rewards.values() if isinstance(each, dict)]
    values = [(as_float(each.get("score")), as_float(each.get("weight", 1.0))) for each in parts]
    if any(score is None or weight is None for score, weight in values):
        findings.count("bad_reward")
        return None
    return (
        sum(score * weight for score, weight in values if score is not None and weight is not None) if values else None
    )


def _end(trace: _Trace) -> TrajectoryStatus:
    last = trace.calls[-1] if trace.calls else None
    if trace.stop_condition in CUT or (last and last.finish_reason == "length"):
        return "truncated"
    return "completed" if trace.ok else "aborted"


IMPORTER = ImporterSpec(
    name="prime-rl",
    summary="prime-rl rollouts, episodes of verifiers (rollouts/step_*/*/*/traces.jsonl)",
    sniff=sniff,
    read=read,
    identify=identify,
)
