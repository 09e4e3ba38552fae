r"""The content of the last `\boxed{...}` in a text, with its braces counted: `\boxed{\frac{1}{2}}` is `\frac{1}{2}`."""

from __future__ import annotations

import re
from collections.abc import Sequence

_BOX = re.compile(r"\\boxed\s*\{")

# What stands as a number on its own: 12, -0.5, 7/6, \frac{7}{6}.
_NUMBER = r"-?\s*(?:\d+(?:\.\d+)?(?:/\d+)?|\\[dt]?frac\{-?\d+\}\{-?\d+\})"
_LIST = rf"{_NUMBER}(?:\s*,\s*{_NUMBER})*"
_PLAIN = re.compile(rf"\s*(?:{_NUMBER}|\\\{{\s*{_LIST}\s*\\\}}|[\[(]\s*{_NUMBER}\s*,\s*{_NUMBER}\s*[\])])\s*")


def last_boxed(text: str) -> str | None:
    r"""None without a box, or where the last one is never closed (cut off at the token limit).

    Escaped braces (`\{`, `\}`) are signs, not groups.
    """
    boxes = list(_BOX.finditer(text))
    return _group(text, boxes[-1].end()) if boxes else None


def last_boxed_of(completions: Sequence[str]) -> str | None:
    """Of the last completion that has a box at all; a box never spans two completions."""
    for completion in reversed(completions):
        if _BOX.search(completion):
            return last_boxed(completion)
    return None


def is_plain(answer: str) -> bool:
    """Whether an answer is a number, or a set or interval of numbers: nothing is left to compute.

    A verifier that evaluates both sides would take the question itself, copied into the box, for its answer.
    """
    return _PLAIN.fullmatch(answer) is not None


def _group(text: str, start: int) -> str | None:
    """From `start`, just after an opening brace, to the brace that closes it."""
    depth, at = 1, start
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at]
        at += 1
    return None
