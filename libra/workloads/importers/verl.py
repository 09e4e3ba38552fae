"""verl's `trainer.rollout_data_dir` and `validation_data_dir`: `<step>.jsonl`, one decoded sample a line.

Special tokens are lost in that dump: turns show only as bare role lines and as the tags of tool responses (Qwen's
`<tool_response>`, Search-R1's `<information>`). No token counts, times or versions; what was cut by the length limit
can't be told from what ended, unless it ends inside a call or a response.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    convert,
    digest,
    shown,
)
from libra.workloads.importers.status import judge
from libra.workloads.importers.text import estimate_tok
from libra.workloads.importers.turns import TurnBuilder

# What stands between two generations. A block of a bare role line counts when the assistant speaks again after it, or
# when it holds a tool response: a model may write the word "user" on a line of its own.
_OBSERVATION = re.compile(
    r"\n?(?P<role>user|tool)\n(?P<block>(?:(?!\nassistant\n).)*?)\nassistant\n"
    r"|\n?(?:user|tool)\n(?P<cut><tool_response>.*)\Z"
    r"|\s*<tool_response>(?P<bare>.*?)(?:</tool_response>\s*|\Z)"
    r"|\s*<information>(?P<search>.*?)(?:</information>\s*|\Z)"
    r"|\s*(?P<refused>My previous action is invalid\..*?Let me try again\.)\s*",
    re.DOTALL,
)
_RESPONSE = re.compile(r"<tool_response>(.*?)(?:</tool_response>|\Z)", re.DOTALL)
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_OPEN_CALL = re.compile(r"<(tool_call|search)>(?:(?!</\1>).)*\Z", re.DOTALL)


class _Line(msgspec.Struct):
    input: str
    output: str
    score: float | None = None
    step: int | None = None


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    if not isinstance(value, dict) or not isinstance(value.get("input"), str) or "output" not in value:
        return 0
    return 2 if "score" in value or "step" in value else 1


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample]:
    """See `ImporterSpec`. A group is what one folder's step has of one input; equal inputs are one prompt."""
    line = convert(value, _Line)
    if not line.output.strip():
        raise RowError("no turns: the output is empty")
    findings.note(
        "verl does not dump what the length limit cut: only samples that end in a call or response are marked"
    )
    turns = TurnBuilder(findings)
    is_cut = _read_output(line.output, turns)
    score = as_float(line.score)
    if line.score is not None and score is None:
        findings.count("bad_reward")
    prompt = digest(line.input)
    status: TrajectoryStatus = "truncated" if is_cut else "completed"
    yield Sample(
        prompt_id=f"prompt-{prompt}",
        prompt_tok=estimate_tok(len(line.input)),
        turns=turns.build(),
        group=f"{shown(place.path.parent)} {_step(line, place)} {prompt}",
        reward=score,
        status=status,
    )


def _step(line: _Line, place: Place) -> str:
    return place.path.name if line.step is None else str(line.step)


def _read_output(output: str, turns: TurnBuilder) -> bool:
    """Fill `turns`; true when the output ends inside a call or a response, or with a call that nobody answered."""
    position = 0
    for match in _OBSERVATION.finditer(output):
        text = output[position : match.start()]
        if not text.strip() and not turns.num_turns:
            raise RowError("the output starts with a tool response")
        if text.strip():
            turns.generate(estimate_tok(len(text)))
        _observe(match, _called(text), turns)
        position = match.end()
    rest = output[position:]
    if rest.strip():
        turns.generate(estimate_tok(len(rest)))
    return turns.is_waiting or bool(_OPEN_CALL.search(rest)) or bool(_CALL.search(rest))


def _observe(match: re.Match[str], called: list[str], turns: TurnBuilder) -> None:
    if match["refused"] is not None:
        turns.observe(
            called[0] if called else "none", estimate_tok(len(match["refused"])), "error", how="invalid_action"
        )
        return
    if match["search"] is not None:
        _respond("search", match["search"], turns)
        return
    block = next(text for text in (match["block"], match["cut"], match["bare"]) if text is not None)
    responses = [block] if match["bare"] is not None else _RESPONSE.findall(block)
    if not responses and match["role"] == "user":
        turns.observe("user", estimate_tok(len(block)), "ok", how="user_reply")
        return
    for number, response in enumerate(responses or [block]):
        _respond(called[min(number, len(called) - 1)] if called else "tool", response, turns)


def _respond(tool: str, text: str, turns: TurnBuilder) -> None:
    status, how = judge(text.strip())
    turns.observe(tool, estimate_tok(len(text)), status, how=how)


def _called(text: str) -> list[str]:
    """Names of the calls in a generation."""
    calls = _CALL.findall(text)
    named = [found[1] if (found := _NAME.search(call)) else "tool" for call in calls]
    return named or (["search"] if "<search>" in text else [])


IMPORTER = ImporterSpec(
    name="verl",
    summary="verl rollout dumps of trainer.rollout_data_dir, one file a step (.jsonl)",
    sniff=sniff,
    read=read,
)
