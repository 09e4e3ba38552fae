"""Chat messages as the OpenAI API shapes them, and what every chat-like dump reads from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from libra.workloads.importers.base import Findings, RowError
from libra.workloads.importers.status import judge
from libra.workloads.importers.text import estimate_tok, text_of
from libra.workloads.importers.turns import TurnBuilder

USER = "user"
TOOL_ROLES = ("tool", "function")


class Function(msgspec.Struct):
    name: str = "tool"
    arguments: Any = ""


class Call(msgspec.Struct):
    """`name` and `arguments` stand here instead of in `function` in some dumps."""

    function: Function | None = None
    id: str | None = None
    name: str | None = None
    arguments: Any = ""

    @property
    def called(self) -> Function:
        return self.function or Function(self.name or "tool", self.arguments)


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Message(msgspec.Struct):
    """`usage` as tau2-bench keeps it; `extra` as mini-swe-agent does."""

    role: str
    content: Any = None
    tool_calls: list[Call] | None = None
    function_call: Function | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    usage: Usage | None = None
    error: Any = None
    finish_reason: str | None = None
    extra: dict[str, Any] | None = None

    @property
    def calls(self) -> list[Call]:
        old = [Call(self.function_call)] if self.function_call else []
        return [*(self.tool_calls or ()), *old]

    @property
    def num_chars(self) -> int:
        """Characters that the model wrote: text, reasoning, names and arguments of calls."""
        called = sum(len(call.called.name) + len(as_text(call.called.arguments)) for call in self.calls)
        return len(text_of(self.content)) + len(self.reasoning_content or "") + called


@dataclass(frozen=True)
class Chat:
    """A chat divided into what the model was given and its turns; `last` is its last message."""

    prompt_text: str
    prompt_tok: int
    turns: TurnBuilder
    last: Message


def is_chat(value: Any) -> bool:
    """A list of messages."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "role" in value[0]


def split_prompt(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Messages before and from the first generation on. Raises `RowError` when nothing was generated."""
    for index, message in enumerate(messages):
        if message.role == "assistant":
            return messages[:index], messages[index:]
    raise RowError("no turns: no message of the assistant")


def read_chat(messages: Sequence[Message], findings: Findings) -> Chat:
    """Turns of a chat. Tokens are exact where every message of the assistant has its usage, else chars/4."""
    prompt, rest = split_prompt(messages)
    prompt_text = "\n".join(text_of(message.content) for message in prompt)
    prompt_tok = sum(estimate_tok(len(text_of(message.content))) for message in prompt)
    usages = [usage_of(message) for message in rest if message.role == "assistant"]
    is_exact = all(usages)
    if is_exact and usages[0]:
        prompt_tok = usages[0][0]
    turns = TurnBuilder(findings)
    names: dict[str, str] = {}
    for message in rest:
        if message.role == "assistant":
            names |= {call.id: call.called.name for call in message.calls if call.id}
            called = [call.called.name for call in message.calls]
            usage = usage_of(message) if is_exact else None
            turns.generate(usage[1] if usage else estimate_tok(message.num_chars), usage[0] if usage else None)
        elif message.role in TOOL_ROLES:
            name = message.name or names.get(message.tool_call_id or "") or next(iter(called), "tool")
            _observe(turns, name, message)
        elif message.role in (USER, "system", "developer"):
            how = "user_reply" if message.role == USER else ""
            turns.observe(message.role, estimate_tok(len(text_of(message.content))), "ok", how=how)
        else:
            raise RowError(f"a message has the unknown role {message.role!r}")
    return Chat(prompt_text, prompt_tok, turns, rest[-1])


def usage_of(message: Message) -> tuple[int, int] | None:
    """Prompt and completion tokens of the call that made a message; None unless both are there."""
    usage = message.usage
    if usage is None or usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    if usage.prompt_tokens < 0 or usage.completion_tokens < 0:
        raise RowError("a message's usage has a negative token count")
    return usage.prompt_tokens, usage.completion_tokens


def _observe(turns: TurnBuilder, name: str, message: Message) -> None:
    text = text_of(message.content)
    status, how = judge(text)
    if message.error:
        status, how = "error", "status_typed"
    elif message.error is False and status == "ok":
        how = "status_typed"
    turns.observe(name, estimate_tok(len(text)), status, how=how)


def as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
