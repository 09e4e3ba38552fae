"""The canonical trace on disk: trajectories with their header, as `.jsonl.gz` (a line each) or `.parquet` (a row each).

Everything that replays or studies real rollouts reads this one format; importers write it. A file is either whole and
valid or refused with the place and the reason: nothing is repaired or skipped here (that is the importers' work).
"""

from __future__ import annotations

import gzip
import io
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from libra.core.errors import TraceError, nearest_match
from libra.core.records import ToolReturn, Trajectory, Turn, VersionSpan

SCHEMA_VERSION = 1
SUFFIXES = (".jsonl.gz", ".parquet")
HEADER_KEY = b"libra.header"
"""Key of the header in the parquet file's key-value metadata."""
HEADER_BYTES = 1 << 20
"""No header is longer; a dump's first line may be."""
MAX_INT = 2**63 - 1
"""Parquet's int64."""
GZIP_LEVEL = 6
"""zlib's default: level 9 gains under 1 % on traces of small numbers and takes several times as long."""


class TraceHeader(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where a trace comes from. `token_counting` says how the counts were made and how far they may be off.

    `created_from` names the input files; `notes` says what a reader must know of them, one sentence each.
    """

    source: str
    token_counting: str
    created_from: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _FileHeader(TraceHeader, frozen=True, kw_only=True):
    """`num_trajectories` lets a file that was cut between two lines be noticed; hand-made files may leave it out."""

    schema_version: int
    num_trajectories: int | None = None


def write_trace(path: Path, header: TraceHeader, trajectories: Iterable[Trajectory]) -> None:
    """Write a trace under a temporary name and rename it; equal input gives equal bytes.

    The suffix of `path` chooses the format. Raises `TraceError` for another suffix, a trajectory that `problem_in`
    objects to, two with the same group and sample, none at all, or a place that cannot be written.
    """
    suffix = check_suffix(path)
    rows = tuple(trajectories)
    _check_all(rows, str(path), "trajectory")
    fields = {name: getattr(header, name) for name in TraceHeader.__struct_fields__}
    full = _FileHeader(**fields, schema_version=SCHEMA_VERSION, num_trajectories=len(rows))
    content = _jsonl_bytes(full, rows) if suffix == ".jsonl.gz" else _parquet_bytes(full, rows)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise TraceError(
            f"cannot be written: {error.strerror}", where=str(path), mend="name a file in a folder that can be written"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def is_trace(path: Path) -> bool:
    """Whether a file says that it is a canonical trace, whole or not."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.name.endswith(".parquet"):
            return HEADER_KEY in (pq.read_schema(path).metadata or {})
        if path.name.endswith(".jsonl.gz"):
            with gzip.open(path) as file:
                return b'"schema_version"' in file.readline(HEADER_BYTES)
    except (OSError, EOFError, zlib.error, pa.ArrowException):
        return False
    return False


def read_trace(path: Path) -> tuple[TraceHeader, tuple[Trajectory, ...]]:
    """Header and trajectories in file order.

    Raises `TraceError` (file, line or row, reason) when the file is absent, truncated, corrupted, of another schema
    version, has unknown keys, or holds anything that `write_trace` would refuse.
    """
    suffix = check_suffix(path)
    if not path.is_file():
        raise TraceError("no such file", where=str(path), mend="`libra import FORMAT FILE... -o OUT` makes a trace")
    header, rows = _read_jsonl(path) if suffix == ".jsonl.gz" else _read_parquet(path)
    if header.num_trajectories not in (None, len(rows)):
        raise TraceError(
            f"truncated: the header promises {header.num_trajectories} trajectories, the file holds {len(rows)}",
            where=str(path),
            mend="copy or import the file again",
        )
    line, first = ("row", 0) if suffix == ".parquet" else ("line", 2)
    _check_all(rows, str(path), line, first)
    fields = {name: getattr(header, name) for name in TraceHeader.__struct_fields__}
    return TraceHeader(**fields), rows


def problem_in(trajectory: Trajectory) -> str | None:
    """What makes a trajectory impossible, in words; None for a sound one.

    Sound: text that UTF-8 can hold, counts in [0, 2**63), at least one turn, a tool return after each turn but the
    last, finite reward, finite latencies from 0 up, version spans that sum to their turn.
    """
    if not trajectory.turns:
        return "no turns"
    counts = {"group": trajectory.group, "sample": trajectory.sample, "prompt_tok": trajectory.prompt_tok}
    texts = [trajectory.prompt_id]
    for index, turn in enumerate(trajectory.turns):
        is_last = index == len(trajectory.turns) - 1
        if is_last != (turn.tool is None):
            return f"turn {index}: " + ("the last turn has a tool return" if is_last else "no tool return before turn")
        if problem := _problem_in_turn(turn):
            return f"turn {index}: {problem}"
        texts += [turn.tool.tool] if turn.tool else []
    if trajectory.reward is not None and not math.isfinite(trajectory.reward):
        return f"reward is {trajectory.reward}"
    return _bad_count(counts) or next((f"{text!r} is no valid text" for text in texts if not _is_utf8(text)), None)


def _problem_in_turn(turn: Turn) -> str | None:
    counts = {"generated_tok": turn.generated_tok}
    if turn.tool:
        counts["payload_tok"] = turn.tool.payload_tok
        latency_s = turn.tool.latency_s
        if latency_s is not None and not 0 <= latency_s < math.inf:
            return f"latency_s is {latency_s}"
    for span in turn.spans:
        if problem := _bad_count({"version": span.version, "num_tok": span.num_tok}):
            return problem
    if turn.spans and sum(span.num_tok for span in turn.spans) != turn.generated_tok:
        return f"version spans do not sum to generated_tok {turn.generated_tok}"
    return _bad_count(counts)


def _bad_count(counts: dict[str, int]) -> str | None:
    return next((f"{name} is {count}" for name, count in counts.items() if not 0 <= count <= MAX_INT), None)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_all(rows: Sequence[Trajectory], where: str, unit: str, first: int = 0) -> None:
    seen: dict[tuple[int, int], int] = {}
    for number, trajectory in enumerate(rows, start=first):
        place = f"{where}, {unit} {number}"
        if problem := problem_in(trajectory):
            raise TraceError(problem, where=place, mend="drop or mend this trajectory")
        earlier = seen.setdefault((trajectory.group, trajectory.sample), number)
        if earlier != number:
            raise TraceError(
                f"group {trajectory.group} sample {trajectory.sample} stands in {unit} {earlier} already",
                where=place,
                mend="drop the duplicate",
            )
    if not rows:
        raise TraceError("no trajectories", where=where, mend="import at least one")


def check_suffix(path: Path) -> str:
    """Suffix that chooses the format; raises `TraceError` for any other. For callers with long work before writing."""
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return suffix
    raise TraceError(
        "no name of a trace file",
        where=str(path),
        value="".join(path.suffixes),
        allowed=SUFFIXES,
        mend="`libra import FORMAT FILE... -o OUT.jsonl.gz` turns a rollout dump into a trace",
    )


def _jsonl_bytes(header: _FileHeader, rows: Sequence[Trajectory]) -> bytes:
    encoder = msgspec.json.Encoder()
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=buffer, mtime=0) as file:
        file.write(encoder.encode(header) + b"\n")
        file.writelines(encoder.encode(row) + b"\n" for row in rows)
    return buffer.getvalue()


