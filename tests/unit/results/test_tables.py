"""Tables carry explicit types and their schema version, and equal rows give equal bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from libra.core.errors import StoreError
from libra.results.schemas import DecisionRow, TrajectoryRow
from libra.results.tables import LIVE_TABLES, TABLES, read_table, schema_of, table_of, table_of_columns, to_parquet

ROW = DecisionRow(1.5, 7, 2, 0, 1, 3, 4096, "prefix", 5000.0, 9000.0, 12.0)


def test_only_what_may_be_missing_is_nullable() -> None:
    tables = TABLES | LIVE_TABLES
    nullable = {name: [field.name for field in schema_of(row) if field.nullable] for name, row in tables.items()}
    assert nullable == {
        "steps": [], "trajectories": ["reward", "queue_s"], "decisions": [], "engines": [], "versions": [],
    }  # fmt: skip
    assert schema_of(TrajectoryRow).field("reward").type == pa.float64()


def test_rows_and_columns_give_one_table() -> None:
    names = DecisionRow.__struct_fields__
    columns = {name: [getattr(ROW, name)] * 2 for name in names}
    assert table_of([ROW, ROW], DecisionRow).equals(table_of_columns(columns, DecisionRow), check_metadata=True)


def test_a_table_comes_back_and_its_bytes_are_equal(tmp_path: Path) -> None:
    table = table_of([ROW], DecisionRow)
    assert to_parquet(table) == to_parquet(table_of([ROW], DecisionRow))
    (tmp_path / "decisions.parquet").write_bytes(to_parquet(table))
    assert read_table(tmp_path, "decisions").equals(table)
    assert b"pandas" not in to_parquet(table)


def test_an_empty_table_keeps_its_types(tmp_path: Path) -> None:
    (tmp_path / "decisions.parquet").write_bytes(to_parquet(table_of([], DecisionRow)))
    assert read_table(tmp_path, "decisions").schema == schema_of(DecisionRow)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\x00" * 100, to_parquet(table_of([ROW], DecisionRow))[:-10]])
def test_damage_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "decisions.parquet").write_bytes(content)
    with pytest.raises(StoreError, match="cannot read the table"):
        read_table(tmp_path, "decisions")


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    pq.write_table(table_of([ROW], DecisionRow).replace_schema_metadata(None), tmp_path / "decisions.parquet")
    with pytest.raises(StoreError, match="schema version none"):
        read_table(tmp_path, "decisions")
