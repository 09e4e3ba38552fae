"""inspect_ai logs: `.eval` archives and `.json`, a sample of one epoch a row.

The final conversation (`messages`) is the trajectory. Its answers are found again, by message id, among the `model`
events, which hold tokens; so calls of scorers and of sub-agents, which stand among the events too, are left out. Tool
times are those of the `tool` events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from libra.core.records import ToolStatus, TrajectoryStatus
from libra.workloads.importers.base import (
    Findings,
    ImporterSpec,
    Place,
    RowError,
    Sample,
    as_float,
    clean,
    convert,
    shown,
)
from libra.workloads.importers.chat import as_text
from libra.workloads.importers.status import judge
from libra.workloads.importers.text import estimate_tok
from libra.workloads.importers.times import between_s
from libra.workloads.importers.turns import TurnBuilder

HEADER_KEYS = ("task", "task_id", "model", "run_id")
"""Of a log's `eval`, kept with each sample."""
GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""inspect_ai's own values of letters."""
CUT_REASONS = ("max_tokens", "model_length")
ATTACHED = "attachment://"


class _Function(msgspec.Struct):
    function: str = "tool"
    arguments: Any = ""
    id: str | None = None


class _Message(msgspec.Struct):
    role: str
    id: str | None = None
    content: Any = None
    tool_calls: list[_Function] | None = None
    tool_call_id: str | None = None
    function: str | None = None
    error: Any = None
    source: str | None = None


class _Usage(msgspec.Struct):
    output_tokens: int
    total_tokens: int


class _Choice(msgspec.Struct):
    message: _Message
    stop_reason: str | None = None


class _Output(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    event: str | None = None
    id: str | None = None
    timestamp: Any = None
    completed: Any = None
    working_time: float | None = None
    output: Any = None


class _Sample(msgspec.Struct):
    id: str | int
    epoch: int
    messages: list[_Message]
    events: list[_Event] = []
    attachments: dict[str, Any] = {}
    scores: dict[str, Any] | None = None
    error: Any = None
    limit: dict[str, Any] | None = None
    uuid: str | None = None
    eval_info: dict[str, Any] = {}


def is_log(value: Any) -> bool:
    """A whole log with its samples."""
    return isinstance(value, dict) and isinstance(value.get("eval"), dict) and isinstance(value.get("samples"), list)


def log_rows(log: dict[str, Any], samples: Sequence[Any]) -> list[Any]:
    """The samples, each with what the log says of all."""
    told = log.get("eval")
    info = {key: told[key] for key in HEADER_KEYS if key in told} if isinstance(told, dict) else {}
    return [each | {"eval_info": info} if isinstance(each, dict) else each for each in samples]


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        return 0
    return 2 if {"id", "epoch", "input", "target"} <= value.keys() else 0


def identify(value: Any) -> str | None:
    """See `ImporterSpec`."""
    info = value.get("eval_info")
    task = info.get("task") if isinstance(info, dict) else None
    return f"{task} sample {value['id']} epoch {value['epoch']}"


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample]:
    """See `ImporterSpec`. Epochs of a sample are a group; a log of a retry belongs to the same task."""
    sample = convert(value, _Sample)
    texts = _Texts(sample.attachments)
    split = next((k for k, message in enumerate(sample.messages) if _is_generated(message)), None)
    if split is None:
        raise RowError("no turns: no message of the assistant" if sample.messages else "no messages")
    generated = [message for message in sample.messages[split:] if message.role == "assistant"]
    outputs = _outputs(sample.events, generated)
    usages = [_usage(output) for output in outputs]
    is_exact = all(usages)
    turns = TurnBuilder(findings)
    _read_messages(sample, split, iter(usages) if is_exact else None, texts, turns)
    prompt_tok = sum(estimate_tok(texts.length(message.content)) for message in sample.messages[:split])
    first = usages[0]
    task = str(sample.eval_info.get("task") or place.path.name)
    run = sample.eval_info.get("task_id") or shown(place.path)
    yield Sample(
        prompt_id=clean(f"{task}/{sample.id}"),
        prompt_tok=first[0] if is_exact and first else prompt_tok,
        turns=turns.build(),
        group=f"{run} {sample.id}",
        reward=_reward(sample.scores, findings),
        status=_end(sample, outputs[-1], turns),
        is_exact=is_exact,
        uid=sample.uuid,
    )


