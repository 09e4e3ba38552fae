"""Token counts of texts without their tokenizer, and the plain text of chat contents."""

from __future__ import annotations

from typing import Any

CHARS_PER_TOK = 4
"""The usual rule for English; code and JSON deviate. Reports say what was counted so, and its error where known."""


def estimate_tok(num_chars: int) -> int:
    """chars/4, rounded up: no text that is there counts 0."""
    return -(-num_chars // CHARS_PER_TOK)


def text_of(content: Any) -> str:
    """Text of a chat message's content: a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(text_of(part) for part in content)
    if isinstance(content, dict):
        found = content.get("text", content.get("content", ""))
        return found if isinstance(found, str) else ""
    return ""
