"""Zip archives of rollouts: torch's files (slime) without torch, and inspect_ai's logs. Anything else is refused.

Sizes are bounded, whatever an archive promises, and nothing is unpacked to disk or run.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import zstandard

from libra.workloads.importers.base import Place
from libra.workloads.importers.inspect_ai import log_rows
from libra.workloads.importers.pickles import PickleError, read_pickle
from libra.workloads.importers.plain import Plain, PlainError

ZIP_MAGIC = b"PK\x03\x04"
MAX_BYTES = 4 << 30
"""Unpacked, of one archive: a step of 512 samples of 40,000 tokens pickles to 400 MB."""
VALUES_PER_BYTE = 1
"""A pickled value takes a byte and more; references to one that came before make a bomb of a small file."""
ZSTANDARD = 93
LOCAL_HEADER_BYTES = 30
_SAMPLE = re.compile(r"samples/[^/]+\.json")
_CHUNKED = re.compile(r"samples/([^/]+)/sample\.json")


class Problem(str):
    """Why something in an archive is not a row."""

    __slots__ = ()


class _Archive:
    """Members of a zip, read within `MAX_BYTES` in all."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file, self._left = file, MAX_BYTES
        self.names = file.namelist()
        self.storage = lru_cache(maxsize=1)(self._storage)
        self.prefix = ""

    def read(self, name: str) -> bytes:
        """Raises `ValueError` with the reason."""
        info = self._file.getinfo(name)
        if info.file_size > self._left:
            raise ValueError(f"{name} and what was read before unpack to more than {MAX_BYTES >> 30} GiB")
        try:
            content = self._zstandard(info) if info.compress_type == ZSTANDARD else self._file.read(info)
        except (
            zipfile.BadZipFile,
            zlib.error,
            zstandard.ZstdError,
            EOFError,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise ValueError(f"{name} is damaged or not readable: {error}") from None
        self._left -= len(content)
        return content

    def _zstandard(self, info: zipfile.ZipInfo) -> bytes:
        """Python's zipfile knows this method from 3.14 on only; a member may be several frames."""
        raw = self._file.fp
        assert raw is not None, "open"
        raw.seek(info.header_offset)
        header = raw.read(LOCAL_HEADER_BYTES)
        raw.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)
        packed = raw.read(info.compress_size)
        reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
        return reader.read(min(info.file_size, self._left))

    def _storage(self, key: str) -> bytes:
        name = f"{self.prefix}data/{key}"
        if name not in self.names:
            raise ValueError(f"the tensor storage {key!r} is missing")
        return self.read(name)


def read_archive(path: Path) -> Iterator[tuple[Place, Any]]:
    """Rows of an archive; a `Problem` stands where there should be one."""
    try:
        with zipfile.ZipFile(path) as file:
            archive = _Archive(file)
            pickled = [name for name in archive.names if name == "data.pkl" or name.endswith("/data.pkl")]
            if pickled:
                yield from _torch_rows(path, archive, pickled[0])
            elif "header.json" in archive.names or any(_SAMPLE.fullmatch(name) for name in archive.names):
                yield from _log_rows(path, archive)
            else:
                yield Place(path), Problem("a zip archive, and neither torch's nor inspect_ai's")
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        yield Place(path), Problem(f"truncated or damaged archive: {error}")


def _torch_rows(path: Path, archive: _Archive, name: str) -> Iterator[tuple[Place, Any]]:
    archive.prefix = name.removesuffix("data.pkl")
    content = archive.read(name)
    try:
        found = read_pickle(content, archive.storage)
    except PickleError as error:
        yield Place(path), Problem(f"the pickle inside was not loaded: {error}")
        return
    samples = found.get("samples") if isinstance(found, dict) else found
    if not isinstance(samples, list) or not samples:
        keys = ", ".join(str(key)[:20] for key in list(found)[:6]) if isinstance(found, dict) else type(found).__name__
        yield Place(path), Problem(f"a torch file without `samples`, so no rollout dump (it holds {keys})")
        return
    rollout_id = found.get("rollout_id") if isinstance(found, dict) else None
    plain = Plain(VALUES_PER_BYTE * (len(content) + path.stat().st_size))
    for number, sample in enumerate(samples, start=1):
        place = Place(path, number, "sample")
        try:
            row = plain.of(sample)
        except PlainError as error:
            yield place, Problem(f"not loaded: {error}")
            continue
        if not isinstance(row, dict):
            yield place, Problem(f"a sample is a {type(row).__name__}, no dict")
            continue
        yield place, row | {"dump_rollout_id": plain.of(rollout_id)}


def _log_rows(path: Path, archive: _Archive) -> Iterator[tuple[Place, Any]]:
    header: dict[str, Any] = {}
    for name in ("header.json", "_journal/start.json"):
        if name in archive.names:
            found = _json(archive, name)
            header = found if isinstance(found, dict) else {}
            break
    for name in archive.names:
        place = Place(path, member=name)
        if chunked := _CHUNKED.fullmatch(name):
            yield place, Problem(f"sample {chunked[1]} is stored in chunks, which are not read")
        if not _SAMPLE.fullmatch(name):
            continue
        found = _json(archive, name)
        yield place, found if isinstance(found, Problem) else log_rows(header, [found])[0]


def _json(archive: _Archive, name: str) -> Any:
    try:
        return json.loads(archive.read(name))
    except RecursionError:
        return Problem("nested too deep")
    except ValueError as error:
        return Problem(f"no JSON: {error}")
