"""Arrays and tensors of a pickle, closed: their numbers are decoded when someone asks for them, and never executed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Storage = Callable[[str], bytes]
"""Bytes of a tensor storage by its key."""
DTYPES = {
    "Double": "<f8",
    "Float": "<f4",
    "Long": "<i8",
    "Int": "<i4",
    "Short": "<i2",
    "Char": "<i1",
    "Byte": "<u1",
    "Bool": "<u1",
}
"""Number types by torch's names of storages; half precision is left closed, no count is written in it."""
PLAIN_KINDS = "biuf"
ORDERS = ("<", ">", "|", "=")


class ArrayError(ValueError):
    """An array that does not hold together."""


@dataclass(frozen=True)
class Stored:
    """A tensor storage: where its bytes are, and of what type by torch's name."""

    source: Storage | None
    key: str
    kind: str


class Dtype:
    """A numpy number type; anything but plain numbers and booleans stays unknown."""

    def __init__(self, code: Any) -> None:
        self._code = code if isinstance(code, str) else ""
        self._order = "<"

    def build(self, state: Any) -> None:
        """The state of a pickled dtype; its second entry is the byte order."""
        if isinstance(state, tuple) and len(state) > 1 and isinstance(state[1], str) and state[1] in ORDERS:
            self._order = state[1]

    def known(self) -> np.dtype[Any]:
        if not self._code.isalnum() or len(self._code) > 3:
            raise ArrayError(f"numbers of the unknown type {self._code[:20]!r}")
        found = np.dtype(self._order.replace("=", "<") + self._code)
        if found.kind not in PLAIN_KINDS:
            raise ArrayError(f"numbers of the unknown type {self._code!r}")
        return found


class Array:
    """A tensor, or a numpy array whose state comes after it."""

    def __init__(self, shape: Any, storage: Stored | None = None, offset: Any = 0, strides: Any = ()) -> None:
        self.shape = _sizes(shape)
        self._storage, self._offset, self._strides = storage, _size(offset), _sizes(strides)
        self._dtype: Dtype | None = None
        self._raw = b""

    def build(self, state: Any) -> None:
        """numpy's state: version, shape, dtype, column order, bytes."""
        if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[4], bytes):
            raise ArrayError("an array of objects, or without its numbers")
        self.shape, self._dtype, self._raw = _sizes(state[1]), state[2], state[4]

    def numbers(self) -> list[Any] | None:
        """Numbers of an array of one dimension (or of none: one number); None where it is of a type left closed."""
        if len(self.shape) > 1:
            return None
        num = self.shape[0] if self.shape else 1
        if self._storage:
            kind = DTYPES.get(self._storage.kind)
            if kind is None or self._storage.source is None:
                return None
            step = self._strides[0] if self._strides else 1
            flat = np.frombuffer(self._storage.source(self._storage.key), kind)
            last = self._offset + (num - 1) * step
            if num and (last >= len(flat) or (num > 1 and step < 1)):
                raise ArrayError("a tensor reaches beyond its storage, or repeats it")
            found = flat[self._offset : last + 1 : max(step, 1)] if num else flat[:0]
            return [bool(each) for each in found] if self._storage.kind == "Bool" else list(found.tolist())
        if not isinstance(self._dtype, Dtype):
            raise ArrayError("an array without its type")
        return list(np.frombuffer(self._raw, self._dtype.known(), count=num).tolist())


def _size(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ArrayError(f"an array's size is a {type(value).__name__}, or below 0")
    return value


def _sizes(values: Any) -> Sequence[int]:
    if not isinstance(values, tuple | list):
        raise ArrayError("an array without a shape")
    return tuple(_size(value) for value in values)