def _parquet_bytes(header: _FileHeader, rows: Sequence[Trajectory]) -> bytes:
    import pyarrow as pa  # half a second to import, and only some verbs touch traces
    import pyarrow.parquet as pq

    spans = pa.list_(pa.struct([("version", pa.int64()), ("num_tok", pa.int64())]))
    tool = pa.struct(
        [("tool", pa.string()), ("payload_tok", pa.int64()), ("status", pa.string()), ("latency_s", pa.float64())]
    )
    turns = pa.list_(pa.struct([("generated_tok", pa.int64()), ("tool", tool), ("spans", spans)]))
    columns = {"prompt_id": pa.string(), "group": pa.int64(), "sample": pa.int64(), "prompt_tok": pa.int64()}
    columns |= {"turns": turns, "reward": pa.float64(), "status": pa.string()}
    schema = pa.schema(list(columns.items()), metadata={HEADER_KEY: msgspec.json.encode(header)})
    table = pa.Table.from_pylist([msgspec.structs.asdict(row) | {"turns": _plain(row.turns)} for row in rows], schema)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


def _plain(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    asdict = msgspec.structs.asdict
    return [
        {
            "generated_tok": turn.generated_tok,
            "tool": asdict(turn.tool) if turn.tool else None,
            "spans": [asdict(span) for span in turn.spans],
        }
        for turn in turns
    ]


def _read_jsonl(path: Path) -> tuple[_FileHeader, tuple[Trajectory, ...]]:
    lines = _lines(path)
    where = f"{path}, line 1"
    try:
        header = _header(next(lines, b""), where)
    except msgspec.MsgspecError as error:
        raise TraceError(
            f"no trace header: {error}", where=where, mend="`libra import` turns a rollout dump into a trace"
        ) from error
    decode = msgspec.json.Decoder().decode
    rows = []
    for number, line in enumerate(lines, start=2):
        try:
            rows.append(_trajectory(decode(line), f"{path}, line {number}"))
        except msgspec.MsgspecError as error:
            raise TraceError(
                f"no trajectory: {error}", where=f"{path}, line {number}", mend="drop or mend this line"
            ) from error
    return header, tuple(rows)


def _lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with gzip.open(path, "rb") as file:
            for number, line in enumerate(file, start=1):  # noqa: B007 - where it broke
                yield line
    except EOFError as error:
        raise TraceError(
            "truncated: the compressed stream ends early",
            where=f"{path}, after line {number}",
            mend="copy or import the file again",
        ) from error
    except (OSError, zlib.error) as error:
        raise TraceError(
            f"corrupted or not gzip: {error}", where=f"{path}, after line {number}", mend="copy or import it again"
        ) from error


def _read_parquet(path: Path) -> tuple[_FileHeader, tuple[Trajectory, ...]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            table = pq.read_table(file, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise TraceError(
            f"truncated, corrupted or not parquet: {error}", where=str(path), mend="copy or import the file again"
        ) from error
    text = (table.schema.metadata or {}).get(HEADER_KEY, b"")
    rows = []
    try:
        header = _header(text, f"{path}, key-value metadata {HEADER_KEY.decode()}")
        for number, row in enumerate(table.to_pylist()):
            rows.append(_trajectory(row, f"{path}, row {number}"))
    except msgspec.MsgspecError as error:
        where = f"{path}, row {len(rows)}" if text else str(path)
        raise TraceError(f"no trace: {error}", where=where, mend="`libra import` makes a trace from a dump") from error
    return header, tuple(rows)


def _header(text: bytes, where: str) -> _FileHeader:
    found = msgspec.json.decode(text)
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version is not None and version != SCHEMA_VERSION:
        raise TraceError(
            "schema version of another Libra",
            where=where,
            value=version,
            allowed=(SCHEMA_VERSION,),
            mend="import the source dump again with this version",
        )
    return msgspec.convert(found, _FileHeader)


def _trajectory(found: object, where: str) -> Trajectory:
    """Convert with unknown keys refused at every level: a misspelled `latency_s` must not turn into "unknown"."""
    trajectory = msgspec.convert(found, Trajectory)
    assert isinstance(found, dict)
    _refuse_unknown(found, Trajectory, where)
    for turn in found["turns"]:
        _refuse_unknown(turn, Turn, where)
        if turn.get("tool"):
            _refuse_unknown(turn["tool"], ToolReturn, where)
        for span in turn.get("spans") or ():
            _refuse_unknown(span, VersionSpan, where)
    return trajectory


def _refuse_unknown(found: dict[str, Any], struct: type[msgspec.Struct], where: str) -> None:
    if unknown := found.keys() - set(struct.__struct_fields__):
        key = min(unknown)
        raise TraceError(
            f"unknown key {key!r}",
            where=where,
            allowed=struct.__struct_fields__,
            nearest=nearest_match(key, struct.__struct_fields__),
        )
