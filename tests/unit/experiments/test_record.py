"""A recorded run is what its engines and tools did: equal to the rows of its trajectories, and playable again."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from experiments.commands.record import record
from experiments.launch import launch
from libra.core.errors import ConfigError, TraceError
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


def test_a_limit_keeps_whole_groups_spread_over_the_run(cell: StoredCell, tmp_path: Path) -> None:
    record(cell, tmp_path / "all.jsonl.gz", None)
    record(cell, tmp_path / "some.jsonl.gz", 11)
    everything, (header, rows) = read_trace(tmp_path / "all.jsonl.gz")[1], read_trace(tmp_path / "some.jsonl.gz")
    assert [row.group for row in everything] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert rows == everything[4:8] + everything[12:]
    assert header.notes[-1] == "2 of 4 groups, spread evenly over the run; they keep their numbers."


def test_a_limit_below_a_group_is_refused(cell: StoredCell, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="less than a group") as caught:
        record(cell, tmp_path / "run.jsonl.gz", 3)
    assert "groups have 4 trajectories" in str(caught.value)


def test_the_header_says_when_and_where_it_was_made(cell: StoredCell, tmp_path: Path) -> None:
    record(cell, tmp_path / "run.jsonl.gz", None)
    (made,) = read_trace(tmp_path / "run.jsonl.gz")[0].notes
    assert re.fullmatch(
        r"Run of \d{4}-\d\d-\d\d( at commit [0-9a-f]{12}( with uncommitted changes)?)? on \d+ CPU cores "
        r"with workload\.group_size=4, workload\.prompts=2\.",
        made,
    )


def test_another_suffix_is_refused(cell: StoredCell, tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        record(cell, tmp_path / "run.csv", None)
    assert not (tmp_path / "run.csv").exists()
