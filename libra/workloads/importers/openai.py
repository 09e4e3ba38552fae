"""OpenAI chats with tool calls: one chat a line or file, and the result files of tau-bench.

Groups: trials of one task (tau-bench), else chats of one folder with an identical prompt (all messages before the first
of the assistant). The tool schemas that the model was given are not in such dumps, so prompts are understated. The
files of tau2-bench have the same shape, with the usage beside each message; no real one was at hand to check.
"""

from __future__ import annotations

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
    clean,
    convert,
    digest,
    shown,
)
from libra.workloads.importers.chat import USER, Chat, Message, is_chat, read_chat
from libra.workloads.importers.text import text_of

STOP_WORD = "###STOP###"
"""The simulated user of tau-bench ends a conversation so."""
FINAL_TOOLS = ("transfer_to_human_agents",)
"""A call of these ends a conversation of tau-bench."""


class _Row(msgspec.Struct):
    messages: list[Message] = []
    traj: list[Message] = []
    task_id: str | int | None = None
    trial: str | int | None = None
    prompt_id: str | int | None = None
    reward: float | None = None
    reward_info: dict[str, Any] | None = None
    info: dict[str, Any] | None = None

    @property
    def is_task(self) -> bool:
        return self.task_id is not None and self.trial is not None


def sniff(value: Any) -> int:
    """See `ImporterSpec`. Other formats hold chats too, so a chat alone is no sure sign."""
    if is_chat(value):
        return 1
    if not isinstance(value, dict):
        return 0
    is_task = "task_id" in value and "trial" in value
    if is_chat(value.get("traj")) or is_chat(value.get("messages")):
        return 2 if is_task else 1
    return 0


def identify(value: Any) -> str | None:
    """See `ImporterSpec`."""
    if not isinstance(value, dict) or value.get("task_id") is None or value.get("trial") is None:
        return None
    return f"task {value['task_id']} trial {value['trial']}"


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample]:
    """See `ImporterSpec`."""
    row = _Row(messages=convert(value, list[Message])) if isinstance(value, list) else convert(value, _Row)
    messages = row.traj or row.messages
    if not messages:
        raise RowError("no messages")
    chat = read_chat(messages, findings)
    findings.note("prompts of chats leave out the tool schemas: they are not in the dump")
    if row.is_task:
        task = f"task {row.task_id} {_task_text(row, messages)}"
        prompt_id, group = f"task-{row.task_id}-{digest(task)}", f"{shown(place.path)} {task}"
    else:
        findings.note("chats without task and trial: those of a folder with identical prompts are a group")
        prompt_id = f"prompt-{digest(chat.prompt_text)}" if row.prompt_id is None else str(row.prompt_id)
        group = f"{shown(place.path.parent)} {prompt_id}"
    yield Sample(
        prompt_id=clean(prompt_id),
        prompt_tok=chat.prompt_tok,
        turns=chat.turns.build(),
        group=group,
        reward=_reward(row, findings),
        status=_end_of_task(chat) if row.is_task else _end(chat),
        is_exact=chat.turns.is_exact,
    )


def _task_text(row: _Row, messages: list[Message]) -> str:
    """What makes two tasks of equal number the same: the system prompt and the simulated user's instruction."""
    task = (row.info or {}).get("task")
    instruction = task.get("instruction") if isinstance(task, dict) else None
    system = text_of(messages[0].content) if messages[0].role == "system" else ""
    return f"{system}\n{instruction}"


def _reward(row: _Row, findings: Findings) -> float | None:
    found = row.reward if row.reward is not None else (row.reward_info or {}).get("reward")
    reward = as_float(found)
    if found is not None and reward is None:
        findings.count("bad_reward")
    return reward


def _end(chat: Chat) -> TrajectoryStatus:
    """A chat that stops at a call or a return, or at a length limit, goes on in truth."""
    is_cut = chat.turns.is_waiting or bool(chat.last.calls) or chat.last.finish_reason == "length"
    return "truncated" if is_cut else "completed"


def _end_of_task(chat: Chat) -> TrajectoryStatus:
    """tau-bench: the user or a final tool ends the conversation, else the limit of steps does."""
    last = chat.last
    if last.role == USER:
        return "completed" if STOP_WORD in text_of(last.content) else "truncated"
    return "completed" if last.name in FINAL_TOOLS else _end(chat)


IMPORTER = ImporterSpec(
    name="openai",
    summary="OpenAI chats with tool calls, one a line or file; result files of tau-bench (.json, .jsonl)",
    sniff=sniff,
    read=read,
    identify=identify,
)
