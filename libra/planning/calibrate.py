"""Rates of the estimate from several earlier runs of any models and layouts on the user's machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from libra.core.hardware import Cluster, Model
from libra.core.plan import Estimate, Plan
from libra.core.policy import Statistics
from libra.cost.communication import weight_sync_s
from libra.cost.rates import Array, Observed, Rates, refit
from libra.planning.estimate import Demand, Estimator


@dataclass(frozen=True)
class Run:
    """A run under one plan: the lengths that its steps trained, and what the steps took."""

    cluster: Cluster
    model: Model
    plan: Plan
    statistics: Statistics

    @cached_property
    def demand(self) -> Demand:
        """Of the lengths alone, not corrected by the steps."""
        return Estimator(self.cluster, self.model).demand(
            Statistics(self.statistics.run, self.statistics.finished), None
        )

    def observed(self) -> list[Observed]:
        """Mean training, sync and step time, and the rollout's makespan where a step shows it."""
        steps, kind = self.statistics.steps, self.statistics.run.pipeline.kind
        found = [[step.train_s for step in steps], [step.sync_s for step in steps], [step.step_s for step in steps]]
        if kind != "async":
            found.append([step.rollout_s for step in steps])
        return [Observed(float(np.mean(each)), _error_of_mean(each)) for each in found]

    def estimate(self, rates: Rates) -> Estimate:
        """What a step of the run should take."""
        estimator = Estimator(self.cluster, self.model, rates)
        demand = replace(self.demand, sync_s=self._sync_s(rates), paces={}, alone={}, train_times={})
        return estimator.estimate(self.plan, demand)

    def predicted(self, rates: Rates) -> list[float]:
        """The estimate of `observed`."""
        expected = self.estimate(rates)
        found = [expected.train_s, self._sync_s(rates), expected.step_s]
        return found if self.statistics.run.pipeline.kind == "async" else [*found, expected.rollout_s]

    def _sync_s(self, rates: Rates) -> float:
        colocated = self.statistics.run.pipeline.kind == "colocated"
        return weight_sync_s(self.cluster, self.model, colocated=colocated, rates=rates)


def _error_of_mean(times_s: Sequence[float]) -> float:
    """Relative; none for times that do not differ, or a single one."""
    if len(times_s) < 2:
        return 0.0
    return float(np.std(times_s, ddof=1) / np.sqrt(len(times_s)) / max(np.mean(times_s), 1e-9))


def calibrate(runs: Sequence[Run], prior: Rates | None = None) -> Rates:
    """Rates under which the estimate meets what the runs took (see `cost.rates.refit`)."""

    def predict(rates: Rates) -> Array:
        return np.array([seconds for run in runs for seconds in run.predicted(rates)])

    return refit(predict, [each for run in runs for each in run.observed()], prior)
