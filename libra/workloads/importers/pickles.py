"""Reads a pickle as data: plain containers, numbers, text, and arrays that stay closed until they are asked for.

No function of the pickle's choice is ever called, and nothing is imported for it: the operations below are all there
are, and a global is one of `_BUILDERS` or an error. So a hostile file can at worst be refused. torch itself is not
needed; what a tensor's storage holds is read from the archive's raw bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from libra.workloads.importers.arrays import DTYPES, Array, ArrayError, Dtype, Storage, Stored

MAX_GLOBAL_CHARS = 120
"""Of a name in an error."""


class PickleError(ValueError):
    """The pickle is damaged, or holds what is not read; the text is the reason."""


class _Mark:
    """Where a container's items begin on the stack."""


class _Class:
    """A global that is a type and never made: torch's storages name their number type by it, numpy its arrays."""

    def __init__(self, name: str) -> None:
        self.name = name


MARK = _Mark()


def _first_as(kind: type) -> Callable[..., Any]:
    return lambda *values: kind(values[0]) if values else kind()


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Array:
    """torch._utils._rebuild_tensor_v2; `rest` holds flags, hooks and metadata."""
    if not isinstance(storage, Stored):
        raise PickleError("a tensor without a storage")
    return Array(shape, storage=storage, offset=offset, strides=strides)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """_codecs.encode: how protocol 2 writes bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise PickleError("bytes in an unknown encoding")
    return text.encode("latin-1")


def _numpy_scalar(dtype: Any, raw: Any = b"") -> Any:
    if not isinstance(dtype, Dtype) or not isinstance(raw, bytes):
        raise PickleError("a damaged numpy number")
    return np.frombuffer(raw, dtype.known(), count=1)[0].item()


_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")
_BUILDERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): lambda *pairs: dict(*pairs),
    ("collections", "defaultdict"): lambda *factory: {},
    ("torch", "Size"): _first_as(tuple),
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): lambda code, *flags: Dtype(code),
    **{(module, "scalar"): _numpy_scalar for module in _NUMPY},
    **{(module, "_reconstruct"): lambda *ignored: Array(()) for module in _NUMPY},
    **{(module, "set"): _first_as(list) for module in ("builtins", "__builtin__")},
    **{(module, "frozenset"): _first_as(list) for module in ("builtins", "__builtin__")},
    **{
        (module, kind): lambda *ignored: b""
        for module in ("builtins", "__builtin__")
        for kind in ("bytes", "bytearray")
    },
}
_CLASSES = {
    ("numpy", "ndarray"),
    ("builtins", "list"),
    ("builtins", "dict"),
    ("builtins", "int"),
    ("__builtin__", "list"),
    ("__builtin__", "dict"),
    ("__builtin__", "int"),
}
_STORAGE = re.compile(r"(\w+)Storage")


def _find(module: Any, name: Any) -> Any:
    if not isinstance(module, str) or not isinstance(name, str):
        raise PickleError("damaged: a global without a name")
    key = (module, name)
    if key in _BUILDERS:
        return _BUILDERS[key]
    if key in _CLASSES:
        return _Class(name)
    storage = _STORAGE.fullmatch(name) if module in ("torch", "torch.storage") else None
    if storage and (storage[1] in DTYPES or storage[1] in ("Untyped", "BFloat16", "Half")):
        return _Class(storage[1])
    raise PickleError(f"refers to {f'{module}.{name}'[:MAX_GLOBAL_CHARS]!r}, which is no plain data: not loaded")


class _Reader:
    """One pass over the operations. `load` is the only entry."""

    def __init__(self, content: bytes, storage: Storage | None) -> None:
        self._content, self._at, self._storage = content, 0, storage
        self._stack: list[Any] = []
        self._memory: dict[int, Any] = {}
        self._num_copied = 0

    def load(self) -> Any:
        operations = _OPERATIONS
        while True:
            code = self._take(1)[0]
            if code == _STOP:
                return self._pop()
            operation = operations.get(code)
            if operation is None:
                raise PickleError(
                    f"operation {code:#04x} at byte {self._at - 1:,} is not needed for plain data: not run"
                )
            operation(self)

    def _take(self, num: int) -> bytes:
        found = self._content[self._at : self._at + num]
        if len(found) < num or num < 0:
            raise PickleError("truncated: the pickle ends early")
        self._at += num
        return found

    def _number(self, form: str, size: int) -> Any:
        return struct.unpack(form, self._take(size))[0]

    def _sized(self, form: str, size: int) -> bytes:
        return self._take(self._number(form, size))

    def _text(self, form: str, size: int) -> None:
        self._stack.append(self._sized(form, size).decode("utf-8", "surrogatepass"))

    def _line(self) -> str:
        end = self._content.find(b"\n", self._at)
        if end < 0:
            raise PickleError("truncated: the pickle ends early")
        line = self._content[self._at : end].decode("utf-8", "replace")
        self._at = end + 1
        return line

    def _long(self, raw: bytes) -> None:
        self._stack.append(int.from_bytes(raw, "little", signed=True))

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack:
            raise PickleError("damaged: the pickle takes more than it gave")
        found = self._stack.pop()
        if found is MARK:
            raise PickleError("damaged: a mark stands where a value belongs")
        return found

    def _top(self) -> Any:
        found = self._pop()
        self._stack.append(found)
        return found

    def _items(self) -> list[Any]:
        for position in range(len(self._stack) - 1, -1, -1):
            if self._stack[position] is MARK:
                items = self._stack[position + 1 :]
                del self._stack[position:]
                return items
        raise PickleError("damaged: items without a mark")

    def _tuple(self, num: int) -> None:
        items = [self._pop() for _ in range(num)]
        self._stack.append(tuple(reversed(items)))

    def _append(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise PickleError("damaged: appends to what is no list")
        target += items

    def _set(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            raise PickleError("damaged: sets items of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float | None):  # a tuple nested deep enough breaks its own hash
                raise PickleError(f"a key of type {type(key).__name__}: not loaded")
            target[key] = value

    def _set_one(self) -> None:
        value = self._pop()
        self._set([self._pop(), value])

    def _remember(self, index: int) -> None:
        self._memory[index] = self._top()

    def _recall(self, index: int) -> None:
        if index not in self._memory:
            raise PickleError("damaged: recalls what was not stored")
        self._stack.append(self._memory[index])

    def _global(self) -> None:
        module = self._line()
        self._stack.append(_find(module, self._line()))

    def _stack_global(self) -> None:
        name = self._pop()
        self._stack.append(_find(self._pop(), name))

    def _reduce(self) -> None:
        arguments, builder = self._pop(), self._pop()
        if builder not in _BUILDERS.values() or not isinstance(arguments, tuple):
            raise PickleError("calls what is no builder of plain data: not called")
        # Each builder copies its first argument; a file that lets one text be copied again and again is a bomb.
        self._num_copied += len(arguments[0]) if arguments and isinstance(arguments[0], str | list | tuple) else 0
        if self._num_copied > len(self._content):
            raise PickleError("copies more than the file holds: not loaded")
        self._stack.append(builder(*arguments))

    def _build(self) -> None:
        """State of the only two things that have one; of dicts with attributes it is left out."""
        state, target = self._pop(), self._top()
        if isinstance(target, Array | Dtype):
            target.build(state)
        elif not isinstance(target, dict):
            raise PickleError("sets the state of what has none")

    def _persistent(self) -> None:
        """torch's only kind: ('storage', class, key, device, number of elements)."""
        found = self._pop()
        is_known = isinstance(found, tuple) and len(found) == 5 and isinstance(found[0], str) and found[0] == "storage"
        if not is_known or not isinstance(found[1], _Class) or not isinstance(found[2], str):
            raise PickleError("a reference that is no tensor storage")
        self._stack.append(Stored(self._storage, found[2], found[1].name))


