"""What an importer is: a spec with a sniffer of single rows and a reader that turns a row into samples.

A row is one JSON value: a line of a JSON Lines file, an element of a list of records, or a whole JSON file. Readers
convert it with typed structs, so a missing or impossible field is one `RowError` with its place, never a traceback.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from libra.core.records import TrajectoryStatus, Turn
from libra.workloads.importers.text import CHARS_PER_TOK

T = TypeVar("T")
BY_CHARS = f"chars/{CHARS_PER_TOK} (no tokenizer)"
DIGEST_CHARS = 12
"""48 bits: among a million prompts two share an id with a probability of 0.2 %."""


class RowError(ValueError):
    """A row that holds no usable trajectory; its text is the reason that the report gives."""


@dataclass(frozen=True)
class Place:
    """A line of a file or an element of a list (`unit`; both count from 1), or None: the whole file.

    `member` is a file in an archive.
    """

    path: Path
    number: int | None = None
    unit: str = "line"
    member: str | None = None

    def __str__(self) -> str:
        name = shown(self.path) if self.member is None else f"{shown(self.path)}, {printable(self.member)}"
        return name if self.number is None else f"{name}, {self.unit} {self.number}"


@dataclass(frozen=True)
class Sample:
    """A trajectory before it has its number. `group` names the prompt's visit; None: a group of its own.

    `uid` is a name that the dump gives to this trajectory alone: what comes with it again is a copy. `estimate` says
    how tokens were counted where `is_exact` is false.
    """

    prompt_id: str
    prompt_tok: int
    turns: tuple[Turn, ...]
    group: str | None = None
    reward: float | None = None
    status: TrajectoryStatus = "completed"
    is_exact: bool = False
    uid: str | None = None
    estimate: str = BY_CHARS


@dataclass
class Findings:
    """What readers notice on the way: counts by the keys of `report.COUNTED`, and sentences, each kept once.

    `measured` pairs (estimated, true) tokens where a dump holds both.
    """

    counts: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)
    measured: list[tuple[int, int]] = field(default_factory=list)

    def count(self, what: str, num: int = 1) -> None:
        self.counts[what] += num

    def note(self, sentence: str) -> None:
        self.notes[printable(sentence)] = None

    def add(self, other: Findings) -> None:
        """Take over what a row gave, once it is known to be kept."""
        self.counts.update(other.counts)
        self.notes.update(other.notes)
        self.measured += other.measured


@dataclass(frozen=True)
class ImporterSpec:
    """A dump format.

    `sniff` gives 0 (not this format), 1 (may be read as it) or 2 (surely it). `read` raises `RowError`, or yields one
    where other samples of the row are good. `identify` names a row by the dump's own ids; rows without a name may
    repeat within a file, as equal samples of one prompt do.
    """

    name: str
    summary: str
    sniff: Callable[[Any], int]
    read: Callable[[Any, Place, Findings], Iterable[Sample | RowError]]
    identify: Callable[[Any], str | None] = lambda value: None


def shown(path: Path) -> str:
    """A path as text that can be printed and stored, whatever bytes its name has."""
    return printable(str(path))


def printable(text: str) -> str:
    """The text with `?` for what UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode()


def convert(value: Any, kind: type[T]) -> T:
    """`msgspec.convert` with the reason as a `RowError`."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise RowError(str(error)) from None
    except UnicodeEncodeError:  # msgspec looks fields up by the UTF-8 of a key
        raise RowError("a key or value holds bytes that are no text") from None


def as_float(value: Any) -> float | None:
    """A finite number as float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def digest(text: str) -> str:
    """Short stable name of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]


def clean(text: str, max_chars: int = 64) -> str:
    """A name that UTF-8 can hold, on one line and of bearable length."""
    return " ".join(printable(text).split())[:max_chars]
