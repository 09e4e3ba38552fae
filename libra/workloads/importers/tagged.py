"""Turns of a decoded text by its tags: Qwen's `<tool_call>` and `<tool_response>`, Search-R1's `<search>` and
`<information>`, and bare role lines where special tokens were lost."""

from __future__ import annotations

import re

from libra.workloads.importers.base import RowError
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
_ANY_RESPONSE = re.compile(r"<(tool_response|information)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>(.*?)(?:</tool_response>|\Z)", re.DOTALL)
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_OPEN_CALL = re.compile(r"<(tool_call|search)>(?:(?!</\1>).)*\Z", re.DOTALL)


def read_tagged(output: str, turns: TurnBuilder, plain_tool: str = "tool") -> bool:
    """Fill `turns`; true when the output ends inside a call or a response, or with a call that nobody answered.

    `plain_tool` is the name of a call that holds a bare query instead of JSON.
    """
    position = 0
    for match in _OBSERVATION.finditer(output):
        text = output[position : match.start()]
        if not text.strip() and not turns.num_turns:
            raise RowError("the output starts with a tool response")
        if text.strip():
            turns.generate(estimate_tok(len(text)))
        _observe(match, called_in(text, plain_tool), turns)
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


def responses_in(text: str) -> list[str]:
    """Contents of all tagged responses, in order."""
    return [content for _, content in _ANY_RESPONSE.findall(text)]


def called_in(text: str, plain_tool: str = "tool") -> list[str]:
    """Names of the calls in a generation."""
    calls = _CALL.findall(text)
    named = [found[1] if (found := _NAME.search(call)) else plain_tool for call in calls]
    return named or ["search"] * text.count("<search>")
