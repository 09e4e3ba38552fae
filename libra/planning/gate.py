"""Is a candidate worth its transition? Gain a step over a trusted horizon against the cost of *this* transition
(paper, replanning trigger), with hysteresis and a cool-down. Works in both directions: the step counts, not a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt

import numpy as np

from libra.core.plan import Allocation, Plan
from libra.core.telemetry import Statistics
from libra.planning.drift import normal_score, trusted_steps
from libra.planning.estimate import Demand, Estimator, plan_of
from libra.planning.transition import TransitionCost


def is_standstill(candidate: Plan, current: Plan) -> bool:
    """Whether nothing has to happen: the same layout, bounds and sides."""
    return (
        candidate.train == current.train
        and candidate.bounds_tok == current.bounds_tok
        and candidate.colocated == current.colocated
        and set(candidate.instances) == set(current.instances)
        and candidate.hybrid_training == current.hybrid_training
    )


def surely_exceed(values: Sequence[float], level: float, min_score: float) -> bool:
    """Whether the mean of independent `values` is above `level` by a one-sided t test at a standard normal score.

    One value is never sure; values that are all equal are.
    """
    if len(values) < 2:
        return False
    above, deviation = float(np.mean(values)) - level, float(np.std(values, ddof=1))
    if not deviation:
        return above > 0
    return normal_score(above / deviation * sqrt(len(values)), len(values) - 1) > min_score


@dataclass
class HorizonGate:
    """Accepts when `gain per step x trusted horizon` surely exceeds the transition's cost, both in step seconds.

    The horizon is `trusted_steps`, with `prior_steps` as the prior, cut to the steps left in the run. Sure: over the
    window's batches one by one, at a standard normal score of `min_score`, since the best of many plans for a few
    batches always looks better than what is there. `min_gain_share` of the current step is hysteresis; after an
    acceptance `cooldown_steps` must pass. The prior is a few telemetry windows, the hysteresis the authors' released
    configuration, the cool-down a share of the window, the score that of 95 % (assumed).
    """

    estimator: Estimator
    prior_steps: int = 20
    min_gain_share: float = 0.05
    cooldown_steps: int = 5
    min_score: float = 1.64
    _accepted_step: int | None = field(default=None, init=False, repr=False)

    @cached_property
    def cost(self) -> TransitionCost:
        return TransitionCost(self.estimator)

    def accepts(self, candidate: Plan, statistics: Statistics, allocation: Allocation) -> bool:
        """Compare the candidate's expected step with the estimate of what is there under the same statistics."""
        current = plan_of(allocation)
        if current is None or not current.instances:
            return True
        step = statistics.steps[-1].step if statistics.steps else -1
        if self._is_cooling(step) or is_standstill(candidate, current):
            return False
        demand = self.estimator.demand(statistics, allocation)
        now_s = self.estimator.estimate(current, demand).step_s
        gain_s = now_s - candidate.expected.step_s
        if gain_s <= 0 or gain_s < self.min_gain_share * now_s:
            return False
        stall_s = self.cost.of(candidate, current, demand, statistics.started).stall_s
        horizon = self.horizon_steps(statistics, step)
        accepted = gain_s * horizon > stall_s and surely_exceed(
            self.gains_s(candidate, current, demand, statistics), stall_s / horizon, self.min_score
        )
        if accepted:
            self._accepted_step = step
        return accepted

    def gains_s(self, candidate: Plan, current: Plan, demand: Demand, statistics: Statistics) -> list[float]:
        """Seconds a step that the candidate gains on each whole batch of the window, newest first."""
        rows, batch = statistics.finished, statistics.run.batch
        gains = []
        for end in range(len(rows), batch - 1, -batch):
            alone = self.estimator.demand(Statistics(statistics.run, rows[end - batch : end]), None)
            one = replace(alone, sync_s=demand.sync_s, correction=demand.correction)
            gains.append(self.estimator.estimate(current, one).step_s - self.estimator.estimate(candidate, one).step_s)
        return gains

    def horizon_steps(self, statistics: Statistics, step: int) -> float:
        """Steps over which a gain counts after `step`."""
        left = max(0, statistics.run.num_steps - (step + 1))
        return min(left, trusted_steps(step + 1, len(statistics.changes), self.prior_steps))

    def _is_cooling(self, step: int) -> bool:
        last = self._accepted_step
        # A step before the last acceptance belongs to another run.
        return last is not None and last <= step < last + self.cooldown_steps


class AcceptChange:
    """Accepts whatever differs from what is there: for planners that decide by themselves when to stop."""

    def accepts(self, candidate: Plan, statistics: Statistics, allocation: Allocation) -> bool:
        current = plan_of(allocation)
        return current is None or not is_standstill(candidate, current)
