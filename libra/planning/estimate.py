"""One estimator for candidate plans and for what is there: the same demand, the same correction, the same step.

Planner and gate both ask it, so a candidate and the current allocation are always compared under equal statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from libra.core.errors import CapacityError
from libra.core.events import RunStart, StepEnd
from libra.core.hardware import Cluster, Model
from libra.core.plan import Allocation, Estimate, InstanceSpec, Plan, TrainLayout
from libra.core.policy import Statistics
from libra.cost.calibration import Correction, fit_training, moving_factor, observed_rollout_s
from libra.cost.communication import weight_sync_s
from libra.cost.memory import engine_bytes_per_gpu, engine_fits, usable_bytes
from libra.cost.requests import Requests, compress, part
from libra.cost.rollout import Engine, Load, Schedule, rollout_s, schedule_of, whole_load
from libra.cost.training import TrainLoad, TrainTime, train_load, train_time
from libra.planning.layout import RolloutLayout, of_instances
from libra.planning.topology import GB, tensor_sizes


def plan_of(allocation: Allocation) -> Plan | None:
    """What is there, as a plan; None while there is no training job. Instances that are down do not count."""
    if allocation.train is None:
        return None
    return Plan(
        train=allocation.train,
        instances=tuple(
            InstanceSpec(i.id, i.tp, i.bucket, i.hybrid) for i in allocation.instances if i.state != "down"
        ),
        bounds_tok=allocation.bounds_tok,
        hybrid_training=allocation.hybrid_training,
        colocated=allocation.colocated,
    )


_PoolKey = tuple[int, int, int]
"""Size of an instance and the points that it serves: `tp`, `low`, `high`."""
_Bucket = tuple[tuple[_PoolKey, int], ...]
"""Pools of one bucket with their counts."""


class _Alone(NamedTuple):
    """One instance with a bucket to itself; `speed` is buckets a second."""

    points: Requests
    load: Load
    speed: float


@dataclass(frozen=True)
class Demand:
    """What one training step asks for, and how much the estimate has been off."""

    run: RunStart
    requests: Requests
    train: TrainLoad
    schedule: Schedule
    sync_s: float
    correction: Correction = field(default_factory=Correction)
    bucket_s: dict[_Bucket, float] = field(default_factory=dict, compare=False, repr=False)
    """Uncorrected seconds of the buckets priced so far: candidates of one search share most of theirs."""
    alone: dict[_PoolKey, _Alone] = field(default_factory=dict, compare=False, repr=False)
    """The same for one instance that serves a bucket by itself."""
    train_times: dict[tuple[TrainLayout, int], TrainTime] = field(default_factory=dict, compare=False, repr=False)
    """The same for training layouts at a number of replicas."""


@dataclass(frozen=True)
class Estimator:
    """Prices layouts of one model on one cluster."""

    cluster: Cluster
    model: Model
    _latest: dict[str, tuple[Statistics, Allocation | None, Demand]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """The last question and its answer: planner and gate ask the same one, and share what has been priced for it."""
    _learned: dict[str, tuple[RunStart, dict[int, float]]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """Rollout's factor by the step after which it was asked for, of one run: what it was on the layout before."""

    @cached_property
    def engines(self) -> dict[int, Engine]:
        """Every instance size that packs into nodes, whether or not the model fits it."""
        return {tp: Engine(self.cluster, self.model, tp) for tp in tensor_sizes(self.cluster)}

    def rollout_sizes(self, max_context_tok: int) -> tuple[int, ...]:
        """Sizes that serve the whole context. Raises `CapacityError` when there is none."""
        gpu = self.cluster.gpu
        fitting = tuple(tp for tp in self.engines if engine_fits(gpu, self.model, tp, max_context_tok))
        if fitting:
            return fitting
        tp = max(self.engines)
        needed = engine_bytes_per_gpu(gpu, self.model, tp, max_context_tok) / GB
        raise CapacityError(
            f"no rollout instance of {self.model.name} fits: at tensor parallel {tp} weights and one sequence of "
            f"{max_context_tok} tokens need {needed:.1f} GB a GPU, {usable_bytes(gpu) / GB:.1f} GB of {gpu.name} "
            "are usable",
            where="planner",
            mend="take GPUs with more memory, a smaller model or a shorter context",
        )

    def demand(self, statistics: Statistics, allocation: Allocation | None) -> Demand:
        """One step's demand, corrected by the steps that ran on the current allocation."""
        latest = self._latest.get("demand")
        if latest is None or latest[0] is not statistics or latest[1] is not allocation:
            latest = self._latest["demand"] = statistics, allocation, self._demand(statistics, allocation)
        return latest[2]

    def _demand(self, statistics: Statistics, allocation: Allocation | None) -> Demand:
        run = statistics.run
        requests = compress(statistics.finished, run.batch)
        measured = [step.sync_s for step in statistics.steps if step.sync_s > 0]
        colocated = run.pipeline.kind == "colocated"
        sync_s = float(np.mean(measured)) if measured else weight_sync_s(self.cluster, self.model, colocated=colocated)
        demand = Demand(run, requests, train_load(requests), schedule_of(run.pipeline, run.batch), sync_s)
        return replace(demand, correction=self._correction(demand, statistics.steps, allocation))

    def _correction(self, demand: Demand, steps: Sequence[StepEnd], allocation: Allocation | None) -> Correction:
        """Training learns from every step of the window, rollout only from those since the last change of layout; it
        starts from what the layouts before have taught, or a layout on which training sets the pace, which shows
        nothing of rollout, would be left for one that does, and that again as soon as it is forgotten."""
        expected, measured = [], []
        for step in steps:
            if step.train_s > 0 and step.trained_tok > 0:
                time = self.raw_train(demand, step.train_layout, step.train_dp)
                expected.append(time.work_s * step.trained_tok / demand.train.total_tok + time.constant_s)
                measured.append(step.train_s)
        factor, fixed_s = fit_training(expected, measured) if expected else (1.0, 0.0)
        current = plan_of(allocation) if allocation else None
        if allocation is None or current is None or not current.instances:
            return Correction(train=factor, train_fixed_s=fixed_s)
        rollout_estimate_s = self.raw_rollout_s(demand, self.serving(current, demand.requests))
        same = [s for s in steps if (s.train_layout, s.train_dp) == (allocation.train, allocation.train_dp)]
        seen = [observed_rollout_s(step, demand.run.pipeline.kind) for step in same]
        ratios = [s / rollout_estimate_s for s in seen if s is not None and rollout_estimate_s > 0]
        learned = self._factors(demand.run)
        known = max((at for at in learned if not same or at < same[0].step), default=None)
        rollout = moving_factor(ratios, 1.0 if known is None else learned[known])
        if steps:
            learned[steps[-1].step] = rollout
        return Correction(rollout, factor, fixed_s)

    def _factors(self, run: RunStart) -> dict[int, float]:
        """Rollout's factors in this run so far."""
        found = self._learned.get("rollout")
        if found is None or found[0] is not run:
            found = self._learned["rollout"] = run, {}
        return found[1]

    def serving(self, plan: Plan, requests: Requests) -> RolloutLayout:
        """Instances of `plan` that serve rollout in its state, as pools."""
        lent = set(plan.hybrid_training)
        return of_instances([i for i in plan.instances if i.hybrid not in lent], plan.bounds_tok, requests)

    def raw_train(self, demand: Demand, layout: TrainLayout, dp: int) -> TrainTime:
        """Uncorrected."""
        found = demand.train_times.get((layout, dp))
        if found is None:
            found = demand.train_times[layout, dp] = train_time(self.cluster, self.model, layout, demand.train, dp)
        return found

    def raw_rollout_s(self, demand: Demand, layout: RolloutLayout) -> float:
        """Uncorrected makespan: the slowest bucket. Inside a bucket requests are shared by speed, not by length."""
        if not layout.pools:
            return float("inf")
        buckets: dict[tuple[int, int], list[tuple[_PoolKey, int]]] = {}
        for pool in layout.pools:
            if pool.low != pool.high:
                buckets.setdefault((pool.low, pool.high), []).append(((pool.tp, pool.low, pool.high), pool.count))
        return max((self._bucket_s(demand, tuple(pools)) for pools in buckets.values()), default=0.0)

    def _bucket_s(self, demand: Demand, pools: _Bucket) -> float:
        """Uncorrected makespan of the pools that share a bucket; inf where none of them can serve it."""
        found = demand.bucket_s.get(pools)
        if found is None:
            total = sum(self._alone(demand, key).speed * count for key, count in pools)
            found = max(self._taken_s(demand, key, total) for key, _ in pools) if total > 0 else float("inf")
            demand.bucket_s[pools] = found
        return found

    def _alone(self, demand: Demand, key: _PoolKey) -> _Alone:
        found = demand.alone.get(key)
        if found is None:
            tp, low, high = key
            points = part(demand.requests, low, high)
            load = whole_load(self.engines[tp], points)
            speed = 1 / float(rollout_s(self.engines[tp], points, load, demand.schedule))
            found = demand.alone[key] = _Alone(points, load, speed)
        return found

    def _taken_s(self, demand: Demand, key: _PoolKey, total_speed: float) -> float:
        """Time of an instance for its share of the bucket, which goes by speed."""
        points, load, speed = self._alone(demand, key)
        return float(rollout_s(self.engines[key[0]], points, load, demand.schedule, speed / total_speed))

    def train_s(self, demand: Demand, time: TrainTime) -> float:
        """Corrected, and never faster than the hardware's peak."""
        corrected = time.total_s * demand.correction.train + demand.correction.train_fixed_s
        return max(time.floor_s, corrected)

    def rollout_s(self, demand: Demand, layout: RolloutLayout) -> float:
        """Corrected."""
        return self.raw_rollout_s(demand, layout) * demand.correction.rollout

    def combine(self, demand: Demand, rollout_time_s: float, train_time_s: float) -> Estimate:
        """Step time by pipeline: one stage after the other (colocated, or staleness 0), else the slower of the two."""
        pipeline = demand.run.pipeline
        serial = pipeline.kind == "colocated" or (pipeline.kind == "async" and pipeline.staleness == 0)
        busy_s = rollout_time_s + train_time_s if serial else max(rollout_time_s, train_time_s)
        return Estimate(rollout_time_s, train_time_s, busy_s + demand.sync_s)

    def estimate(self, plan: Plan, demand: Demand) -> Estimate:
        """Expectation for `plan` in the state that its `hybrid_training` names."""
        dp = plan.train.dp + len(plan.hybrid_training)
        train_time_s = self.train_s(demand, self.raw_train(demand, plan.train, dp))
        rollout_time_s = self.rollout_s(demand, self.serving(plan, demand.requests))
        return self.combine(demand, rollout_time_s, train_time_s)
