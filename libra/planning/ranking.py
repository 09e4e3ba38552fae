"""All splits side by side: what each would cost, why it lost, what the winner leaves idle, what a mechanism buys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from libra.core.errors import CapacityError
from libra.core.events import PipelineSpec
from libra.core.plan import Plan
from libra.core.policy import Statistics
from libra.cost.memory import engine_bytes_per_gpu, train_bytes_per_gpu, usable_bytes
from libra.planning.bound import step_bound_s
from libra.planning.search import JointPlanner


@dataclass(frozen=True)
class Ranked:
    """A plan with its idle shares of a step, and how many times the best plan's step it takes (1: the best)."""

    plan: Plan
    rollout_idle: float
    train_idle: float
    times_best: float

    @property
    def bound_by(self) -> str:
        expected = self.plan.expected
        if self.plan.colocated:
            return "both stages in turn"
        return "rollout" if expected.rollout_s > expected.train_s else "training"


@dataclass(frozen=True)
class Ranking:
    """`plans` ascend by step; one a split and kind of rollout. `bound_s`: no plan of the cluster is below it.

    `memory_left` is the free share of usable memory on a training and on the tightest rollout GPU, `mechanisms` the
    share of the step that each buys, negative where it costs.
    """

    plans: tuple[Ranked, ...]
    bound_s: float
    memory_left: tuple[float, float]
    mechanisms: Mapping[str, float]

    @property
    def best(self) -> Ranked:
        return self.plans[0]

    @property
    def gap(self) -> float:
        return self.best.plan.expected.step_s / self.bound_s - 1


def rank(planner: JointPlanner, statistics: Statistics) -> Ranking:
    """Rank what `planner` compares for the statistics' demand. Raises `CapacityError` when nothing fits."""
    best = planner.plan(statistics, None)
    others = [plan for plan in planner.compared(statistics) if not _is_same(plan, best)]
    ranked = tuple(_ranked(plan, best) for plan in (best, *sorted(others, key=lambda plan: plan.expected.step_s)))
    demand = planner.estimator.demand(statistics, None)
    context = statistics.run.max_context_tok
    sizes = planner.estimator.rollout_sizes(context)
    bound_s = step_bound_s(planner.estimator, demand, sizes, colocated=best.colocated)
    gpu, model = planner.cluster.gpu, planner.model
    usable = usable_bytes(gpu)
    engine = max(engine_bytes_per_gpu(gpu, model, i.tp, context) for i in best.instances)
    left = 1 - train_bytes_per_gpu(model, best.train) / usable, 1 - engine / usable
    return Ranking(ranked, bound_s, left, mechanisms(planner, statistics, best))


def mechanisms(planner: JointPlanner, statistics: Statistics, best: Plan) -> dict[str, float]:
    """Shares of the step without a mechanism that it saves: each against the best plan that lacks only it."""
    step_s = best.expected.step_s
    without = {
        "heterogeneous instances": (replace(planner, heterogeneous=False), statistics),
        "separate pools, overlapped": (replace(planner, colocated=True), _with(statistics, PipelineSpec("colocated"))),
    }
    with_ = {
        "an elastic replica": (replace(planner, hybrid_replicas=1), statistics),
        "asynchrony (staleness 1)": (planner, _with(statistics, PipelineSpec("async", 1))),
    }
    kind = statistics.run.pipeline.kind
    if kind == "colocated":
        del without["separate pools, overlapped"], with_["an elastic replica"]
        with_["separate pools, overlapped"] = (planner, _with(statistics, PipelineSpec("barrier")))
    if kind == "async":
        del with_["asynchrony (staleness 1)"]
        without["asynchrony"] = (planner, _with(statistics, PipelineSpec("barrier")))
    found = {name: _saved(_step_s(*each), step_s) for name, each in without.items()}
    return found | {name: _saved(step_s, _step_s(*each)) for name, each in with_.items()}


def _saved(before_s: float, after_s: float) -> float:
    return 1 - after_s / before_s if before_s < float("inf") else float("nan")


def _step_s(planner: JointPlanner, statistics: Statistics) -> float:
    """inf where nothing fits."""
    try:
        return planner.plan(statistics, None).expected.step_s
    except CapacityError:
        return float("inf")


def _with(statistics: Statistics, pipeline: PipelineSpec) -> Statistics:
    run = msgspec.structs.replace(statistics.run, pipeline=pipeline)
    return msgspec.structs.replace(statistics, run=run)


def _is_same(plan: Plan, best: Plan) -> bool:
    return plan.train == best.train and sizes_of(plan) == sizes_of(best) and plan.bounds_tok == best.bounds_tok


def sizes_of(plan: Plan) -> Sequence[int]:
    """Tensor-parallel sizes of the instances, largest first."""
    return sorted((i.tp for i in plan.instances), reverse=True)


def _ranked(plan: Plan, best: Plan) -> Ranked:
    expected = plan.expected
    busy = (expected.rollout_s / expected.step_s, expected.train_s / expected.step_s)
    idle = (0.0, 0.0) if plan.colocated else (1 - busy[0], 1 - busy[1])
    return Ranked(plan, *idle, expected.step_s / best.expected.step_s)
