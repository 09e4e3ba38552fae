"""Planners of the baselines: fixed halves, the authors' released pattern, a greedy heuristic, best static layouts.

The sources define none of the four baselines beyond their names, so each class says how we read it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from libra.core.errors import CapacityError, ConfigError
from libra.core.events import StepEnd
from libra.core.hardware import Cluster, Model
from libra.core.plan import Allocation, InstanceSpec, Plan, TrainLayout
from libra.core.policy import Statistics
from libra.cost.calibration import WAITING_SHARE
from libra.cost.memory import train_fits
from libra.planning.estimate import Estimator, plan_of
from libra.planning.layout import ascending
from libra.planning.search import JointPlanner, check_two_pools
from libra.planning.topology import layouts, no_layout


def priced(plan: Plan, cluster: Cluster, model: Model, statistics: Statistics) -> Plan:
    """`plan` with its expected step, if there are lengths to expect it from."""
    if not statistics.finished:
        return plan
    estimator = Estimator(cluster, model)
    return msgspec.structs.replace(plan, expected=estimator.estimate(plan, estimator.demand(statistics, None)))


def train_layout(
    cluster: Cluster, model: Model, statistics: Statistics, num_gpus: int, tp: int | None = None
) -> TrainLayout:
    """Pure tensor and data parallelism on `num_gpus`, of `tp` or the smallest that fits; pipelines when none does.

    Raises `CapacityError`.
    """
    run = statistics.run
    found = [
        layout
        for layout in layouts(cluster, model, num_gpus, run.max_context_tok)
        if layout.ep == 1 and train_fits(cluster.gpu, model, layout) and tp in (None, layout.tp)
    ]
    if not found:
        raise no_layout(cluster, model, num_gpus, run.max_context_tok)
    return min(found, key=lambda layout: (layout.pp, layout.tp))


def equal_instances(num_gpus: int, tp: int) -> tuple[InstanceSpec, ...]:
    """As many instances of `tp` as `num_gpus` hold, one bucket."""
    return tuple(InstanceSpec(i, tp) for i in range(num_gpus // tp))


def check_engine(estimator: Estimator, tp: int, max_context_tok: int) -> None:
    """Raise `CapacityError` unless an instance of `tp` holds the model and one full sequence."""
    fitting = estimator.rollout_sizes(max_context_tok)
    if tp not in fitting:
        raise CapacityError(
            f"{estimator.model.name} does not fit a rollout instance of this tensor-parallel size on "
            f"{estimator.cluster.name}",
            where="planner",
            value=tp,
            allowed=fitting,
        )


@dataclass(frozen=True)
class UniformPlanner:
    """verl-Static-Uniform: a fixed share for training, equal instances for the rest (24/24 of 48 by default).

    `colocated` gives both stages all GPUs (verl-Colocated). No source gives the baseline's rollout or training size.
    """

    cluster: Cluster
    model: Model
    train_share: float = 0.5
    tp: int = 1
    train_tp: int | None = 4
    colocated: bool = False

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        """Independent of lengths and of what is there."""
        total, context = self.cluster.num_gpus, statistics.run.max_context_tok
        check_engine(Estimator(self.cluster, self.model), self.tp, context)
        colocated = self.colocated or statistics.run.pipeline.kind == "colocated"
        unit = self.train_tp or 1
        num_train = total if colocated else int(total * self.train_share) // unit * unit
        num_rollout = total if colocated else total - num_train
        if not num_train or num_rollout < self.tp:
            raise ConfigError(
                "the split leaves a stage without GPUs",
                where="UniformPlanner.train_share",
                value=self.train_share,
                mend=f"{self.cluster.name} has {total} GPUs; training takes multiples of {unit}",
            )
        layout = train_layout(self.cluster, self.model, statistics, num_train, self.train_tp)
        plan = Plan(layout, equal_instances(num_rollout, self.tp), (context,), colocated=colocated, note="uniform")
        return priced(plan, self.cluster, self.model, statistics)


@dataclass(frozen=True)
class PatternPlanner:
    """The authors' released 48-GPU pattern: instances of 1, 1, 2 and 4 GPUs per rollout node, a third of the nodes for
    training, one bucket per size with bounds at the 40 % and 75 % quantiles of total length."""

    cluster: Cluster
    model: Model
    pattern: tuple[int, ...] = (1, 1, 2, 4)
    train_share: float = 1 / 3
    quantiles: tuple[float, ...] = (0.40, 0.75)

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        """Needs a profile for the bounds, and nodes as large as the pattern."""
        per_node, context = self.cluster.gpus_per_node, statistics.run.max_context_tok
        num_train = max(1, round(self.cluster.num_nodes * self.train_share)) * per_node
        num_nodes = self.cluster.num_nodes - num_train // per_node
        if per_node % sum(self.pattern) or num_nodes < 1:
            raise ConfigError(
                f"the pattern needs at least two nodes of a multiple of {sum(self.pattern)} GPUs",
                where="PatternPlanner",
                value=f"{self.cluster.num_nodes} x {per_node}",
            )
        sizes = sorted(set(self.pattern))
        check_engine(Estimator(self.cluster, self.model), sizes[0], context)
        all_sizes = sorted(self.pattern * (num_nodes * per_node // sum(self.pattern)))
        instances = tuple(InstanceSpec(i, tp, sizes.index(tp)) for i, tp in enumerate(all_sizes))
        totals = [f.total_tok for f in statistics.finished]
        cuts = [int(np.quantile(totals, q)) for q in self.quantiles]
        assert len(cuts) == len(sizes) - 1, "one quantile less than sizes"
        bounds = ascending(cuts, context)
        layout = train_layout(self.cluster, self.model, statistics, num_train)
        return priced(Plan(layout, instances, bounds, note="released pattern"), self.cluster, self.model, statistics)


@dataclass(frozen=True)
class GreedyPlanner:
    """verl-Greedy-Heuristic, our reading: start even with the smallest sizes that fit, move 8 GPUs toward the slower
    stage after each of the first five steps, then freeze. Ask it every step, with the gate `AcceptChange`."""

    cluster: Cluster
    model: Model
    moved_gpus: int = 8
    adjusting_steps: int = 5

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        """Looks at the last step's stage times only."""
        current = plan_of(allocation) if allocation else None
        if current is None:
            check_two_pools(self.cluster)
            return self._split(statistics, self.cluster.num_gpus // 2)
        if not statistics.steps or statistics.steps[-1].step >= self.adjusting_steps:
            return current
        toward = -1 if rollout_is_slower(statistics.steps[-1], statistics.run.pipeline.kind) else 1
        num_train = current.train.num_gpus + toward * self.moved_gpus
        if not self.moved_gpus <= num_train <= self.cluster.num_gpus - self.moved_gpus:
            return current
        try:
            return self._split(statistics, num_train)
        except CapacityError:
            # Training no longer fits: the heuristic has hit the wall, and stays.
            return current

    def _split(self, statistics: Statistics, num_train: int) -> Plan:
        context = statistics.run.max_context_tok
        tp = Estimator(self.cluster, self.model).rollout_sizes(context)[0]
        layout = train_layout(self.cluster, self.model, statistics, num_train)
        num_rollout = self.cluster.num_gpus - num_train
        plan = Plan(layout, equal_instances(num_rollout, tp), (context,), note="greedy")
        return priced(plan, self.cluster, self.model, statistics)


def rollout_is_slower(step: StepEnd, kind: str) -> bool:
    """Which stage sets the pace; an asynchronous step reports the trainer's wait instead of a makespan."""
    if kind == "async":
        return step.rollout_s > WAITING_SHARE * step.step_s
    return step.rollout_s > step.train_s


class StaticOptimalPlanner(JointPlanner):
    """AReaL-Static-Optimal, our reading: the joint search over all static layouts on the initial profile, once."""

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        """What is there, once there is something."""
        current = plan_of(allocation) if allocation else None
        return current or super().plan(statistics, None)


@dataclass(frozen=True)
class BestHomogeneousPlanner(JointPlanner):
    """Best split with equal instances: the baseline that any heterogeneous claim has to beat."""

    heterogeneous: bool = False


@dataclass(frozen=True)
class FixedPlanner:
    """Equal instances of `tp` beside `num_train_gpus` of training in its best layout."""

    cluster: Cluster
    model: Model
    tp: int
    num_train_gpus: int

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        """Raises `CapacityError` when the size does not fit or does not divide what training leaves."""
        planner = JointPlanner(
            self.cluster, self.model, heterogeneous=False, train_gpus=self.num_train_gpus, sizes=(self.tp,)
        )
        return planner.plan(statistics, allocation)
