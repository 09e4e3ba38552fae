"""Is a candidate worth its transition? Gain a step over a stated horizon against the cost of *this* transition
(paper, replanning trigger), with hysteresis and a cool-down. Works in both directions: the step counts, not a stage."""

from __future__ import annotations

from dataclasses import dataclass, field

from libra.core.plan import Allocation, Plan
from libra.core.policy import Statistics
from libra.planning.estimate import Estimator, plan_of


def is_move_only(candidate: Plan, current: Plan) -> bool:
    """Whether hybrid moves alone lead from `current` to `candidate` (or nothing has to happen)."""
    return (
        candidate.train == current.train
        and candidate.bounds_tok == current.bounds_tok
        and candidate.colocated == current.colocated
        and set(candidate.instances) == set(current.instances)
    )


def changed_gpu_share(candidate: Plan, current: Plan) -> float:
    """Share of the candidate's rollout GPUs whose instance must start: new, or of another size."""
    there = {(i.id, i.tp) for i in current.instances}
    return sum(i.tp for i in candidate.instances if (i.id, i.tp) not in there) / max(1, candidate.rollout_gpus)


@dataclass
class HorizonGate:
    """Accepts when `gain per step x remaining horizon` exceeds the transition's cost.

    `horizon_steps` is how long the present workload is trusted to last, cut to the steps left in the run. `switch_s` is
    the stall of hybrid moves, `repartition_s` that of a new core layout; when only instances change, their share of the
    rollout GPUs. `min_gain_share` of the current step is hysteresis; after an acceptance `cooldown_steps` must pass.
    The defaults of the last two are the authors' released configuration and a share of the telemetry window (assumed).
    """

    estimator: Estimator
    horizon_steps: int = 20
    switch_s: float = 15.0
    repartition_s: float = 120.0
    min_gain_share: float = 0.05
    cooldown_steps: int = 5
    _accepted_step: int | None = field(default=None, init=False, repr=False)

    def transition_s(self, candidate: Plan, current: Plan) -> float:
        """Stall that the candidate costs once."""
        if is_move_only(candidate, current):
            return 0.0 if candidate.hybrid_training == current.hybrid_training else self.switch_s
        if candidate.train != current.train or candidate.colocated != current.colocated:
            return self.repartition_s
        moves_s = 0.0 if candidate.hybrid_training == current.hybrid_training else self.switch_s
        return max(moves_s, self.repartition_s * changed_gpu_share(candidate, current))

    def accepts(self, candidate: Plan, statistics: Statistics, allocation: Allocation) -> bool:
        """Compare the candidate's expected step with the estimate of what is there under the same statistics."""
        current = plan_of(allocation)
        if current is None or not current.instances:
            return True
        step = statistics.steps[-1].step if statistics.steps else -1
        if self._is_cooling(step):
            return False
        now_s = self.estimator.estimate(current, self.estimator.demand(statistics, allocation)).step_s
        gain_s = now_s - candidate.expected.step_s
        left = max(0, statistics.run.num_steps - (step + 1))
        worth_s = gain_s * min(self.horizon_steps, left)
        changes = not is_move_only(candidate, current) or candidate.hybrid_training != current.hybrid_training
        accepted = changes and gain_s >= self.min_gain_share * now_s and worth_s > self.transition_s(candidate, current)
        if accepted:
            self._accepted_step = step
        return accepted

    def _is_cooling(self, step: int) -> bool:
        last = self._accepted_step
        # A step before the last acceptance belongs to another run.
        return last is not None and last <= step < last + self.cooldown_steps


class AcceptChange:
    """Accepts whatever differs from what is there: for planners that decide by themselves when to stop."""

    def accepts(self, candidate: Plan, statistics: Statistics, allocation: Allocation) -> bool:
        current = plan_of(allocation)
        return current is None or not (
            is_move_only(candidate, current) and candidate.hybrid_training == current.hybrid_training
        )
