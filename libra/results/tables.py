"""Rows to parquet and back: explicit column types from the row structs, and equal rows give equal bytes."""

from __future__ import annotations

import io
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from libra.core.errors import StoreError
from libra.results.schemas import SCHEMA_VERSION, DecisionRow, EngineRow, StepRow, TrajectoryRow, VersionRow

TABLES: dict[str, type[msgspec.Struct]] = {
    "steps": StepRow,
    "trajectories": TrajectoryRow,
    "decisions": DecisionRow,
}
"""Table name -> row; each is `<name>.parquet` in a cell's folder."""

LIVE_TABLES: dict[str, type[msgspec.Struct]] = {"engines": EngineRow, "versions": VersionRow}
"""The same for what only live runs tell."""

_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
_VERSION_KEY = b"libra.schema"
_COMPRESSION_LEVEL = 3
"""Fixed, because bytes are compared: zstd's default, and a third of the time of its next useful step."""


def schema_of(row: type[msgspec.Struct]) -> pa.Schema:
    """Column types of a row struct, in its order; only `X | None` is nullable."""
    fields = []
    for field in msgspec.structs.fields(row):
        kinds = typing.get_args(field.type) if isinstance(field.type, types.UnionType) else (field.type,)
        (kind,) = (each for each in kinds if each is not types.NoneType)
        fields.append(pa.field(field.name, _TYPES[kind], nullable=len(kinds) > 1))
    return pa.schema(fields, metadata={_VERSION_KEY: str(SCHEMA_VERSION).encode()})


def table_of(rows: Sequence[msgspec.Struct], row: type[msgspec.Struct]) -> pa.Table:
    """A table of rows, in their order."""
    schema = schema_of(row)
    return pa.table({name: [getattr(each, name) for each in rows] for name in schema.names}, schema=schema)


def table_of_columns(columns: Mapping[str, Sequence[Any]], row: type[msgspec.Struct]) -> pa.Table:
    """A table of columns of equal length, one for each field of the row."""
    schema = schema_of(row)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def to_parquet(table: pa.Table) -> bytes:
    """The file's bytes: no creation time, no pandas metadata."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=_COMPRESSION_LEVEL, version="2.6")
    return sink.getvalue()


def read_table(cell_dir: Path, name: str) -> pa.Table:
    """A table of a finished cell. Raises `StoreError` when it is missing, damaged or of another schema version."""
    path = cell_dir / f"{name}.parquet"
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            f"cannot read the table: {error}", where=str(path), mend="remove the cell's folder; it runs again"
        ) from error
    found = (table.schema.metadata or {}).get(_VERSION_KEY, b"none").decode()
    if found != str(SCHEMA_VERSION):
        raise StoreError(f"schema version {found}; this version of libra reads {SCHEMA_VERSION}", where=str(path))
    return table
