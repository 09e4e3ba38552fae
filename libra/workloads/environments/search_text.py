"""How a search's return stands in the context."""

from __future__ import annotations

from collections.abc import Sequence

from libra.workloads.tools.corpus import Passage

MAX_PASSAGE_CHARS = 1_000
"""Wikipedia in pieces of 100 words stays below it; a whole article would fill the context."""


def information(passages: Sequence[Passage], reason: str = "") -> str:
    """`reason` stands where there are no passages."""
    text = "\n".join(passage.text[:MAX_PASSAGE_CHARS] for passage in passages) or reason
    return f"<information>{text}</information>"
