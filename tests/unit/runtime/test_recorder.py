"""Placements become rows with what was known when they were decided; results appear only when a run is complete."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from libra.core.commands import Place, Why
from libra.core.events import (
    AllocationChanged,
    PipelineSpec,
    Placed,
    RunStart,
    ToolReturned,
    TrajectoryEnd,
    TrajectoryStart,
)
from libra.core.plan import Allocation, InstanceStatus, TrainLayout
from libra.results.cell import Cell
from libra.results.schemas import Bounds, DecisionRow, StepRow, TrajectoryRow
from libra.results.store import CellDir, Metrics, Store, read_json
from libra.results.tables import read_table
from libra.runtime.event_log import LOG_NAME, read_log
from libra.runtime.recorder import DecisionTable, FileRecorder

ALLOCATION = Allocation(
    TrainLayout(1, 1), 1, (InstanceStatus(0, 1, 0, "up"), InstanceStatus(1, 1, 1, "up")), (1000, 8000)
)
START = TrajectoryStart(1.0, 7, "p", 0, 0, 100, 0)
TOOL = ToolReturned(3.0, 7, 0, 1, "search", 50, "ok", 0.5, 450)
END = TrajectoryEnd(5.0, 7, 1, "completed", 400, 550, 2, 0.5)


@pytest.fixture
def cell_dir(tmp_path: Path) -> CellDir:
    cell_dir = Store(tmp_path / "runs").claim(Cell.make("s", "w", "c", "m", "p"), "code")
    cell_dir.start()
    return cell_dir


def rows_of(table: DecisionTable) -> list[DecisionRow]:
    return [DecisionRow(**row) for row in table.table().to_pylist()]


def test_a_placement_becomes_a_row_with_its_context_and_evidence() -> None:
    table = DecisionTable()
    table.event(AllocationChanged(0.0, ALLOCATION, "plan"))
    table.event(START)
    table.place(1.0, Place(7, 0))
    table.event(TOOL)
    table.place(3.0, Place(7, 1, why=Why("prefix", 2000.0, 3000.0, 4.0, 1)))
    assert rows_of(table) == [
        DecisionRow(1.0, 7, 0, -1, 0, 0, 100, "none", 0.0, 0.0, 0.0),
        DecisionRow(3.0, 7, 1, 0, 1, 1, 450, "prefix", 2000.0, 3000.0, 4.0),
    ]


def test_bounds_are_kept_when_they_change() -> None:
    table = DecisionTable()
    for t_s, bounds in ((0.0, (1000, 8000)), (1.0, (1000, 8000)), (2.0, (2000, 8000))):
        allocation = msgspec.structs.replace(ALLOCATION, bounds_tok=bounds)
        table.event(AllocationChanged(t_s, allocation, "plan"))
    assert table.bounds == [Bounds(0.0, (1000, 8000)), Bounds(2.0, (2000, 8000))]


def record(recorder: FileRecorder) -> None:
    recorder.decision(RunStart(0.0, "c", "m", PipelineSpec(), 1, 1, 1, 8000), (), 1e-3)
    recorder.decision(AllocationChanged(0.0, ALLOCATION, "plan"), (), 1e-6)
    recorder.decision(START, (Place(7, 0),), 2e-6)
    recorder.decision(Placed(1.0, 7, 0, "start"), (), 1e-6)
    recorder.decision(TOOL, (Place(7, 1),), 4e-6)
    recorder.decision(END, (), 1e-6)
    recorder.trajectory(
        TrajectoryRow(
            7, "p", 0, 0, 0, 0, "completed", 100, 400, 50, 2, 0.5, None, 1.0, 5.0, 0, 1, 0, 1, 1, 450, 600, 0, 0, 0.0,
            0, 0, 0,
        )
    )  # fmt: skip
    recorder.step(
        StepRow(
            0, 0.0, 8.0, 4.0, 4.0, 2.0, 1.0, 0.0, 0.0, 1, 100, 400, 50, 550, 1, 2, 0, 16.0, 8.0, 6.0, 2.0, 0.0, 0, 0,
            0.0,
        )
    )  # fmt: skip


def test_a_complete_run_leaves_every_file(cell_dir: CellDir) -> None:
    steps: list[tuple[int, int]] = []
    recorder = FileRecorder(cell_dir, 4, PipelineSpec(), lambda *done: steps.append(done))
    record(recorder)
    metrics = recorder.finish(2.0)
    recorder.close()
    names = {path.name for path in cell_dir.path.iterdir() if path.is_file()}
    assert names == {
        "cell.json", "status.json", "lock", "metrics.json", "timing.json", "events.jsonl.zst",
        "steps.parquet", "trajectories.parquet", "decisions.parquet",
    }  # fmt: skip
    assert steps == [(1, 1)]
    assert read_json(cell_dir.path / "metrics.json", Metrics) == metrics
    assert metrics.metrics["generated_tok_per_s"] == 50.0
    assert metrics.metrics["routing_accuracy"] == 0.0  # moved to bucket 1, and 550 tokens belong to bucket 0
    assert read_table(cell_dir.path, "trajectories")["reward"].to_pylist() == [None]
    assert len(list(read_log(cell_dir.path / LOG_NAME))) == 8
    timing = msgspec.json.decode((cell_dir.path / "timing.json").read_bytes())
    assert timing["counts"] == {"num_events": 6, "num_commands": 2}
    assert timing["decide_s"]["tool"] == {"num": 1, "p50": 4e-6, "p99": 4e-6, "max": 4e-6}
    assert timing["events_per_s"] == 3.0


def test_a_run_that_dies_leaves_a_readable_log_and_no_results(cell_dir: CellDir) -> None:
    recorder = FileRecorder(cell_dir, 4, PipelineSpec())
    record(recorder)
    recorder.close()
    assert len(list(read_log(cell_dir.attempt_dir / LOG_NAME))) == 8
    assert {path.name for path in cell_dir.path.iterdir() if path.is_file()} == {"cell.json", "status.json", "lock"}
