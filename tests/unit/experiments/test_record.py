"""A recorded run is what its engines and tools did: equal to the rows of its trajectories, and playable again."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from experiments.commands.record import record
from experiments.launch import launch
from libra.core.errors import TraceError
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.store import Store, StoredCell
from libra.workloads.trace_file import read_trace


@pytest.fixture
def cell(store: Store, registry: Registry) -> StoredCell:
    overrides = {"workload.num_steps": 2, "workload.prompts": 2, "workload.group_size": 4}
    launch([Cell.make("test", "search-r1", "a800x48", "qwen3-8b", "libra", overrides=overrides)], store, registry)
    (found,) = store.cells("test")
    assert found.status.state == "done", found.status.reason
    return found


def test_a_trace_holds_what_the_rows_say(cell: StoredCell, tmp_path: Path) -> None:
    record(cell, tmp_path / "new" / "run.jsonl.gz", None)
    header, rows = read_trace(tmp_path / "new" / "run.jsonl.gz")
    names = ("group", "sample", "prompt_tok", "generated_tok", "observed_tok", "num_turns")
    table = pq.read_table(cell.path / "trajectories.parquet").to_pylist()
    assert sorted(
        (row.group, row.sample, row.prompt_tok, row.generated_tok, row.observed_tok, len(row.turns)) for row in rows
    ) == sorted(tuple(row[name] for name in names) for row in table)
    assert header.source.startswith("simulated run of search-r1")


def test_a_limit_keeps_the_first(cell: StoredCell, tmp_path: Path) -> None:
    record(cell, tmp_path / "all.jsonl.gz", None)
    record(cell, tmp_path / "some.jsonl.gz", 5)
    assert read_trace(tmp_path / "some.jsonl.gz")[1] == read_trace(tmp_path / "all.jsonl.gz")[1][:5]


def test_another_suffix_is_refused(cell: StoredCell, tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        record(cell, tmp_path / "run.csv", None)
    assert not (tmp_path / "run.csv").exists()