class _Texts:
    """Lengths of contents in characters, attachments resolved."""

    def __init__(self, attachments: dict[str, Any]) -> None:
        self._attachments = attachments

    def text(self, content: Any) -> str:
        if isinstance(content, str):
            found = self._attachments.get(content.removeprefix(ATTACHED)) if content.startswith(ATTACHED) else None
            return found if isinstance(found, str) else content
        if isinstance(content, list):
            return "".join(self.text(part) for part in content)
        if isinstance(content, dict):
            return self.text(content.get("text", content.get("reasoning", "")))
        return ""

    def length(self, content: Any) -> int:
        return len(self.text(content))


def _is_generated(message: _Message) -> bool:
    return message.role == "assistant" and message.source != "input"


def _outputs(events: Sequence[_Event], generated: Sequence[_Message]) -> list[_Output | None]:
    """The model's output behind each message: by id, or in order where old logs have no ids and as many calls."""
    found = [output for event in events if event.event == "model" and (output := _output(event)) is not None]
    by_id = {output.choices[0].message.id: output for output in found}
    if all(message.id is None for message in generated):
        return list(found) if len(found) == len(generated) else [None] * len(generated)
    return [by_id.get(message.id) if message.id else None for message in generated]


def _output(event: _Event) -> _Output | None:
    """An event of a form of its own is no reason to lose the sample."""
    try:
        output = convert(event.output, _Output)
    except RowError:
        return None
    return output if output.choices else None


def _usage(output: _Output | None) -> tuple[int, int] | None:
    """Context and generated tokens. Providers count cached input apart or not; the total has it either way."""
    usage = output.usage if output else None
    if usage is None or usage.output_tokens < 0 or usage.total_tokens < usage.output_tokens:
        return None
    return usage.total_tokens - usage.output_tokens, usage.output_tokens


def _read_messages(
    sample: _Sample, split: int, usages: Iterator[tuple[int, int] | None] | None, texts: _Texts, turns: TurnBuilder
) -> None:
    latency_s = {event.id: _latency_s(event) for event in sample.events if event.event == "tool" and event.id}
    for message in sample.messages[split:]:
        if message.role == "assistant":
            usage = next(usages) if usages else None
            chars = texts.length(message.content) + sum(_call_chars(call) for call in message.tool_calls or ())
            turns.generate(usage[1] if usage else estimate_tok(chars), usage[0] if usage else None)
        elif message.role == "tool":
            text = texts.text(message.content)
            status, how = _status(message, text)
            tool, seconds = message.function or "tool", latency_s.get(message.tool_call_id or "")
            turns.observe(tool, estimate_tok(len(text)), status, seconds, how=how)
        elif message.role in ("user", "system"):
            how = "user_reply" if message.role == "user" else ""
            turns.observe(message.role, estimate_tok(texts.length(message.content)), "ok", how=how)
        else:
            raise RowError(f"a message has the unknown role {message.role!r}")


def _call_chars(call: _Function) -> int:
    return len(call.function) + len(as_text(call.arguments))


def _latency_s(event: _Event) -> float | None:
    """Working time leaves out waits for a slot of a shared resource."""
    return event.working_time if event.working_time is not None else between_s(event.timestamp, event.completed)


def _status(message: _Message, text: str) -> tuple[ToolStatus, str]:
    if isinstance(message.error, dict):
        return ("timeout" if message.error.get("type") == "timeout" else "error"), "status_typed"
    return ("error", "status_typed") if message.error else judge(text)


def _reward(scores: dict[str, Any] | None, findings: Findings) -> float | None:
    if not scores:
        return None
    if len(scores) > 1:
        findings.note("samples with several scorers: the reward is the first scorer's value")
    first = next(iter(scores.values()))
    value = first.get("value") if isinstance(first, dict) else first
    if isinstance(value, bool):
        return float(value)
    reward = GRADES.get(value) if isinstance(value, str) else as_float(value)
    if reward is None:
        findings.count("bad_reward")
    return reward


def _end(sample: _Sample, last: _Output | None, turns: TurnBuilder) -> TrajectoryStatus:
    if sample.limit:
        return "aborted" if sample.limit.get("type") == "operator" else "truncated"
    if sample.error:
        return "aborted"
    if last and last.choices[0].stop_reason in CUT_REASONS:
        return "truncated"
    return "truncated" if turns.is_waiting else "completed"


IMPORTER = ImporterSpec(
    name="inspect-ai",
    summary="inspect_ai logs, a sample of one epoch each (.eval, .json)",
    sniff=sniff,
    read=read,
    identify=identify,
)
