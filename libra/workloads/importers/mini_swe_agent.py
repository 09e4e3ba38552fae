"""mini-swe-agent `.traj.json`: v1 (a bare list of messages, or info and messages) and v2 (`mini-swe-agent-1.1`).

One tool, bash. v2 has exit codes and times beside the messages, v1 the exit code in the text. Token counts are exact
where the raw answers of the API, which hold the usage, were kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from libra.core.records import ToolStatus, TrajectoryStatus
from libra.workloads.importers.base import Findings, ImporterSpec, Place, RowError, Sample, as_float, clean, convert
from libra.workloads.importers.chat import Message, Usage, is_chat, split_prompt
from libra.workloads.importers.status import of_exit_code, of_text
from libra.workloads.importers.text import estimate_tok, text_of
from libra.workloads.importers.turns import TurnBuilder

TOOL = "bash"
FINAL_WORDS = ("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "MINI_SWE_AGENT_FINAL_OUTPUT")
"""The command that ends a run echoes one of these."""
LIMITS = ("LimitsExceeded", "TimeExceeded", "ContextWindowExceededError")
"""Exit statuses of a run that a limit cut."""
SUFFIXES = (".traj.json.gz", ".traj.json", ".json")

_RETURN_CODE = re.compile(r"\s*<returncode>\s*(-?\d{1,9})\s*</returncode>")
_REFUSED = re.compile(r"\s*(?:format error|please always provide|expected exactly|no tool calls? found)", re.IGNORECASE)


class _Info(msgspec.Struct):
    exit_status: str | None = None


class _File(msgspec.Struct):
    messages: list[Message]
    info: _Info = msgspec.field(default_factory=_Info)
    instance_id: str | None = None


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    if isinstance(value, dict) and is_chat(value.get("messages")):
        info = value.get("info")
        has_info = isinstance(info, dict) and ("exit_status" in info or "mini_version" in info)
        is_marked = str(value.get("trajectory_format", "")).startswith("mini-swe-agent")
        return 2 if is_marked or has_info else 0
    if not is_chat(value):
        return 0
    texts = (text_of(each.get("content")) for each in value[1:] if isinstance(each, dict))
    return 2 if any(_RETURN_CODE.match(text) for text in texts) else 0


def identify(value: Any) -> str | None:
    """See `ImporterSpec`."""
    name = value.get("instance_id") if isinstance(value, dict) else None
    return None if name is None else str(name)


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample]:
    """See `ImporterSpec`."""
    file = _File(convert(value, list[Message])) if isinstance(value, list) else convert(value, _File)
    prompt, rest = split_prompt(file.messages)
    usages = [_usage(message) for message in rest if message.role == "assistant"]
    is_exact = all(usages)
    turns = _turns([message for message in rest if message.role != "exit"], is_exact, findings)
    prompt_tok = sum(estimate_tok(len(text_of(message.content))) for message in prompt)
    first = usages[0]
    yield Sample(
        prompt_id=clean(file.instance_id or _stem(place)),
        prompt_tok=first[0] if is_exact and first else prompt_tok,
        turns=turns.build(),
        status=_end(file, rest),
        is_exact=is_exact,
    )


def _turns(messages: Sequence[Message], is_exact: bool, findings: Findings) -> TurnBuilder:
    turns = TurnBuilder(findings)
    asked_s: float | None = None
    for message in messages:
        if message.role == "assistant":
            usage = _usage(message) if is_exact else None
            turns.generate(usage[1] if usage else estimate_tok(message.num_chars), usage[0] if usage else None)
            asked_s = _time_s(message)
            continue
        text = text_of(message.content)
        status, how = _status(message, text)
        answered_s = _time_s(message)
        latency_s = None if asked_s is None or answered_s is None else answered_s - asked_s
        turns.observe(TOOL, estimate_tok(len(text)), status, latency_s, how=how)
    return turns


def _status(message: Message, text: str) -> tuple[ToolStatus, str]:
    """By exit code; without one the command was not run to its end, and only the text may say why."""
    code = (message.extra or {}).get("returncode")
    if not isinstance(code, int) or isinstance(code, bool):
        written = _RETURN_CODE.match(text)
        code = int(written[1]) if written else None
    by_text = of_text(text)
    if code is not None:
        is_killed = code < 0 and by_text == "timeout"
        return ("timeout" if is_killed else of_exit_code(code)), "status_exit_code"
    if _REFUSED.match(text):
        return "error", "invalid_action"
    return (by_text, "status_text") if by_text != "ok" else ("unknown", "")


def _usage(message: Message) -> tuple[int, int] | None:
    response = (message.extra or {}).get("response")
    found = response.get("usage") if isinstance(response, dict) else None
    if not isinstance(found, dict):
        return None
    usage = convert(found, Usage)
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    if min(usage.prompt_tokens, usage.completion_tokens) < 0:
        raise RowError("a message's usage has a negative token count")
    return usage.prompt_tokens, usage.completion_tokens


def _time_s(message: Message) -> float | None:
    return as_float((message.extra or {}).get("timestamp"))


def _end(file: _File, rest: Sequence[Message]) -> TrajectoryStatus:
    status = file.info.exit_status
    if status:
        return "completed" if status == "Submitted" else "truncated" if status in LIMITS else "aborted"
    last = next(message for message in reversed(rest) if message.role == "assistant")
    written = text_of(last.content) + str([call.called.arguments for call in last.calls])
    return "completed" if any(word in written for word in FINAL_WORDS) else "aborted"


def _stem(place: Place) -> str:
    name = place.path.name
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(suffix) + ("" if place.number is None else f"#{place.number}")


IMPORTER = ImporterSpec(
    name="mini-swe-agent",
    summary="mini-swe-agent trajectories, v1 and v2 (.traj.json)",
    sniff=sniff,
    read=read,
    identify=identify,
)
