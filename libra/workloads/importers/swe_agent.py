"""SWE-agent `.traj` of every generation: steps where there are any, else the message history.

No exit codes and no token counts per step: statuses come from the text, tokens from characters. Where the file has the
API's own total of received tokens, the estimate is measured against it. Demonstrations belong to the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from libra.core.records import TrajectoryStatus
from libra.workloads.importers.base import Findings, ImporterSpec, Place, RowError, Sample, clean, convert
from libra.workloads.importers.chat import Message
from libra.workloads.importers.status import judge
from libra.workloads.importers.text import estimate_tok, text_of
from libra.workloads.importers.turns import TurnBuilder

SUBMIT = "submit"
LIMIT_WORDS = ("exit_cost", "exit_context", "exit_total_execution_time")
"""In exit statuses: a limit ended the run, also where what was there was submitted after it."""
MAX_NAME_CHARS = 256
"""File names carry the whole configuration."""


class _Step(msgspec.Struct):
    action: str | None = None
    observation: Any = None
    response: str | None = None
    execution_time: float | None = None


class _Entry(Message, kw_only=True):
    is_demo: bool | None = None
    action: str | None = None


class _Stats(msgspec.Struct):
    tokens_received: int | float | None = None


class _Info(msgspec.Struct):
    exit_status: str | None = None
    model_stats: _Stats | None = None


class _File(msgspec.Struct):
    trajectory: list[_Step] = []
    history: list[_Entry] = []
    info: _Info | None = None


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    if not isinstance(value, dict):
        return 0
    steps, history = value.get("trajectory"), value.get("history")
    has_steps = isinstance(steps, list) and any(isinstance(each, dict) and "observation" in each for each in steps)
    has_history = isinstance(history, list) and any(isinstance(each, dict) and "role" in each for each in history)
    return 2 if has_steps or (has_history and "messages" not in value) else 0


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample]:
    """See `ImporterSpec`. Two runs of one task are two prompts here: their configurations differ."""
    file = convert(value, _File)
    prompt, rest = _split(file.history)
    findings.count("demonstration", sum(bool(message.is_demo) for message in prompt))
    turns = TurnBuilder(findings)
    if file.trajectory:
        actions = _read_steps(file.trajectory, turns, findings)
    else:
        findings.note(f"{place.path.name} has a history only, no steps")
        actions = _read_history(rest, turns)
    built = turns.build()
    _measure(file, sum(turn.generated_tok for turn in built), len(built), findings)
    yield Sample(
        prompt_id=clean(place.path.name.removesuffix(".gz").removesuffix(".traj"), MAX_NAME_CHARS),
        prompt_tok=sum(estimate_tok(len(text_of(message.content))) for message in prompt),
        turns=built,
        status=_end(file, actions),
    )


def _split(history: Sequence[_Entry]) -> tuple[Sequence[_Entry], Sequence[_Entry]]:
    """Prompt and the rest: a demonstration may hold messages of the assistant that it did not generate here."""
    for index, message in enumerate(history):
        if message.role == "assistant" and not message.is_demo:
            return history[:index], history[index:]
    return history, ()


def _read_steps(steps: Sequence[_Step], turns: TurnBuilder, findings: Findings) -> list[str]:
    for step in steps:
        action, response = step.action or "", step.response or ""
        # With function calling the response is the thought alone; the call is written down as the action.
        is_call = action.strip() not in response
        turns.generate(estimate_tok(len(response) + (len(action) if is_call else 0)))
        observation = text_of(step.observation)
        status, how = judge(observation)
        turns.observe(_tool(action), estimate_tok(len(observation)), status, step.execution_time, how=how)
    return [step.action or "" for step in steps]


def _read_history(messages: Sequence[_Entry], turns: TurnBuilder) -> list[str]:
    actions: list[str] = []
    for message in messages:
        if message.role == "assistant":
            turns.generate(estimate_tok(message.num_chars))
            actions.append(message.action or "")
            continue
        if not actions:
            raise RowError("the history has no message of the assistant before the first observation")
        text = text_of(message.content)
        status, how = judge(text)
        turns.observe(_tool(actions[-1]), estimate_tok(len(text)), status, how=how)
    return actions


def _tool(action: str) -> str:
    words = action.split(maxsplit=1)
    return words[0] if words else "none"


def _measure(file: _File, num_tok: int, num_turns: int, findings: Findings) -> None:
    """Replays and hand-written demonstrations report 0 received tokens."""
    stats = file.info.model_stats if file.info else None
    received_tok = (stats.tokens_received if stats else None) or 0
    if num_turns and 0 < received_tok < math.inf:
        findings.measured.append((num_tok, int(received_tok)))


def _end(file: _File, actions: Sequence[str]) -> TrajectoryStatus:
    status = file.info.exit_status if file.info else None
    if not status:
        return "completed" if actions and _tool(actions[-1]) == SUBMIT else "aborted"
    if any(word in status for word in LIMIT_WORDS):
        return "truncated"
    return "completed" if status in ("submitted", "exit_forfeit") else "aborted"


IMPORTER = ImporterSpec(
    name="swe-agent",
    summary="SWE-agent trajectories of every generation (.traj)",
    sniff=sniff,
    read=read,
)
