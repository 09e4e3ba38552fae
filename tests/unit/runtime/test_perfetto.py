"""The timeline: turns on the lanes of their instance, tool calls, training and syncs, live trajectories."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from libra.core.errors import StoreError
from libra.core.events import (
    AllocationChanged,
    Event,
    PipelineSpec,
    Placed,
    RunStart,
    ToolReturned,
    TrajectoryEnd,
    TrajectoryStart,
)
from libra.core.plan import Allocation, InstanceStatus, TrainLayout
from libra.results.schemas import StepRow
from libra.results.tables import table_of, to_parquet
from libra.runtime.event_log import LOG_NAME, LogWriter
from libra.runtime.perfetto import INSTANCE_PID, TOOLS_PID, TRAINER_PID, write_perfetto

EVENTS: list[Event] = [
    RunStart(0.0, "c", "m", PipelineSpec(), 2, 1, 1, 8000),
    AllocationChanged(0.0, Allocation(TrainLayout(1, 1), 1, (InstanceStatus(5, 2, 1, "up"),), (8000,)), "plan"),
    TrajectoryStart(0.0, 0, "p", 0, 0, 10, 0),
    TrajectoryStart(0.0, 1, "p", 0, 1, 10, 0),
    Placed(0.0, 0, 5, "start"),
    Placed(0.5, 1, 5, "start"),
    ToolReturned(2.0, 0, 5, 1, "search", 5, "ok", 0.75, 100),
    Placed(2.0, 0, 5, "stay"),
    TrajectoryEnd(3.0, 1, 5, "completed", 50, 60, 1, 0.0),
    TrajectoryEnd(4.0, 0, 5, "completed", 90, 120, 2, 0.75),
]
STEP = StepRow(
    0, 0.0, 8.0, 4.0, 4.0, 2.0, 1.0, 0.0, 0.0, 2, 20, 140, 5, 120, 1, 2, 0, 16.0, 8.0, 6.0, 2.0, 0.0, 0, 0, 0.0
)  # fmt: skip


def write_cell(folder: Path) -> None:
    log = LogWriter(folder / LOG_NAME)
    for event in EVENTS:
        log.write(event, ())
    log.close()
    (folder / "steps.parquet").write_bytes(to_parquet(table_of([STEP], StepRow)))


def spans(trace: dict[str, Any], pid: int) -> list[tuple[str, int, float, float]]:
    events = [each for each in trace["traceEvents"] if each["ph"] == "X" and each["pid"] == pid]
    return [(each["name"], each["tid"], each["ts"] / 1e6, each["dur"] / 1e6) for each in events]


def test_the_timeline_of_a_small_run(tmp_path: Path) -> None:
    write_cell(tmp_path)
    assert write_perfetto(tmp_path, tmp_path / "trace.json.gz") == 3 + 1 + 2
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert spans(trace, INSTANCE_PID + 5) == [
        ("#0 turn 1", 0, 0.0, 1.25),
        ("#1 turn 1", 1, 0.5, 2.5),
        ("#0 turn 2", 0, 2.0, 2.0),
    ]
    assert spans(trace, TOOLS_PID) == [("search", 0, 1.25, 0.75)]
    assert spans(trace, TRAINER_PID) == [("train step 0", 1, 5.0, 2.0), ("sync 0", 2, 7.0, 1.0)]
    live = [(each["ts"], each["args"]["live"]) for each in trace["traceEvents"] if each["ph"] == "C"]
    assert live == [(0.0, 2), (3e6, 1), (4e6, 0)]
    names = {each["pid"]: each["args"]["name"] for each in trace["traceEvents"] if each["name"] == "process_name"}
    assert names == {1: "trainer", 2: "tools", 105: "instance 5 (TP 2, bucket 1)"}


def test_a_run_that_was_cut_off_still_has_its_turns(tmp_path: Path) -> None:
    write_cell(tmp_path)
    (tmp_path / "steps.parquet").unlink()
    assert write_perfetto(tmp_path, tmp_path / "trace.json") == 4
    json.loads((tmp_path / "trace.json").read_bytes())


def test_a_cell_without_a_log_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no event log"):
        write_perfetto(tmp_path, tmp_path / "trace.json")
