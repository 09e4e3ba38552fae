"""What a pickle holds as JSON would hold it, within bounds: a small file may describe an endless or a vast value."""

from __future__ import annotations

from typing import Any

from libra.workloads.importers.arrays import Array

MAX_DEPTH = 64
"""Of lists and dicts in one another; a rollout's metadata has a handful."""
MAX_INT = 2**63 - 1
"""Larger ones are no counts, and Python refuses to print very large ones."""


class PlainError(ValueError):
    """A value that cannot be written down; the text is the reason."""


class Plain:
    """Makes values plain, at most `num_values` of them in all. Arrays of more than one dimension become None."""

    def __init__(self, num_values: int) -> None:
        self._left = num_values

    def of(self, value: Any, depth: int = 0) -> Any:
        """Raises `PlainError`."""
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise PlainError("nested too deep, or far larger than its file")
        if value is None or isinstance(value, str | bool | float):
            return value
        if isinstance(value, int):
            if not -MAX_INT <= value <= MAX_INT:
                raise PlainError("a number of more than 64 bits")
            return value
        if isinstance(value, list | tuple):
            return [self.of(each, depth + 1) for each in value]
        if isinstance(value, dict):
            return {str(key): self.of(each, depth + 1) for key, each in value.items()}
        if isinstance(value, bytes):
            return f"<{len(value)} bytes>"
        return self._numbers(value) if isinstance(value, Array) else f"<{type(value).__name__}>"

    def _numbers(self, array: Array) -> Any:
        try:
            found = array.numbers()
        except (ValueError, TypeError, OverflowError) as error:
            raise PlainError(str(error)) from None
        self._left -= len(found or ())
        return found[0] if found and not array.shape else found
