"""Search-R1's rollouts as text, in both tag sets: `<search>` and `<information>`, and Libra's `<tool_call>` and
`<tool_response>` around bare queries.

A text is a file of its own, the `Solution string` of the trainer's log (which prints one sample in 64), or a field of a
JSON line. The prompt shows the tags as examples, so it is divided off first. Nothing but the texts is recorded: tokens
are estimated, times unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from libra.core.records import TrajectoryStatus
from libra.workloads.importers.base import Findings, ImporterSpec, Place, Sample, as_float, digest, printable, shown
from libra.workloads.importers.tagged import read_tagged
from libra.workloads.importers.text import estimate_tok
from libra.workloads.importers.turns import TurnBuilder

TEXT_KEYS = ("text", "sequence", "sequences_str", "solution_str", "completion", "response", "output")
PROMPT_KEYS = ("prompt", "question", "input")
REWARD_KEYS = ("reward", "score", "em")
TOOL = "search"
RULE_CHARS = 20
"""Dashes of the line that the trainer prints around a sample; it prints 32."""

_TAGS = re.compile(r"</search>|<information>|<tool_response>")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_WORKER = re.compile(r"^\(\w+ pid=\d+(?:, ip=[^)]*)?\) ?", re.MULTILINE)
_SOLUTION = re.compile(r"^Solution string: ?", re.MULTILINE)
_RULE = re.compile(rf"^-{{{RULE_CHARS},}}[ \t]*$", re.MULTILINE)
_SPECIAL = re.compile(r"<\|(?:im_start|im_end|endoftext)\|>")
_ASSISTANT = re.compile(r"(?:\A|\n|<\|im_start\|>)assistant\n")
_INSTRUCTED = re.compile(r"\bAnswer the (?:given )?question\b.*?\bQuestion:[^\n]*\n?", re.DOTALL)


def rollouts_in(text: str) -> list[tuple[int, str]]:
    """Rollouts of a plain text with the lines that they start in; none where the text has no such tags."""
    plain = _WORKER.sub("", _ANSI.sub("", text))
    starts = list(_SOLUTION.finditer(plain))
    if not starts:
        return [(1, plain)] if _TAGS.search(plain) else []
    ends = [*(match.start() for match in starts[1:]), len(plain)]
    found = []
    for start, end in zip(starts, ends, strict=True):
        rule = _RULE.search(plain, start.end(), end)
        found.append((plain.count("\n", 0, start.start()) + 1, plain[start.end() : rule.start() if rule else end]))
    return found


def sniff(value: Any) -> int:
    """See `ImporterSpec`. verl's lines may hold such texts too, and say more."""
    if isinstance(value, str):
        return 2
    return 1 if isinstance(value, dict) and _text_of(value) is not None else 0


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample]:
    """See `ImporterSpec`. Texts of one file with an identical prompt are a group."""
    row = value if isinstance(value, dict) else {}
    text = value if isinstance(value, str) else _text_of(row)
    assert text is not None, "sniffed"
    prompt = next((row[key] for key in PROMPT_KEYS if isinstance(row.get(key), str)), None)
    if prompt is None:
        prompt, text = _divided(text)
    if not prompt:
        findings.note("texts without a prompt: its length is unknown and counts 0")
    findings.note("texts of Search-R1: what does not end with an answer met the limit of turns or tokens")
    turns = TurnBuilder(findings)
    is_open = read_tagged(_SPECIAL.sub("", text), turns, plain_tool=TOOL)
    built = turns.build()
    is_answered = "</answer>" in text.rpartition("</information>")[2].rpartition("</tool_response>")[2]
    status: TrajectoryStatus = "completed" if is_answered and not is_open else "truncated"
    yield Sample(
        prompt_id=f"prompt-{digest(prompt)}" if prompt else f"{printable(place.path.name)}#{place.number or 1}",
        prompt_tok=estimate_tok(len(_SPECIAL.sub("", prompt))),
        turns=built,
        group=f"{shown(place.path)} {digest(prompt)}" if prompt else None,
        reward=_reward(row, findings),
        status=status,
    )


def _text_of(row: dict[str, Any]) -> str | None:
    texts = (row.get(key) for key in TEXT_KEYS)
    return next((text for text in texts if isinstance(text, str) and _TAGS.search(text)), None)


def _divided(text: str) -> tuple[str, str]:
    """Prompt and response: after the assistant's first marker, else after the question that ends the instruction."""
    instructed = _INSTRUCTED.search(text)
    marker = _ASSISTANT.search(text, instructed.end() if instructed else 0)
    if marker and (instructed or not _TAGS.search(text, 0, marker.start())):
        return text[: marker.end()], text[marker.end() :]
    return (text[: instructed.end()], text[instructed.end() :]) if instructed else ("", text)


def _reward(row: dict[str, Any], findings: Findings) -> float | None:
    found = next((row[key] for key in REWARD_KEYS if row.get(key) is not None), None)
    reward = as_float(found)
    if found is not None and reward is None:
        findings.count("bad_reward")
    return reward


IMPORTER = ImporterSpec(
    name="search-r1",
    summary="Search-R1 rollouts as text, either tag set: files, trainer logs (.txt), or fields of lines (.jsonl)",
    sniff=sniff,
    read=read,
)
