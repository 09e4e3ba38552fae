"""Fits a table to short live runs: the simulator plays their own trajectories, and its times are brought to theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from libra.backends.sim.shared.observe import observe
from libra.backends.sim.shared.play import Group, Recorded, Scene, play
from libra.backends.sim.shared.table import Engine, Table, Trainer
from libra.core.events import Event
from libra.core.records import Trajectory
from libra.results.schemas import StepRow

WEIGHTS: Mapping[str, float] = {
    "makespan": 4.0, "step": 1.0, "train": 1.0, "rollout": 1.0, "turn": 1.0, "start": 0.5, "gap": 0.5
}  # fmt: skip
"""The makespan counts most, since that is what is predicted; starts and gaps least, being small against a step."""
FIRST = (0.006, 0.0003, 0.00005, 0.5, 0.0003, 0.004, 0.006, 1.6, 0.3)
"""Where the search begins: the order of magnitude of two cores with the tiny model."""
LOW, HIGH = 1e-3, 1e3
"""Of each figure, relative to `FIRST`; cores are held to a half and to eight."""
MAX_STEPS = 25
"""Of the search: the residuals move by less than a percent after some fifteen."""
DIFFERENCE = 0.02
"""Relative step of the numerical derivative: below it the order of events hides the figures' effect."""


@dataclass(frozen=True)
class Calibration:
    """A short live run: what was played, how, and the times that it took."""

    scene: Scene
    groups: Sequence[Group]
    prompts: int
    max_context_tok: int
    shown: tuple[Trajectory, ...]
    steps: Sequence[StepRow]
    events: Sequence[Event]

    @property
    def settled(self) -> Sequence[Group]:
        """Whole batches without the first two, which verl starts together while processes warm up (tools are slow
        then), and without the last, which nobody trains."""
        return self.groups[2 * self.prompts : len(self.steps) * self.prompts]

    @property
    def workload(self) -> Recorded:
        return Recorded(self.groups, self.prompts, len(self.steps), self.max_context_tok, self.shown)


def table_of(figures: Sequence[float], sync_s: float, source: str = "") -> Table:
    """A table from what the search changes, in the order of `FIRST`."""
    step_s, seq_s, tok_s, fixed_s, train_tok_s, start_s, turn_s, cores, between_s = (float(x) for x in figures)
    engine, trainer = Engine(step_s, seq_s, tok_s), Trainer(fixed_s, train_tok_s)
    return Table(source, cores, engine, trainer, start_s, turn_s, sync_s, between_s)


def fit(runs: Sequence[Calibration], source: str) -> Table:
    """The table under which the runs' times are met best, in the mean square of log ratios."""
    sync_s = float(np.mean([row.sync_s for run in runs for row in run.steps[1:]]))
    seen = [observe(run.steps, run.events, run.prompts) for run in runs]

    def residuals(logs: np.ndarray) -> np.ndarray:
        table = table_of(np.exp(logs), sync_s)
        return np.concatenate([residual(run, times, table) for run, times in zip(runs, seen, strict=True)])

    first = np.log(FIRST)
    low, high = first + np.log(LOW), first + np.log(HIGH)
    low[7], high[7] = np.log(0.5), np.log(8.0)
    found = least_squares(
        residuals, first, bounds=(low, high), diff_step=DIFFERENCE / np.abs(first), ftol=1e-4, max_nfev=MAX_STEPS
    )
    return table_of(np.exp(found.x), sync_s, source)


def residual(run: Calibration, seen: Mapping[str, np.ndarray], table: Table) -> np.ndarray:
    """Log ratios of simulated to measured times, each kind weighted as a whole."""
    played = play(run.scene, table, run.workload)
    ours = observe(played.steps, played.events, run.prompts)
    parts = []
    for name, weight in WEIGHTS.items():
        size = min(len(ours[name]), len(seen[name]))
        floor = 1e-3  # a millisecond: below it nothing is compared
        ratio = np.log(np.maximum(ours[name][:size], floor) / np.maximum(seen[name][:size], floor))
        parts.append(weight * ratio / np.sqrt(max(1, size)))
    return np.concatenate(parts)