_STOP = ord(".")
_OPERATIONS: dict[int, Callable[[_Reader], Any]] = {
    0x80: lambda r: r._take(1),  # protocol
    0x95: lambda r: r._take(8),  # frame
    ord("("): lambda r: r._push(MARK),
    ord("N"): lambda r: r._push(None),
    0x88: lambda r: r._push(True),
    0x89: lambda r: r._push(False),
    ord("}"): lambda r: r._push({}),
    ord("]"): lambda r: r._push([]),
    ord(")"): lambda r: r._push(()),
    0x8F: lambda r: r._push([]),  # a set, as a list
    0x90: lambda r: r._append(r._items()),
    0x91: lambda r: r._push(r._items()),  # a frozenset
    ord("J"): lambda r: r._push(r._number("<i", 4)),
    ord("K"): lambda r: r._push(r._take(1)[0]),
    ord("M"): lambda r: r._push(r._number("<H", 2)),
    0x8A: lambda r: r._long(r._sized("<B", 1)),
    0x8B: lambda r: r._long(r._sized("<i", 4)),
    ord("G"): lambda r: r._push(r._number(">d", 8)),
    ord("X"): lambda r: r._text("<I", 4),
    0x8C: lambda r: r._text("<B", 1),
    0x8D: lambda r: r._text("<Q", 8),
    ord("B"): lambda r: r._push(r._sized("<I", 4)),
    ord("C"): lambda r: r._push(r._sized("<B", 1)),
    0x8E: lambda r: r._push(r._sized("<Q", 8)),
    ord("q"): lambda r: r._remember(r._take(1)[0]),
    ord("r"): lambda r: r._remember(r._number("<I", 4)),
    0x94: lambda r: r._remember(len(r._memory)),
    ord("h"): lambda r: r._recall(r._take(1)[0]),
    ord("j"): lambda r: r._recall(r._number("<I", 4)),
    ord("a"): lambda r: r._append([r._pop()]),
    ord("e"): lambda r: r._append(r._items()),
    ord("s"): lambda r: r._set_one(),
    ord("u"): lambda r: r._set(r._items()),
    ord("t"): lambda r: r._push(tuple(r._items())),
    0x85: lambda r: r._tuple(1),
    0x86: lambda r: r._tuple(2),
    0x87: lambda r: r._tuple(3),
    ord("c"): lambda r: r._global(),
    0x93: lambda r: r._stack_global(),
    ord("R"): lambda r: r._reduce(),
    ord("b"): lambda r: r._build(),
    ord("Q"): lambda r: r._persistent(),
}


def read_pickle(content: bytes, storage: Storage | None = None) -> Any:
    """The value of a pickle. `storage` gives the bytes of a tensor's storage by its key. Raises `PickleError`."""
    try:
        return _Reader(content, storage).load()
    except PickleError:
        raise
    except (ArrayError, struct.error, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PickleError(f"damaged: {error}") from None
