"""Has the workload changed, and how long is it to be trusted? Self-starting CUSUM charts on what each step reports.

A chart needs no reference: each observation is compared with the mean and deviation of those before it, so that without
a change the charted values are independent standard normals whatever the level and the noise (D. M. Hawkins,
Self-starting CUSUM charts for location and scale, The Statistician 36, 1987). The false-alarm rate then follows from
the threshold alone (D. Siegmund, Sequential Analysis, 1985, section 2.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import copysign, exp, log, log1p, sqrt

import numpy as np

from libra.core.events import RunStart, StepEnd
from libra.core.telemetry import Finished
from libra.cost.calibration import observed_rollout_s

REFERENCE = 0.5
"""Allowance of a chart in deviations: half of the shift that it finds fastest, here one deviation (usual choice)."""
FALSE_ALARM_STEPS = 1000
"""Steps between false alarms of all charts together: one in two runs of the paper's 500 steps (assumed)."""
LEAST_DEVIATION = 0.01
"""Of a logarithm: what moves by less than 1 % is no change to plan for, however still it stood before (assumed)."""
MIN_REFERENCE = 3
"""Observations before the first comparison; from two the deviation has one degree of freedom and says nothing."""


def run_length(threshold: float, shift: float = 0.0, reference: float = REFERENCE) -> float:
    """Mean observations until a one-sided chart of unit normals shifted by `shift` deviations signals (Siegmund)."""
    drift, barrier = shift - reference, threshold + 1.166
    if abs(drift) < 1e-9:
        return barrier**2
    return (exp(-2 * drift * barrier) + 2 * drift * barrier - 1) / (2 * drift**2)


def threshold_for(false_alarm_steps: float, num_charts: int) -> float:
    """Threshold at which `num_charts` two-sided charts signal once in `false_alarm_steps` without a change."""
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        rare = run_length(middle) >= 2 * num_charts * false_alarm_steps
        low, high = (low, middle) if rare else (middle, high)
    return high


def normal_score(t: float, freedom: int) -> float:
    """Standard normal value of the same probability as Student's `t` (Wallace's approximation, as Hawkins uses it)."""
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    return copysign(scale * sqrt(freedom * log1p(t * t / freedom)), t)


@dataclass
class Chart:
    """One two-sided self-starting CUSUM. `reference` holds the observations of the present regime."""

    threshold: float
    least_deviation: float = LEAST_DEVIATION
    reference: list[float] = field(default_factory=list)
    _sums: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _since: list[int] = field(default_factory=lambda: [0, 0])
    """Observations since each side's sum was last zero: where the change began if that side signals (Page)."""

    def observe(self, value: float) -> int | None:
        """Observations, counted back from this one, since the change; None while the chart is quiet."""
        score = self._score(value)
        self.reference.append(value)
        for side, signed in enumerate((score, -score)):
            total = max(0.0, self._sums[side] + signed - REFERENCE)
            self._since[side] = self._since[side] + 1 if total else 0
            self._sums[side] = total
        side = int(self._sums[1] > self._sums[0])
        return self._since[side] if self._sums[side] > self.threshold else None

    def restart(self, num_newest: int = 0) -> None:
        """Begin a regime with the newest observations as its first."""
        self.reference = self.reference[len(self.reference) - min(num_newest, len(self.reference)) :]
        self._sums, self._since = [0.0, 0.0], [0, 0]

    def _score(self, value: float) -> float:
        num = len(self.reference)
        if num < MIN_REFERENCE:
            return 0.0
        deviation = max(float(np.std(self.reference, ddof=1)), self.least_deviation)
        return normal_score((value - float(np.mean(self.reference))) / deviation * sqrt(num / (num + 1)), num - 1)


CHARTS = ("length", "spread", "train", "rollout")


class DriftDetector:
    """Four charts: mean and deviation of log lengths, training time a token, and rollout time, all as logarithms.

    Stage times depend on the layout too: what engines that come or go disturb is not charted, and begins anew after.
    """

    def __init__(self, run: RunStart, false_alarm_steps: float = FALSE_ALARM_STEPS) -> None:
        threshold = threshold_for(false_alarm_steps, len(CHARTS))
        self._kind = run.pipeline.kind
        self._charts = {name: Chart(threshold) for name in CHARTS}
        self._seen: dict[str, list[int]] = {name: [] for name in CHARTS}
        """Step of each observation of the present regime: a chart misses the steps that do not show its value."""

    def observe(self, step: StepEnd, finished: Sequence[Finished], *, disturbed: bool) -> int | None:
        """Steps, counted back from this one, since the earliest change that a chart signals now."""
        if disturbed:
            self._restart(step.step + 1, ("train", "rollout"))
        found = []
        for name, value in self._values(step, finished, disturbed).items():
            self._seen[name].append(step.step)
            since = self._charts[name].observe(value)
            if since is not None:
                found.append(self._seen[name][-since])
        if not found:
            return None
        self._restart(min(found), CHARTS)
        return step.step - min(found) + 1

    def _restart(self, first_step: int, names: Sequence[str]) -> None:
        for name in names:
            self._seen[name] = [at for at in self._seen[name] if at >= first_step]
            self._charts[name].restart(len(self._seen[name]))

    def _values(self, step: StepEnd, finished: Sequence[Finished], disturbed: bool) -> dict[str, float]:
        values = {}
        logs = np.log([max(1, row.total_tok) for row in finished])
        if len(logs):
            values["length"] = float(logs.mean())
        if len(logs) > 1 and logs.std() > 0:
            values["spread"] = log(float(logs.std()))
        if disturbed:
            return values
        rollout_s = observed_rollout_s(step, self._kind)
        if step.train_s > 0 and step.trained_tok > 0:
            values["train"] = log(step.train_s / step.trained_tok)
        if rollout_s:
            values["rollout"] = log(rollout_s)
        return values


def trusted_steps(num_steps: int, num_changes: int, prior_steps: float) -> float:
    """Steps that the present regime is expected to last on.

    Regimes end at a constant unknown rate with a conjugate prior of one change in `prior_steps`: after `num_changes` in
    `num_steps` the reciprocal of the rate's posterior mean, `(prior + steps) / (1 + changes)`. A regime without memory
    lasts on as long, whatever its age.
    """
    return (prior_steps + num_steps) / (1 + num_changes)
