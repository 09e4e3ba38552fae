"""Cells of a store as runs of a job: steady step times and lengths from the tables, the layout from the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from experiments.job_runs import Made
from libra.core.errors import ConfigError, StoreError
from libra.core.events import PlannerTick, RunStart
from libra.core.plan import Plan
from libra.core.policy import Finished, Statistics
from libra.planning.estimate import plan_of
from libra.planning.predictors import Job, Run, Setting, StageTimes
from libra.results.store import Store, StoredCell
from libra.results.summary import steady_window
from libra.results.tables import read_table
from libra.runtime.event_log import LOG_NAME, read_log


def of_cell(folder: Path) -> Made:
    """Raises `StoreError` for a cell that is not done, `ConfigError` for one whose layout changed."""
    return _made(Store(folder.resolve().parent.parent, create=False).find(folder.resolve().name))


def of_study(index: Path) -> Iterator[Made]:
    """Cells that are done, in the study's order."""
    found = Store(index.parent.parent, create=False).cells(index.stem)
    for cell in found:
        if cell.status.state == "done":
            yield _made(cell)


def _made(cell: StoredCell) -> Made:
    if cell.metrics is None:
        raise StoreError("a run without results", where=cell.cell.label, value=cell.status.state,
                         mend="give cells that are done")  # fmt: skip
    start, plan = _layout(cell)
    if start.pipeline.kind == "async":
        raise ConfigError("an asynchronous cell records how long the trainer waited, not how long rollout took",
                          where=cell.cell.label, mend="give runs behind a barrier, or colocated ones")  # fmt: skip
    steps = read_table(cell.path, "steps").to_pandas()
    first, past = steady_window(len(steps))
    kept = steps.iloc[first:past]
    if kept.empty:
        raise StoreError("no training step has ended", where=cell.cell.label)
    rolled = _rolled_out(steps, first, past) if start.pipeline.kind == "barrier" else kept
    step_s = float((kept.end_s - kept.start_s).mean())
    measured = StageTimes(float(rolled.rollout_s.mean()), float(kept.train_s.mean()), step_s)
    batch = max(1, round(float(kept.num_trajectories.mean())))
    statistics = Statistics(
        msgspec.structs.replace(start, batch=batch, profile=()), _lengths(cell, {*kept.step, *rolled.step})
    )
    tokens = float((kept.prompt_tok + kept.generated_tok + kept.observed_tok).mean())
    setting = Setting(
        f"{cell.id[:8]} {cell.cell.policy}", plan.rollout_gpus, plan.train.num_gpus, start.pipeline.kind, tokens,
        Job(plan, statistics),
    )  # fmt: skip
    network = str(cell.cell.override("cluster.network") or "")
    ended_s = cell.status.heartbeat
    return Made(Run(setting, measured), str(cell.path), cell.cell.model, cell.cell.cluster, len(kept), network, ended_s)


def _rolled_out(steps: Any, first: int, past: int) -> Any:
    """Rows whose rollout ran during steps `first` to `past`: behind a barrier that is the next step's."""
    later = steps.iloc[first + 1 : past + 1]
    return later if len(later) else steps.iloc[first:past]


def _lengths(cell: StoredCell, steps: set[int]) -> tuple[Finished, ...]:
    rows = read_table(cell.path, "trajectories").to_pandas()
    rows = rows[rows.trained_step.isin(steps)]
    counts = (rows[name].tolist() for name in ("prompt_tok", "generated_tok", "observed_tok", "num_turns", "tool_s"))
    return tuple(map(Finished, *counts, (rows.status != "completed").tolist()))


@dataclass
class _Seen:
    start: RunStart | None = None
    plan: Plan | None = None


def _layout(cell: StoredCell) -> tuple[RunStart, Plan]:
    """What the run started with, and the one layout that it had at every step."""
    seen = _Seen()
    for event in read_log(cell.path / LOG_NAME):
        if isinstance(event, RunStart):
            seen.start = event
        elif isinstance(event, PlannerTick):
            plan = plan_of(event.allocation)
            if seen.plan is not None and plan != seen.plan:
                raise ConfigError(f"the layout changed in step {event.step}: not a run of one plan",
                                  where=cell.cell.label, mend="give runs of policies that stay")  # fmt: skip
            seen.plan = plan
    if seen.start is None or seen.plan is None:
        raise StoreError("the event log tells no layout", where=cell.cell.label)
    return seen.start, seen.plan
