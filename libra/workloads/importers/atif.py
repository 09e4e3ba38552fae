"""ATIF trajectories (Harbor, terminal-bench): system, user and agent steps with calls, observations and token metrics.

A step has one time stamp, so generation and tools can't be told apart: tool times are unknown. Statuses come from the
text. How a run ended is not recorded either: one that stops at an observation counts as cut, unless its last call was
the one that ends a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from libra.core.records import TrajectoryStatus
from libra.workloads.importers.base import (
    Findings,
    ImporterSpec,
    Place,
    RowError,
    Sample,
    clean,
    convert,
    digest,
)
from libra.workloads.importers.chat import as_text
from libra.workloads.importers.status import judge
from libra.workloads.importers.text import estimate_tok, text_of
from libra.workloads.importers.turns import TurnBuilder

SCHEMA = "ATIF"
FINAL_TOOLS = ("mark_task_complete", "finish", "submit", "task_complete", "complete_task", "done")
"""Calls that end a task in the agents that write ATIF."""
INNER = "agent_trajectories"
"""How the key ends under which trajectories of sub-agents stand."""
MAX_NESTED = 8
"""Sub-agents of sub-agents; real ones go two deep."""


class _Call(msgspec.Struct):
    function_name: str
    tool_call_id: str | None = None
    arguments: Any = ""


class _Result(msgspec.Struct):
    source_call_id: str | None = None
    content: Any = None


class _Observation(msgspec.Struct):
    results: list[_Result] = []


class _Metrics(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Step(msgspec.Struct):
    source: str
    message: Any = ""
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    observation: _Observation | None = None
    metrics: _Metrics | None = None
    llm_call_count: int | None = None
    is_copied_context: bool | None = None

    @property
    def is_generated(self) -> bool:
        """Copied context was generated elsewhere; a step of no model call is the agent's own program."""
        return self.source == "agent" and not self.is_copied_context and self.llm_call_count != 0

    @property
    def num_chars(self) -> int:
        calls = self.tool_calls or ()
        written = sum(len(call.function_name) + len(as_text(call.arguments)) for call in calls)
        return len(text_of(self.message)) + len(self.reasoning_content or "") + written

    @property
    def seen_chars(self) -> int:
        """Characters of the observation."""
        return sum(len(text_of(result.content)) for result in self.observation.results) if self.observation else 0


class _Agent(msgspec.Struct):
    name: str = "agent"
    model_name: str | None = None


class _Trajectory(msgspec.Struct):
    steps: list[_Step]
    agent: _Agent = msgspec.field(default_factory=_Agent)
    trajectory_id: str | None = None
    session_id: str | None = None
    continued_trajectory_ref: str | None = None


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    if not isinstance(value, dict) or not isinstance(value.get("steps"), list):
        return 0
    return 2 if str(value.get("schema_version", "")).startswith(SCHEMA) else 1 if "agent" in value else 0


def identify(value: Any) -> str | None:
    """See `ImporterSpec`."""
    name = value.get("trajectory_id") or value.get("session_id")
    return None if name is None else f"trajectory {name}"


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample | RowError]:
    """See `ImporterSpec`. Runs of one agent and model with an identical prompt are a group."""
    yield from _read(value, findings, 0)


def _read(value: Any, findings: Findings, depth: int) -> Iterator[Sample | RowError]:
    trajectory, held = convert(value, _Trajectory), _inner(value)
    yield _sample(trajectory, findings, depth)
    for inner in held:
        findings.count("agent")
        if depth == MAX_NESTED:
            yield RowError(f"sub-agents nested more than {MAX_NESTED} deep")
            return
        try:
            yield from _read(inner, findings, depth + 1)
        except RowError as error:
            yield RowError(f"sub-agent: {error}")


def _inner(value: dict[str, Any]) -> Sequence[Any]:
    """Trajectories that stand inside this one."""
    found = next((held for key, held in value.items() if key.endswith(INNER)), None)
    return convert(found or [], list[Any])


def _sample(trajectory: _Trajectory, findings: Findings, depth: int) -> Sample:
    steps = trajectory.steps
    split = next((k for k, step in enumerate(steps) if step.is_generated), None)
    if split is None:
        raise RowError("no turns: no step of the agent" if steps else "no steps")
    findings.note("ATIF has one time stamp a step: tool times are unknown")
    turns = TurnBuilder(findings)
    known = [_usage(step) for step in steps[split:] if step.is_generated]
    is_exact = all(known)
    for step in steps[split:]:
        _read_step(step, is_exact, turns)
    prompt_text = "\n".join(text_of(step.message) for step in steps[:split])
    estimated_tok = sum(
        estimate_tok(len(text_of(step.message))) + estimate_tok(step.seen_chars) for step in steps[:split]
    )
    first = known[0]
    prompt_id = f"{trajectory.agent.name}-{digest(prompt_text)}"
    group = f"{trajectory.agent.name} {trajectory.agent.model_name} {digest(prompt_text)}"
    return Sample(
        prompt_id=clean(prompt_id),
        prompt_tok=first[0] if is_exact and first else estimated_tok,
        turns=turns.build(),
        group=group if depth == 0 and prompt_text else None,
        status=_end(trajectory, turns),
        is_exact=is_exact,
        uid=trajectory.trajectory_id,
    )


def _usage(step: _Step) -> tuple[int, int] | None:
    """Context and generated tokens. Metrics of several calls in a step are sums, and no context."""
    metrics = step.metrics
    if metrics is None or metrics.prompt_tokens is None or metrics.completion_tokens is None:
        return None
    if min(metrics.prompt_tokens, metrics.completion_tokens) < 0:
        raise RowError("a step's metrics have a negative token count")
    is_single = step.llm_call_count in (None, 1)
    return (metrics.prompt_tokens, metrics.completion_tokens) if is_single else None


def _read_step(step: _Step, is_exact: bool, turns: TurnBuilder) -> None:
    calls = step.tool_calls or []
    if step.is_generated:
        usage = _usage(step) if is_exact else None
        turns.generate(usage[1] if usage else estimate_tok(step.num_chars), usage[0] if usage else None)
    elif step.source in ("user", "system"):
        how = "user_reply" if step.source == "user" else ""
        turns.observe(step.source, estimate_tok(len(text_of(step.message))), "ok", how=how)
    elif step.source != "agent":
        raise RowError(f"a step has the unknown source {step.source!r}")
    names = {call.tool_call_id: call.function_name for call in calls}
    for number, result in enumerate(step.observation.results if step.observation else ()):
        text = text_of(result.content)
        status, how = judge(text)
        named = names.get(result.source_call_id) if result.source_call_id else None
        tool = named or (calls[min(number, len(calls) - 1)].function_name if calls else "tool")
        turns.observe(tool, estimate_tok(len(text)), status, how=how)


def _end(trajectory: _Trajectory, turns: TurnBuilder) -> TrajectoryStatus:
    if trajectory.continued_trajectory_ref:
        return "truncated"
    last: Sequence[_Call] = next(
        (step.tool_calls or [] for step in reversed(trajectory.steps) if step.is_generated), []
    )
    is_done = any(call.function_name in FINAL_TOOLS for call in last)
    return "completed" if is_done or not (turns.is_waiting or last) else "truncated"


IMPORTER = ImporterSpec(
    name="atif",
    summary="ATIF trajectories of Harbor and terminal-bench, with their sub-agents (.json)",
    sniff=sniff,
    read=read,
    identify=identify,
)
