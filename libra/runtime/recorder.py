"""Keeps what happened in a run: the event log as it goes, at the end the tables, the metrics and the measured times.

Placements become rows of `decisions.parquet` here, for every backend alike. Final files appear only when a run is
complete; until then there is a growing log in the attempt's folder.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from libra.core.commands import Command, Place, Why
from libra.core.events import (
    AllocationChanged,
    Event,
    PipelineSpec,
    RunStart,
    ToolReturned,
    TrajectoryEnd,
    TrajectoryStart,
)
from libra.results.atomic import move_into_place
from libra.results.provenance import summary_fingerprint
from libra.results.schemas import Bounds, DecisionRow, EventCounts, Facts, StepRow, TrajectoryRow, VersionRow
from libra.results.store import CellDir, Metrics
from libra.results.summary import summarise
from libra.results.tables import table_of, table_of_columns, to_parquet
from libra.runtime.event_log import LOG_NAME, LogWriter

OnStep = Callable[[int, int], None]
"""Called with the number of finished steps and of all steps."""


_NO_REASON = Why()
_FIELDS = msgspec.structs.fields(DecisionRow)


class DecisionTable:
    """Builds the rows of placements from events and commands: who was asked for, where it was, and how long."""

    def __init__(self) -> None:
        self.bounds: list[Bounds] = []
        self._columns: dict[str, Any] = {
            name: array({int: "q", float: "d"}[kind]) if kind is not str else []
            for name, kind in ((each.name, each.type) for each in _FIELDS)
        }
        self._append = tuple(self._columns[each.name].append for each in _FIELDS)
        self._waiting: dict[int, tuple[int, int, int]] = {}
        """Trajectory -> (finished turns, instance of the last one, context tokens)."""
        self._bucket_of: dict[int, int] = {}

    def event(self, event: Event) -> None:
        if isinstance(event, ToolReturned):
            self._waiting[event.trajectory] = (event.turn, event.instance, event.context_tok)
        elif isinstance(event, TrajectoryStart):
            self._waiting[event.trajectory] = (0, -1, event.prompt_tok)
        elif isinstance(event, TrajectoryEnd):
            self._waiting.pop(event.trajectory, None)
        elif isinstance(event, AllocationChanged):
            self._bucket_of = {each.id: each.bucket for each in event.allocation.instances}
            bounds = event.allocation.bounds_tok
            if not self.bounds or self.bounds[-1].bounds_tok != bounds:
                self.bounds.append(Bounds(event.t_s, bounds))

    def place(self, t_s: float, command: Place) -> None:
        turn, before, context_tok = self._waiting.get(command.trajectory, (-1, -1, 0))
        why = command.why or _NO_REASON
        bucket = why.bucket if why.bucket >= 0 else self._bucket_of.get(command.instance, -1)
        where = (t_s, command.trajectory, turn, before, command.instance, bucket, context_tok)
        row = (*where, why.level, why.mean_tok, why.p90_tok, why.evidence)
        for append, value in zip(self._append, row, strict=True):
            append(value)

    def table(self) -> pa.Table:
        return table_of_columns(self._columns, DecisionRow)


class FileRecorder:
    """The recorder of `runtime.controller`, writing into a claimed cell. `num_gpus` counts the cluster's GPUs."""

    def __init__(self, cell_dir: CellDir, num_gpus: int, pipeline: PipelineSpec, on_step: OnStep | None = None) -> None:
        self._cell_dir, self._num_gpus, self._pipeline, self._on_step = cell_dir, num_gpus, pipeline, on_step
        self._log = LogWriter(cell_dir.attempt_dir / LOG_NAME)
        self._decisions = DecisionTable()
        self._trajectories: list[TrajectoryRow] = []
        self._steps: list[StepRow] = []
        self._decide_s: dict[type[Event], array[float]] = {}
        self._num_steps = 0

    def decision(self, event: Event, commands: Sequence[Command], decide_s: float) -> None:
        self._log.write(event, commands)
        kind = type(event)
        times = self._decide_s.get(kind)
        if times is None:
            times = self._decide_s[kind] = array("d")
        times.append(decide_s)
        self._decisions.event(event)
        for command in commands:
            if isinstance(command, Place):
                self._decisions.place(event.t_s, command)
        if kind is RunStart:
            self._num_steps = event.num_steps  # type: ignore[union-attr]

    def trajectory(self, row: TrajectoryRow, versions: Sequence[VersionRow] = ()) -> None:
        self._trajectories.append(row)

    def step(self, row: StepRow) -> None:
        self._steps.append(row)
        if self._on_step is not None:
            self._on_step(len(self._steps), self._num_steps)

    def finish(self, wall_s: float) -> Metrics:
        """Write the cell's results; `metrics.json` comes last. Raises `StoreError`."""
        self._log.close()
        tables = {
            "steps": table_of(self._steps, StepRow),
            "trajectories": table_of(self._trajectories, TrajectoryRow),
            "decisions": self._decisions.table(),
        }
        facts = Facts(self._num_gpus, self._pipeline, tuple(self._decisions.bounds))
        summary = summarise(tables["steps"], tables["trajectories"], tables["decisions"], facts)
        metrics = Metrics(summary.metrics, summary.absent, facts, summary_fingerprint())
        for name, table in tables.items():
            self._cell_dir.write(f"{name}.parquet", to_parquet(table))
        move_into_place(self._log.path, self._cell_dir.path / LOG_NAME)
        self._cell_dir.write_json("timing.json", self._timing(wall_s))
        self._cell_dir.write_json("metrics.json", metrics)
        return metrics

    def close(self) -> None:
        """Leave a readable log behind; safe to call twice, and after `finish`."""
        self._log.close()

    def _timing(self, wall_s: float) -> dict[str, Any]:
        """Measured times. They differ from run to run, so they are no part of what is compared."""
        num_events = self._log.num_events
        return {
            "wall_s": wall_s,
            "events_per_s": num_events / wall_s if wall_s > 0 else None,
            "counts": EventCounts(num_events, self._log.num_commands),
            "decide_s": {str(kind.__struct_config__.tag): _spread(times) for kind, times in self._decide_s.items()},
        }


def _spread(times: array[float]) -> dict[str, float]:
    values = np.frombuffer(times)
    p50, p99 = np.percentile(values, (50, 99))
    return {"num": len(values), "p50": float(p50), "p99": float(p99), "max": float(values.max())}
