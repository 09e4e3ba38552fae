"""From paths to rows: walks folders, unpacks gzip and archives, decodes JSON, JSON Lines and plain rollout texts, saves
what damaged files still hold."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libra.core.errors import TraceError
from libra.workloads.importers.archives import ZIP_MAGIC, Problem, read_archive
from libra.workloads.importers.base import Place, printable, shown
from libra.workloads.importers.inspect_ai import is_log, log_rows
from libra.workloads.importers.search_r1 import rollouts_in

DATA_SUFFIXES = (".json", ".jsonl", ".traj", ".json.gz", ".jsonl.gz", ".traj.gz", ".txt", ".pt", ".eval")
"""What is taken up when a folder is walked; a file that is named is always read."""
GZIP_MAGIC = b"\x1f\x8b"
PICKLE_MAGIC = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
PICKLE_REASON = (
    "a bare pickle: loading one may run code of its choice, so it is not read; torch.save writes an archive, which is"
)
GZIP_WINDOW = zlib.MAX_WBITS | 16
CHUNK_BYTES = 1 << 20


@dataclass
class Document:
    """Rows of one file, and what could not be decoded, with the reason."""

    path: Path
    rows: list[tuple[Place, Any]] = field(default_factory=list)
    problems: list[tuple[Place, str]] = field(default_factory=list)


def find_files(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Files to read, each once, folders in sorted order; and sentences on what was left aside.

    Raises `TraceError` for a path that does not exist or a folder without any dump.
    """
    found: dict[Path, Path] = {}
    notes: list[str] = []
    for path in paths:
        if not path.exists():
            raise TraceError("no such file or folder", where=str(path), mend="check the path")
        if not path.is_dir():
            if path.resolve() in found:
                notes.append(f"{shown(path)} is named twice: read once.")
            found.setdefault(path.resolve(), path)
            continue
        inside = sorted(each for each in path.rglob("*") if each.is_file())
        dumps = [each for each in inside if each.name.endswith(DATA_SUFFIXES)]
        aside = [each.name for each in inside if each not in set(dumps)]
        if aside:
            named = ", ".join(aside[:4]) + (", ..." if len(aside) > 4 else "")
            notes.append(
                f"{shown(path)}: {len(aside)} files are no dumps by their names, left aside ({printable(named)})."
            )
        for each in dumps:
            found.setdefault(each.resolve(), each)
    if not found:
        where = ", ".join(map(str, paths))
        raise TraceError("no dump in there", where=where, allowed=DATA_SUFFIXES, mend="name a file or another folder")
    return list(found.values()), notes


def load(path: Path) -> Document:
    """Decode one file; whatever is wrong with it becomes a problem, never an exception."""
    document, whole = Document(path), Place(path)
    try:
        with path.open("rb") as file:
            if file.read(len(ZIP_MAGIC)) == ZIP_MAGIC:
                for place, found in read_archive(path):
                    if isinstance(found, Problem):
                        document.problems.append((place, str(found)))
                    else:
                        document.rows.append((place, found))
                return document
        content = path.read_bytes()
    except OSError as error:
        document.problems.append((whole, f"cannot be read: {error.strerror}"))
        return document
    if content.startswith(GZIP_MAGIC):
        content, problem = _unpack(content)
        if problem:
            document.problems.append((whole, problem))
    if not content.strip():
        document.problems.append((whole, "empty"))
        return document
    if content.startswith(PICKLE_MAGIC):
        document.problems.append((whole, PICKLE_REASON))
        return document
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        # A file may be cut inside a character, or be text with one bad line: only NUL bytes mark it as binary.
        if b"\0" in content:
            document.problems.append((whole, "binary, no text"))
            return document
        text = content.decode("utf-8-sig", "surrogateescape")
    _decode(document, text)
    return document


def _unpack(content: bytes) -> tuple[bytes, str | None]:
    parts: list[bytes] = []
    rest = content
    while rest.startswith(GZIP_MAGIC):
        stream = zlib.decompressobj(GZIP_WINDOW)
        try:
            for start in range(0, len(rest), CHUNK_BYTES):
                parts.append(stream.decompress(rest[start : start + CHUNK_BYTES]))
                if stream.eof:
                    rest = stream.unused_data + rest[start + CHUNK_BYTES :]
                    break
            else:
                return b"".join(parts), "truncated: the compressed stream ends early; what stands before is read"
        except zlib.error as error:
            return b"".join(parts), f"corrupted: {error}; what stands before is read"
    return b"".join(parts), None


def _decode(document: Document, text: str) -> None:
    try:
        value = _parse(text)
    except ValueError as error:
        whole_problem = str(error)
    else:
        document.rows += _rows(document.path, value)
        return
    if text.lstrip().startswith("["):
        _decode_cut_list(document, text)
    elif not text.lstrip().startswith("{") and (found := rollouts_in(text)):
        document.rows += [(Place(document.path, line), rollout) for line, rollout in found]
    else:
        _decode_lines(document, text)
    if not document.rows:
        document.problems = [each for each in document.problems if each[0].number is None]
        document.problems.append((Place(document.path), f"neither JSON nor JSON Lines, or truncated: {whole_problem}"))


def _rows(path: Path, value: Any) -> Iterator[tuple[Place, Any]]:
    """A list of records is a row each, also in the wrappers of tau2-bench and inspect_ai; one of messages is a chat."""
    if is_log(value):
        value = log_rows(value, value["samples"])
    if isinstance(value, dict) and isinstance(value.get("simulations"), list):
        value = value["simulations"]
    is_list = isinstance(value, list) and value and not (isinstance(value[0], dict) and "role" in value[0])
    if not is_list:
        yield Place(path), value
        return
    for number, each in enumerate(value, start=1):
        yield Place(path, number, "element"), each


def _decode_lines(document: Document, text: str) -> None:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = Place(document.path, number)
        try:
            value = _parse(line)
        except ValueError as error:
            document.problems.append((place, f"no JSON: {error}"))
            continue
        if isinstance(value, dict | list):
            document.rows.append((place, value))
        else:
            document.problems.append((place, "neither an object nor a list"))


def _decode_cut_list(document: Document, text: str) -> None:
    """Elements of a list up to where it breaks. A chat that is cut is no row: its messages alone tell no end."""
    decoder = json.JSONDecoder()
    position, number, rows = text.index("[") + 1, 0, []
    while True:
        position = _skip(text, position)
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        number += 1
        rows.append((Place(document.path, number, "element"), value))
    if rows and not (isinstance(rows[0][1], dict) and "role" in rows[0][1]):
        document.rows += rows
        place = Place(document.path, number + 1, "element")
        document.problems.append((place, f"the list is truncated or broken after element {number}"))
    else:
        _decode_lines(document, text)


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    return position


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
