"""The event log: one JSON line for each event (`{"e": ...}`) and each command that answered it (`{"c": ...}`), zstd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import zstandard

from libra.core.commands import Command
from libra.core.errors import StoreError
from libra.core.events import Event
from libra.results.atomic import store_errors

LOG_NAME = "events.jsonl.zst"

_LEVEL = 3
"""Fixed, because bytes are compared; the default of zstd."""

_BLOCK_BYTES = 1 << 18
"""Lines are handed on in blocks of this size, so a killed run loses less than a second of its log."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: an event or a command."""

    e: Event | None = None
    c: Command | None = None


class LogWriter:
    """Appends decisions. Whole lines reach the file in blocks, so what a dead process leaves behind is readable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_events = self.num_commands = 0
        self._encoder = msgspec.json.Encoder()
        self._block = bytearray()
        with store_errors(path):
            self._file = path.open("wb")
        self._stream = zstandard.ZstdCompressor(level=_LEVEL, threads=0).stream_writer(self._file, closefd=False)

    def write(self, event: Event, commands: Sequence[Command]) -> None:
        """Raises `StoreError` when the disk is full."""
        block, encode = self._block, self._encoder.encode
        block += b'{"e":%b}\n' % encode(event)
        for command in commands:
            block += b'{"c":%b}\n' % encode(command)
        self.num_events += 1
        self.num_commands += len(commands)
        if len(block) >= _BLOCK_BYTES:
            self._hand_on()

    def flush(self) -> None:
        """Hand on what has been written: a reader sees it, and a killed process does not lose it."""
        self._hand_on()

    def close(self) -> None:
        """Complete the file; safe to call twice."""
        if self._file.closed:
            return
        try:
            self._hand_on()
            with store_errors(self.path):
                self._stream.flush(zstandard.FLUSH_FRAME)
        finally:
            self._file.close()

    def _hand_on(self) -> None:
        with store_errors(self.path):
            self._stream.write(self._block)
            self._stream.flush(zstandard.FLUSH_BLOCK)
            self._file.flush()
        self._block.clear()


def read_log(path: Path) -> Iterator[Event | Command]:
    """Events and commands in order; of a log that was cut off, its whole lines. Other damage raises `StoreError`."""
    decode = msgspec.json.Decoder(Line).decode
    number = 0
    for number, raw in enumerate(_lines(path), 1):
        try:
            line = decode(raw)
        except msgspec.MsgspecError as error:
            raise StoreError(f"unreadable line {number}: {error}", where=str(path)) from error
        found = line.e if line.e is not None else line.c
        if found is None:
            raise StoreError(f"line {number} holds neither an event nor a command", where=str(path))
        yield found


def _lines(path: Path) -> Iterator[bytes]:
    rest = b""
    if not path.exists():
        raise StoreError("no event log: only a cell that has run to its end keeps one", where=str(path.parent))
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            while chunk := stream.read(_BLOCK_BYTES):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from whole
    except (OSError, zstandard.ZstdError) as error:
        raise StoreError(f"cannot read the event log: {error}", where=str(path)) from error
