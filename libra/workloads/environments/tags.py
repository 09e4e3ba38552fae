"""Finds what a turn calls: the last tagged piece of the policy's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """`content` is what stands between the tags, stripped."""

    name: str
    content: str


def last_call(text: str, names: Sequence[str]) -> Call | None:
    """The piece that the last closing tag among `names` ends; None without one, or where nothing opens it."""
    end, name = max((text.rfind(f"</{name}>"), name) for name in names)
    start = text.rfind(f"<{name}>", 0, max(end, 0))
    return None if start < 0 else Call(name, text[start + len(name) + 2 : end].strip())
