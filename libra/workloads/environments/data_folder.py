"""Folders that `libra data prepare` writes and environments read.

- `manifest.json`: format, workload, where everything came from, and of each file SHA-256, bytes and rows.
- `train.jsonl`: one task a line; search-r1: id, question, answers; dapo-math: id, problem, answer.
- `held_out.jsonl`: the same; no question of one split stands in the other.
- `corpus.jsonl`, of search-r1 only: id, text (`libra.workloads.tools.corpus`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from libra.core.errors import ConfigError
from libra.workloads.environments.base import Split

FORMAT = 1
MANIFEST, CORPUS = "manifest.json", "corpus.jsonl"
FILES = {
    "search-r1": ("train.jsonl", "held_out.jsonl", CORPUS),
    "dapo-math": ("train.jsonl", "held_out.jsonl"),
}


class QuestionRow(msgspec.Struct, frozen=True):
    """Any of `answers` is right."""

    id: str
    question: str
    answers: list[str]


class ProblemRow(msgspec.Struct, frozen=True):
    """`answer` is a number or LaTeX, without a box."""

    id: str
    problem: str
    answer: str


class FileEntry(msgspec.Struct, frozen=True):
    """A file as it was written."""

    sha256: str
    bytes: int
    rows: int


class SourceEntry(msgspec.Struct, frozen=True):
    """A public file as it was downloaded, at a pinned revision."""

    repo: str
    file: str
    revision: str
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """Grows file by file while the folder is prepared."""

    workload: str
    format: int = FORMAT
    files: dict[str, FileEntry] = {}
    sources: tuple[SourceEntry, ...] = ()


Row = TypeVar("Row", bound=msgspec.Struct)


@dataclass(frozen=True)
class DataFolder:
    """A folder whose files are all there and of the right size."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path, workload: str) -> DataFolder:
        """Raises `ConfigError` for a folder of another workload, an unfinished one, or one whose files changed."""
        mend = f"libra data prepare {workload} --out {path}"
        manifest = read_manifest(path)
        if manifest is None:
            raise ConfigError("no prepared data there", where=str(path), mend=mend)
        if manifest.workload != workload:
            raise ConfigError("prepared for another workload", where=str(path), value=manifest.workload, mend=mend)
        for name in FILES[workload]:
            entry, file = manifest.files.get(name), path / name
            if entry is None or not file.is_file():
                raise ConfigError("the file is missing; its preparation did not end", where=str(file), mend=mend)
            if file.stat().st_size != entry.bytes:
                raise ConfigError(
                    f"the file changed: {entry.bytes:,} bytes were written",
                    where=str(file),
                    value=file.stat().st_size,
                    mend=mend,
                )
            if not entry.rows:
                raise ConfigError("the file is empty", where=str(file), mend=mend)
        return cls(path, manifest)

    def rows(self, split: Split, kind: type[Row]) -> list[Row]:
        """Raises `ConfigError` for a line without a column, or with one of another type."""
        return read_rows(self.path / f"{split}.jsonl", kind)


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """Rows of a file of JSON lines; unknown columns are left alone."""
    decoder, rows = msgspec.json.Decoder(kind), []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                rows.append(decoder.decode(line))
            except msgspec.MsgspecError as error:
                raise ConfigError(
                    f"not a row of this file: {error}",
                    where=f"{path}:{number}",
                    allowed=kind.__struct_fields__,
                    mend="prepare the folder again, or mend that line",
                ) from error
    return rows


def write_rows(path: Path, rows: Iterable[msgspec.Struct]) -> FileEntry:
    """Whole or not at all; what to put into the manifest."""
    encoder, digest = msgspec.json.Encoder(), hashlib.sha256()
    num_rows = num_bytes = 0
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        for row in rows:
            line = encoder.encode(row) + b"\n"
            file.write(line)
            digest.update(line)
            num_rows, num_bytes = num_rows + 1, num_bytes + len(line)
    os.replace(temporary, path)
    return FileEntry(digest.hexdigest(), num_bytes, num_rows)


def read_manifest(folder: Path) -> Manifest | None:
    """None where there is none. Raises `ConfigError` for one that cannot be read or is of another format."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"no manifest: {error}", where=str(path), mend="prepare into an empty folder") from error
    if manifest.format != FORMAT:
        raise ConfigError(
            "another format of prepared data", where=str(path), value=manifest.format, allowed=[FORMAT],
            mend="prepare into an empty folder",
        )  # fmt: skip
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Whole or not at all."""
    temporary = folder / (MANIFEST + ".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    os.replace(temporary, folder / MANIFEST)


def sha256_of(path: Path) -> str:
    """Of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
