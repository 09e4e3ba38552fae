"""What a live run leaves behind while it goes: its event log, the time of each decision, and rows as they are closed.

The run's own process may die at any moment, and another one holds the cell. `carry_over` begins a resumed run's files
with what the earlier one had written by its checkpoint; `assemble` makes the cell's results of a complete attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from libra.core.commands import Command
from libra.core.errors import PolicyError, StoreError
from libra.core.events import Event, PipelineSpec
from libra.core.policy import Policy
from libra.results.atomic import store_errors
from libra.results.schemas import EngineRow, StepRow, TrajectoryRow, VersionRow
from libra.results.store import CellDir, Metrics
from libra.results.tables import LIVE_TABLES, table_of, to_parquet
from libra.runtime.event_log import LogWriter
from libra.runtime.recorder import FileRecorder
from libra.runtime.replay import decisions

LOG_NAME = "live.jsonl.zst"
TIMES_NAME = "decide_s.f64"
ROWS_NAME = "rows.jsonl"


MEND = "to start the run anew, delete the cell's folder live/checkpoints"


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of `rows.jsonl`."""

    step: StepRow | None = None
    trajectory: TrajectoryRow | None = None
    engine: EngineRow | None = None
    versions: tuple[VersionRow, ...] = ()


class Position(msgspec.Struct, frozen=True):
    """How much a recorder has written: decisions (an event with its answer) and lines of `rows.jsonl`."""

    num_decisions: int
    num_rows: int


class AttemptRecorder:
    """The recorder of `runtime.controller` for live runs. Everything reaches the files at each step's end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._num_decisions = self._num_rows = 0
        self._log = LogWriter(folder / LOG_NAME)
        self._encode = msgspec.json.Encoder().encode
        self._times: list[float] = []
        with store_errors(folder):
            self._times_file = (folder / TIMES_NAME).open("wb")
            self._rows_file = (folder / ROWS_NAME).open("wb")

    def decision(self, event: Event, commands: Sequence[Command], decide_s: float) -> None:
        self._log.write(event, commands)
        self._times.append(decide_s)
        self._num_decisions += 1

    def trajectory(self, row: TrajectoryRow, versions: Sequence[VersionRow] = ()) -> None:
        self._write(Row(trajectory=row, versions=tuple(versions)))

    def step(self, row: StepRow) -> None:
        self._write(Row(step=row))
        self.flush()

    def engine(self, row: EngineRow) -> None:
        """A sample; one that comes after the end is dropped."""
        if not self._rows_file.closed:
            self._write(Row(engine=row))

    def position(self) -> Position:
        """Everything up to here is in the files."""
        self.flush()
        return Position(self._num_decisions, self._num_rows)

    def flush(self) -> None:
        self._log.flush()
        np.array(self._times, "<f8").tofile(self._times_file)
        self._times.clear()
        self._times_file.flush()
        self._rows_file.flush()

    def close(self) -> None:
        """Complete the files; safe to call twice."""
        if self._rows_file.closed:
            return
        self.flush()
        self._log.close()
        self._times_file.close()
        self._rows_file.close()

    def _write(self, row: Row) -> None:
        self._rows_file.write(self._encode(row) + b"\n")
        self._num_rows += 1


def read_versions(folder: Path) -> list[VersionRow]:
    """Versions of the tokens of every trajectory in `read_rows`."""
    return [each for row in _rows(folder / ROWS_NAME) for each in row.versions]


def read_rows(folder: Path) -> tuple[list[StepRow], list[TrajectoryRow]]:
    """Rows so far, by kind. A last line that was cut off is left out."""
    steps, trajectories = [], []
    for row in _rows(folder / ROWS_NAME):
        if row.step is not None:
            steps.append(row.step)
        elif row.trajectory is not None:
            trajectories.append(row.trajectory)
    return steps, trajectories


def read_engines(folder: Path) -> list[EngineRow]:
    """Samples of engines so far."""
    return [row.engine for row in _rows(folder / ROWS_NAME) if row.engine is not None]


def _rows(path: Path) -> Iterator[Row]:
    if not path.exists():
        return
    decode = msgspec.json.Decoder(Row).decode
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            yield decode(line)
        except msgspec.MsgspecError as error:
            raise StoreError(f"unreadable row: {error}", where=str(path)) from error


def carry_over(old: Path, until: Position, recorder: AttemptRecorder, policy: Policy) -> None:
    """Begin a resumed run: what `old` holds up to a position is written again, and a fresh policy lives through it.

    Raises `PolicyError` where the policy answers otherwise than it did, `StoreError` where `old` holds less.
    """
    times = np.fromfile(old / TIMES_NAME, "<f8")
    found = 0
    for event, commands in islice(decisions(old / LOG_NAME), until.num_decisions):
        if tuple(policy.decide(event)) != commands:
            raise PolicyError(f"event {found} of the run to resume is answered otherwise now; {MEND}")
        recorder.decision(event, commands, float(times[found]))
        found += 1
    rows = list(islice(_rows(old / ROWS_NAME), until.num_rows))
    if (found, len(rows)) != (until.num_decisions, until.num_rows):
        raise StoreError(
            f"{found} decisions and {len(rows)} rows are left of {until.num_decisions} and {until.num_rows}",
            where=str(old), mend=MEND,
        )  # fmt: skip
    for row in rows:
        if row.step is not None:
            recorder.step(row.step)
        elif row.trajectory is not None:
            recorder.trajectory(row.trajectory, row.versions)
        elif row.engine is not None:
            recorder.engine(row.engine)


def assemble(
    folder: Path,
    cell_dir: CellDir,
    num_gpus: int,
    pipeline: PipelineSpec,
    clock: Callable[[], float] = time.perf_counter,
) -> Metrics:
    """Results of a complete attempt, as the simulator's recorder writes them. Raises `StoreError`."""
    recorder = FileRecorder(cell_dir, num_gpus, pipeline)
    try:
        times = np.fromfile(folder / TIMES_NAME, "<f8")
        for (event, commands), decide_s in zip(decisions(folder / LOG_NAME), times.tolist(), strict=False):
            recorder.decision(event, commands, decide_s)
        steps, trajectories = read_rows(folder)
        for step in steps:
            recorder.step(step)
        for trajectory in trajectories:
            recorder.trajectory(trajectory)
        for name, rows in (("engines", read_engines(folder)), ("versions", read_versions(folder))):
            cell_dir.write(f"{name}.parquet", to_parquet(table_of(rows, LIVE_TABLES[name])))
        return recorder.finish(steps[-1].end_s if steps else 0.0)
    finally:
        recorder.close()
