"""OpenHands events of every generation, brought to one shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from libra.core.records import ToolStatus
from libra.workloads.importers.base import Findings, RowError, convert
from libra.workloads.importers.chat import as_text
from libra.workloads.importers.status import judge, of_exit_code
from libra.workloads.importers.text import text_of

AGENT = "agent"
RETURN = "return"
FINAL = ("finish", "reject", "FinishAction", "message")
"""Actions that end a run when they come last; a message hands over to the user."""
SILENT_ACTIONS = ("change_agent_state", "null", "pause", "resume", "stop", "recall", "start", "loop_recovery")
SILENT_OBSERVATIONS = ("agent_state_changed", "null", "loop_detection")
"""Bookkeeping that no model wrote or read."""
CONDENSED = ("condensation", "condensation_request", "Condensation", "CondensationRequest")
WRITTEN = ("content", "thought", "command", "code", "path", "file_text", "old_str", "new_str", "url", "browser_actions",
           "final_thought", "message", "task_list", "arguments", "outputs", "inputs")  # fmt: skip
"""Arguments of an action that the model wrote; the others are settings."""
PROMPTS = ("system", "SystemPromptEvent")


@dataclass(frozen=True)
class Step:
    """Something that the model wrote (`AGENT`) or read (`RETURN`); `is_message` marks what is no answer to a call."""

    kind: str
    num_chars: int
    id: Any = None
    timestamp: Any = None
    tool: str | None = None
    response_id: str | None = None
    usage: tuple[int, int] | None = None
    is_final: bool = False
    cause: Any = None
    status: ToolStatus = "ok"
    how: str = ""
    is_message: bool = False


class _Call(msgspec.Struct):
    function_name: str | None = None
    model_response: dict[str, Any] | None = None


class _Old(msgspec.Struct):
    id: str | int | None = None
    timestamp: Any = None
    source: str | None = None
    action: str | None = None
    observation: str | None = None
    args: dict[str, Any] = {}
    content: Any = None
    extras: dict[str, Any] = {}
    cause: str | int | None = None
    success: bool | None = None
    tool_call_metadata: _Call | None = None


class _New(msgspec.Struct):
    kind: str
    id: str | None = None
    timestamp: Any = None
    source: str | None = None
    llm_response_id: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    tool_call: dict[str, Any] | None = None
    action_id: str | None = None
    thought: Any = None
    reasoning_content: str | None = None
    observation: dict[str, Any] | None = None
    system_prompt: Any = None
    llm_message: dict[str, Any] | None = None
    error: Any = None
    rejection_reason: str | None = None


def steps_of(history: Sequence[Any], findings: Findings) -> list[Step]:
    """Steps in order; pairs are taken apart. Raises `RowError` for what is no event."""
    return [step for event in _flat(history) if (step := _step(event, findings))]


def _flat(history: Sequence[Any]) -> Iterator[Any]:
    for event in history:
        if isinstance(event, list):
            yield from event
        else:
            yield event


def _step(event: Any, findings: Findings) -> Step | None:
    if isinstance(event, dict) and "kind" in event:
        return _of_new(convert(event, _New), findings)
    found = convert(event, _Old)
    if found.action is not None:
        return _of_action(found, findings)
    if found.observation is None:
        raise RowError("an event is neither action nor observation")
    return None if found.observation in SILENT_OBSERVATIONS else _of_observation(found)


def _of_action(event: _Old, findings: Findings) -> Step | None:
    if event.action in CONDENSED:
        findings.count("compaction", event.action == CONDENSED[0])
        return None
    if event.action in SILENT_ACTIONS:
        return None
    num_chars = sum(len(_text(event.args[key])) for key in WRITTEN if key in event.args)
    if event.source != AGENT or event.action in PROMPTS:
        return Step(RETURN, num_chars, tool="user", how="user_reply", is_message=True)
    call = event.tool_call_metadata or _Call()
    response = call.model_response or {}
    name = response.get("id")
    return Step(
        AGENT,
        num_chars,
        id=event.id,
        timestamp=event.timestamp,
        tool=call.function_name or event.action,
        response_id=name if isinstance(name, str) else None,
        usage=_usage(response.get("usage")),
        is_final=event.action in FINAL,
    )


def _of_observation(event: _Old) -> Step:
    text = text_of(event.content)
    metadata = event.extras.get("metadata")
    code = metadata.get("exit_code") if isinstance(metadata, dict) else event.extras.get("exit_code")
    status, how = _status(text, code, is_error=event.observation == "error")
    return Step(RETURN, len(text), timestamp=event.timestamp, cause=event.cause, status=status, how=how)


def _of_new(event: _New, findings: Findings) -> Step | None:
    if event.kind in CONDENSED:
        findings.count("compaction", event.kind == "Condensation")
        return None
    if event.kind == "ActionEvent":
        call = event.tool_call or {}
        written = [event.thought, event.reasoning_content, call.get("name"), call.get("arguments")]
        return Step(
            AGENT,
            sum(len(_text(each)) for each in written),
            id=event.id,
            timestamp=event.timestamp,
            tool=event.tool_name,
            response_id=event.llm_response_id,
            is_final=event.tool_name in FINAL,
        )
    if event.kind == "MessageEvent":
        message = event.llm_message or {}
        num_chars = len(text_of(message.get("content"))) + len(_text(message.get("reasoning_content")))
        if event.source == AGENT:
            return Step(AGENT, num_chars, id=event.id, timestamp=event.timestamp, tool="message",
                        response_id=event.llm_response_id, is_final=True)  # fmt: skip
        return Step(RETURN, num_chars, tool="user", how="user_reply", is_message=True)
    if event.kind in PROMPTS:
        return Step(RETURN, len(text_of(event.system_prompt)), tool="system", is_message=True)
    return _of_new_return(event)


def _of_new_return(event: _New) -> Step | None:
    """What answers a call: a result, an error of the scaffold, or a refusal. Other kinds are bookkeeping."""
    status: ToolStatus
    if event.kind == "ObservationEvent" and event.observation is not None:
        found = event.observation
        text = text_of(found.get("content")) or text_of(found.get("output"))
        metadata = found.get("metadata")
        code = metadata.get("exit_code") if isinstance(metadata, dict) else found.get("exit_code")
        status, how = _status(text, code, found.get("is_error") is True)
        if found.get("timeout") is True:
            status, how = "timeout", "status_typed"
    elif event.kind in ("AgentErrorEvent", "UserRejectObservation"):
        text = _text(event.error) or event.rejection_reason or ""
        status, how = "error", "status_typed"
    else:
        return None
    return Step(RETURN, len(text), timestamp=event.timestamp, tool=event.tool_name, cause=event.action_id,
                status=status, how=how)  # fmt: skip


def _status(text: str, code: Any, is_error: bool) -> tuple[ToolStatus, str]:
    """-1 is OpenHands' exit code of a command that has not ended: it ran into its time limit."""
    if isinstance(code, int) and not isinstance(code, bool):
        return ("timeout" if code == -1 else of_exit_code(code)), "status_exit_code"
    return ("error", "status_typed") if is_error else judge(text)


def _usage(found: Any) -> tuple[int, int] | None:
    if not isinstance(found, dict):
        return None
    prompt_tok, completion_tok = found.get("prompt_tokens"), found.get("completion_tokens")
    if not isinstance(prompt_tok, int) or not isinstance(completion_tok, int):
        return None
    return prompt_tok, completion_tok


def _text(value: Any) -> str:
    """Text of a value; of a structure, the JSON that the model wrote."""
    if isinstance(value, str):
        return value
    return text_of(value) or ("" if value is None else as_text(value))
