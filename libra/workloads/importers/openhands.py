"""OpenHands `output.jsonl` of evaluations: an instance a line, with its events.

Three generations: pairs of action and observation, events with `action` or `observation`, and the agent SDK's events
with a `kind`. Generations are told apart by the id of the model's response: one response may hold several actions.
Tokens are exact where the metrics (or the response kept with an action) have the usage of every response.
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
    as_float,
    clean,
    convert,
    digest,
    shown,
)
from libra.workloads.importers.openhands_events import AGENT, Step, steps_of
from libra.workloads.importers.text import estimate_tok
from libra.workloads.importers.times import between_s
from libra.workloads.importers.turns import TurnBuilder

LIMIT_WORDS = ("maximum iteration", "max iteration", "max_iterations", "maxiterations", "budget", "context window")
"""In errors of runs that a limit ended."""
METADATA_KEYS = ("agent_class", "max_iterations", "dataset", "dataset_split", "data_split")
"""What makes two runs of one instance comparable, beside the model."""


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    response_id: str = ""


class _Metrics(msgspec.Struct):
    token_usages: list[_Usage] = []


class _Line(msgspec.Struct):
    instance_id: str | int
    history: list[Any] | None = None
    instruction: str | None = None
    metadata: dict[str, Any] | None = None
    metrics: _Metrics | None = None
    test_result: Any = None
    report: Any = None
    error: str | None = None
    attempt: int | None = None


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    if not isinstance(value, dict) or "instance_id" not in value or "history" not in value:
        return 0
    return 2 if "test_result" in value or "metadata" in value else 1


def identify(value: Any) -> str | None:
    """See `ImporterSpec`."""
    attempt = value.get("attempt")
    return f"instance {value['instance_id']}{'' if attempt is None else f' attempt {attempt}'}"


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample]:
    """See `ImporterSpec`. Runs of an instance by the same agent, model and limit are a group."""
    line = convert(value, _Line)
    if not line.history:
        raise RowError(f"no turns: an empty history{f' ({clean(line.error)})' if line.error else ''}")
    steps = steps_of(line.history, findings)
    split = next((k for k, step in enumerate(steps) if step.kind == AGENT), None)
    if split is None:
        raise RowError("no turns: no action of the agent")
    usages = (
        {usage.response_id: usage for usage in line.metrics.token_usages if usage.response_id} if line.metrics else {}
    )
    turns, first = _turns(steps[split:], usages, findings)
    prompt_tok = sum(estimate_tok(step.num_chars) for step in steps[:split])
    if not prompt_tok and line.instruction:
        prompt_tok = estimate_tok(len(line.instruction))
    yield Sample(
        prompt_id=clean(str(line.instance_id), 256),
        prompt_tok=prompt_tok if first is None else first,
        turns=turns.build(),
        group=f"{_setting(line.metadata, place)} {line.instance_id}",
        reward=_reward(line),
        status=_end(line, steps),
        is_exact=first is not None,
    )


def _setting(metadata: dict[str, Any] | None, place: Place) -> str:
    if not metadata:
        return shown(place.path.parent)
    llm = metadata.get("llm_config", metadata.get("llm"))
    model = llm.get("model") if isinstance(llm, dict) else None
    return digest(repr([model, *(metadata.get(key) for key in METADATA_KEYS)]))


def _turns(steps: Sequence[Step], usages: dict[str, _Usage], findings: Findings) -> tuple[TurnBuilder, int | None]:
    """Turns, and the first context where all counts are exact."""
    known = {step.response_id: _usage(step, usages) for step in steps if step.kind == AGENT}
    is_exact = all(known.values())
    turns = TurnBuilder(findings)
    by_id = {step.id: step for step in steps if step.kind == AGENT and step.id is not None}
    before: Step | None = None
    first: int | None = None
    for step in steps:
        if step.kind == AGENT:
            usage = known[step.response_id] if is_exact else None
            is_same = before is not None and step.response_id is not None and step.response_id == before.response_id
            if not is_same:
                turns.generate(usage[1] if usage else estimate_tok(step.num_chars), usage[0] if usage else None)
                first = usage[0] if usage and first is None else first
            elif not usage:
                turns.add(estimate_tok(step.num_chars))
            before = step
            continue
        cause = by_id.get(step.cause) if step.cause is not None else before
        latency_s = between_s(cause.timestamp, step.timestamp) if cause and not step.is_message else None
        tool = step.tool or (cause.tool if cause else None) or "tool"
        turns.observe(tool, estimate_tok(step.num_chars), step.status, latency_s, how=step.how)
    return turns, first if turns.is_exact else None


def _usage(step: Step, usages: dict[str, _Usage]) -> tuple[int, int] | None:
    if step.response_id is None:
        return None
    found = usages.get(step.response_id)
    usage = (found.prompt_tokens, found.completion_tokens) if found else step.usage
    if usage and min(usage) < 0:
        raise RowError("a response's usage has a negative token count")
    return usage


def _reward(line: _Line) -> float | None:
    """1 for resolved, 0 for not, where the line was evaluated."""
    places = [line.report, line.test_result]
    places += [found.get("report") for found in places if isinstance(found, dict)]
    for found in places:
        resolved = found.get("resolved") if isinstance(found, dict) else None
        if isinstance(resolved, bool):
            return float(resolved)
    result = line.test_result.get("result") if isinstance(line.test_result, dict) else None
    return float(result) if isinstance(result, bool) else as_float(result)


def _end(line: _Line, steps: Sequence[Step]) -> TrajectoryStatus:
    if line.error:
        return "truncated" if any(word in line.error.lower() for word in LIMIT_WORDS) else "aborted"
    last = next(step for step in reversed(steps) if step.kind == AGENT)
    return "completed" if last.is_final else "truncated"


IMPORTER = ImporterSpec(
    name="openhands",
    summary="OpenHands evaluation outputs, of the old agents and the agent SDK (output.jsonl)",
    sniff=sniff,
    read=read,
    identify=identify,
)
