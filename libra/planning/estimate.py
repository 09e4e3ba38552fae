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
from libra.cost.calibration import CLIP, Correction, fit_training, moving_factor, observed_rollout_s
from libra.cost.communication import weight_sync_s
from libra.cost.engine import Engine
from libra.cost.loads import Load, batch_loads
from libra.cost.memory import engine_bytes_per_gpu, engine_fits, usable_bytes
from libra.cost.rates import Rates
from libra.cost.requests import Array, Batches, Requests, both_of
from libra.cost.rollout import Pace, Schedule, rollout_pace, rollout_s, schedule_of
from libra.cost.training import TrainLoad, TrainTime, train_load, train_time
from libra.planning.layout import Bucket, RolloutLayout, of_instances, of_pools
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


_PoolKey = tuple[int, float, float]
"""Size of an instance and the totals that it serves: `tp`, above `low_tok`, up to `high_tok`."""


MIN_STEPS_SEEN, SETTLING = 40, 4
"""Steps over which an asynchronous pipeline is followed; the first quarter, while it fills, is not counted."""


FACTORS = np.geomspace(*CLIP, 33)
"""Corrections of rollout that a step's time is looked up among, a twelfth apart; between two of them a step is linear
but for kinks."""
BALANCE_ROUNDS = 6
"""Rounds in which a cap's live trajectories are moved to the slower buckets; the change halves or better in each."""


class _Alone(NamedTuple):
    """What one instance with a bucket to itself is asked to serve."""

    requests: Requests
    load: Load


@dataclass(frozen=True)
class Demand:
    """What one training step asks for, and how much the estimate has been off."""

    run: RunStart
    requests: Requests
    """The window as one batch, for the search."""
    batches: Batches
    """The window batch by batch, for the price of a layout."""
    train: TrainLoad
    schedule: Schedule
    sync_s: float
    correction: Correction = field(default_factory=Correction)
    paces: dict[Bucket, Pace] = field(default_factory=dict, compare=False, repr=False)
    """Uncorrected times of the buckets priced so far: candidates of one search share most of theirs."""
    alone: dict[_PoolKey, _Alone] = field(default_factory=dict, compare=False, repr=False)
    """The same for one instance that serves a bucket by itself."""
    train_times: dict[tuple[TrainLayout, int], TrainTime] = field(default_factory=dict, compare=False, repr=False)
    """The same for training layouts at a number of replicas."""


def steady_step_s(life_s: Array, pace_s: float, train_s: float, sync_s: float, staleness: int) -> float:
    """Mean step of an asynchronous pipeline whose batches live `life_s`, one after another and over again.

    Version v + 1 is there a pace and a sync after version v, and a training and a sync after the last request of the
    batch that started with version v - eta. A long life makes its own steps longer and the next ones no shorter than
    the pace: the mean is above that of an even life.
    """
    lives = _tiled(life_s)
    version_s, seen = _versions_s(lives, pace_s, train_s, sync_s, staleness), len(lives) // SETTLING
    return (version_s[-1] - version_s[seen]) / (len(lives) - seen)


def least_steady_step_s(life_s: Array, pace_s: float, train_s: float, sync_s: float, staleness: int) -> float:
    """What `steady_step_s` is not below, whatever grows: it is not monotone itself, since what delays its first
    versions need not delay the last.

    From the first version that counts to the last no time is shorter than the longest chain of paces and lives between
    them, and that grows with each; chains from earlier versions are left out.
    """
    lives = _tiled(life_s)
    kept = lives[len(lives) // SETTLING :]
    return _versions_s(kept, pace_s, train_s, sync_s, staleness)[-1] / len(kept)


def _tiled(life_s: Array) -> list[float]:
    return list(np.tile(life_s, -(-MIN_STEPS_SEEN // len(life_s))).tolist())


def _versions_s(lives: list[float], pace_s: float, train_s: float, sync_s: float, staleness: int) -> list[float]:
    """When each version is there, from one at 0 on."""
    version_s = [0.0]
    for v in range(len(lives)):
        ready_s = version_s[v] + pace_s
        if v >= staleness:
            ready_s = max(ready_s, version_s[v - staleness] + lives[v - staleness] + train_s)
        version_s.append(ready_s + sync_s)
    return version_s


@dataclass(frozen=True)
class Estimator:
    """Prices layouts of one model on one cluster."""

    cluster: Cluster
    model: Model
    rates: Rates = field(default_factory=Rates)
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
        return {tp: Engine(self.cluster, self.model, tp, self.rates) for tp in tensor_sizes(self.cluster)}

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
        requests, batches = both_of(statistics.finished, run.batch)
        measured = [step.sync_s for step in statistics.steps if step.sync_s > 0]
        colocated = run.pipeline.kind == "colocated"
        sync_s = float(np.mean(measured)) if measured else self.sync_s(colocated=colocated)
        schedule = schedule_of(run.pipeline, run.batch)
        demand = Demand(run, requests, batches, train_load(batches), schedule, sync_s)
        return replace(demand, correction=self._correction(demand, statistics.steps, allocation))

    def sync_s(self, *, colocated: bool) -> float:
        """Weights from training to the engines."""
        return weight_sync_s(self.cluster, self.model, colocated=colocated, rates=self.rates)

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
        same = [s for s in steps if (s.train_layout, s.train_dp) == (allocation.train, allocation.train_dp)]
        seen = [s for step in same if (s := observed_rollout_s(step, demand.run.pipeline.kind)) is not None]
        ratios = self._rollout_factors(replace(demand, correction=Correction(1.0, factor, fixed_s)), current, seen)
        learned = self._factors(demand.run)
        known = max((at for at in learned if not same or at < same[0].step), default=None)
        rollout = moving_factor(ratios, 1.0 if known is None else learned[known])
        if steps:
            learned[steps[-1].step] = rollout
        return Correction(rollout, factor, fixed_s)

    def _rollout_factors(self, demand: Demand, current: Plan, seen_s: Sequence[float]) -> list[float]:
        """By what rollout has to be slower than estimated for `current` to show each of `seen_s`, training corrected.

        A barrier and a colocated step show rollout itself. An asynchronous one shows a chain that holds training too,
        so that its seconds are looked up among those of the whole step at a range of factors.
        """
        pace = self._pace(demand, self.serving(current))
        if not seen_s or not 0 < float(np.mean(pace.work_s)) < float("inf"):
            return []
        if demand.run.pipeline.kind != "async":
            return [each / float(np.mean(pace.work_s)) for each in seen_s]
        dp = current.train.dp + len(current.hybrid_training)
        train_time_s = self.train_s(demand, self.raw_train(demand, current.train, dp))
        steps_s = [
            self.combine(demand, Pace(pace.work_s * factor, pace.life_s * factor), train_time_s).step_s - demand.sync_s
            for factor in FACTORS
        ]
        # Where slower rollout leaves a step as it is, training sets the pace: no step shows less than the last such.
        shown = np.maximum.accumulate(steps_s)
        last = np.append(np.diff(shown) > 0, True)
        return [float(each) for each in np.interp(seen_s, shown[last], FACTORS[last])]

    def _factors(self, run: RunStart) -> dict[int, float]:
        """Rollout's factors in this run so far."""
        found = self._learned.get("rollout")
        if found is None or found[0] is not run:
            found = self._learned["rollout"] = run, {}
        return found[1]

    def serving(self, plan: Plan) -> tuple[Bucket, ...]:
        """Buckets of the instances of `plan` that serve rollout in its state."""
        lent = set(plan.hybrid_training)
        return of_instances([i for i in plan.instances if i.hybrid not in lent], plan.bounds_tok)

    def raw_train(self, demand: Demand, layout: TrainLayout, dp: int) -> TrainTime:
        """Uncorrected."""
        found = demand.train_times.get((layout, dp))
        if found is None:
            found = demand.train_times[layout, dp] = train_time(
                self.cluster, self.model, layout, demand.train, dp, self.rates
            )
        return found

    def raw_rollout_s(self, demand: Demand, layout: RolloutLayout) -> float:
        """Uncorrected mean makespan of a batch (see `_pace`), training aside."""
        return self._alone_s(demand, self._pace(demand, of_pools(layout, demand.requests)))

    def _alone_s(self, demand: Demand, pace: Pace) -> float:
        """Mean over batches as if training took no time."""
        return float(np.mean(np.maximum(pace.work_s, pace.life_s / ((demand.schedule.staleness or 0) + 1))))

    def _pace(self, demand: Demand, buckets: Sequence[Bucket]) -> Pace:
        """Uncorrected times of each batch: those of its slowest bucket. Inside a bucket requests are shared by speed,
        not by length."""
        if not buckets:
            return Pace(np.full(demand.batches.num, np.inf), np.zeros(demand.batches.num))
        paces = [self._bucket_pace(demand, bucket) for bucket in buckets]
        if len(buckets) > 1 and demand.schedule.live_share < demand.schedule.most_live:
            paces = self._balanced(demand, buckets, paces)
        return Pace(*(np.maximum.reduce(each) for each in zip(*paces, strict=True)))

    def _balanced(self, demand: Demand, buckets: Sequence[Bucket], paces: list[Pace]) -> list[Pace]:
        """With a cap on live trajectories the slow buckets come to hold more of them than their part of the batch, as
        in any closed network of queues, until all are as fast or hold all they may."""
        schedule, num = demand.schedule, [self._num(demand, bucket) for bucket in buckets]
        live = [each * schedule.live_share for each in num]
        cap = sum(live)
        for _ in range(BALANCE_ROUNDS):
            wanted = [mine * pace.work_s for mine, pace in zip(live, paces, strict=True)]
            scale = cap / np.maximum(sum(wanted), 1e-12)
            live = [
                np.minimum(each * scale, count * schedule.most_live) for each, count in zip(wanted, num, strict=True)
            ]
            shares = [mine / np.maximum(count, 1e-12) for mine, count in zip(live, num, strict=True)]
            paces = [
                self._priced(demand, bucket, replace(schedule, live_share=share))
                for bucket, share in zip(buckets, shares, strict=True)
            ]
        return paces

    def _num(self, demand: Demand, bucket: Bucket) -> Array:
        """Requests of each batch in a bucket."""
        return np.asarray(self._alone(demand, (bucket.sizes[0][0], bucket.low_tok, bucket.high_tok)).load.num)

    def _bucket_pace(self, demand: Demand, bucket: Bucket) -> Pace:
        """Uncorrected times of each batch in one bucket; inf where none of its instances can serve it."""
        found = demand.paces.get(bucket)
        if found is None:
            found = demand.paces[bucket] = self._priced(demand, bucket, demand.schedule)
        return found

    def _priced(self, demand: Demand, bucket: Bucket, schedule: Schedule) -> Pace:
        alone = {tp: self._alone(demand, (tp, bucket.low_tok, bucket.high_tok)) for tp, _ in bucket.sizes}
        if len(alone) == 1:
            (tp, count), (each,) = bucket.sizes[0], alone.values()
            return rollout_pace(self.engines[tp], each.requests, each.load, schedule, 1 / count)
        speeds = {tp: self._speed(demand, tp, each) for tp, each in alone.items()}
        total = np.asarray(sum(speeds[tp] * count for tp, count in bucket.sizes))
        return self._shared(alone, speeds, total, schedule)

    def _shared(self, alone: dict[int, _Alone], speeds: dict[int, Array], total: Array, schedule: Schedule) -> Pace:
        """Times of the instances for their shares, which go by speed; a batch with nothing to serve takes none."""
        paces = []
        for tp, each in alone.items():
            share = np.divide(speeds[tp], total, out=np.ones_like(total), where=np.isfinite(total) & (total > 0))
            pace = rollout_pace(self.engines[tp], each.requests, each.load, schedule, share)
            paces.append(Pace(*(np.where(share > 0, time, 0.0) for time in pace)))
        work_s, life_s = (np.maximum.reduce(each) for each in zip(*paces, strict=True))
        return Pace(np.where(total > 0, work_s, np.inf), life_s)

    def _alone(self, demand: Demand, key: _PoolKey) -> _Alone:
        found = demand.alone.get(key)
        if found is None:
            tp, low_tok, high_tok = key
            some = demand.batches.between(low_tok, high_tok)
            load = batch_loads(self.engines[tp], some, demand.schedule.staleness or 0)
            found = demand.alone[key] = _Alone(some.requests, load)
        return found

    def _speed(self, demand: Demand, tp: int, alone: _Alone) -> Array:
        """Batches a second of one instance, batch by batch; inf for an empty one."""
        with np.errstate(divide="ignore"):
            return np.asarray(1 / rollout_s(self.engines[tp], alone.requests, alone.load, demand.schedule))

    def train_s(self, demand: Demand, time: TrainTime) -> float:
        """Corrected, and never faster than the hardware's peak."""
        corrected = time.total_s * demand.correction.train + demand.correction.train_fixed_s
        return max(time.floor_s, corrected)

    def rollout_s(self, demand: Demand, layout: RolloutLayout) -> float:
        """Corrected mean makespan, training aside."""
        return self.raw_rollout_s(demand, layout) * demand.correction.rollout

    def rollout_pace(self, demand: Demand, buckets: Sequence[Bucket]) -> Pace:
        """Corrected times of each batch."""
        pace, factor = self._pace(demand, buckets), demand.correction.rollout
        return Pace(pace.work_s * factor, pace.life_s * factor)

    def combine(self, demand: Demand, rollout: Pace, train_time_s: float) -> Estimate:
        """Step time by pipeline, as the mean over the window's batches.

        Colocated, or staleness 0: one stage after the other. Barrier: the slower of the two, batch by batch, since no
        batch makes up for another one's wait. Asynchronous with staleness eta: a batch that starts at version v is
        trained and synced before version v + eta + 1, so that `eta + 1` steps hold its last request, training and
        sync; and no stage is faster than its own pace.
        """
        pipeline = demand.run.pipeline
        if pipeline.kind == "colocated" or (pipeline.kind == "async" and pipeline.staleness == 0):
            rollout_time_s = float(np.mean(rollout.work_s))
            return Estimate(rollout_time_s, train_time_s, rollout_time_s + train_time_s + demand.sync_s)
        if pipeline.kind == "barrier":
            step_s = float(np.mean(np.maximum(rollout.work_s, train_time_s))) + demand.sync_s
            return Estimate(float(np.mean(rollout.work_s)), train_time_s, step_s)
        work_s = float(np.mean(rollout.work_s))
        step_s = steady_step_s(
            rollout.life_s, max(train_time_s, work_s), train_time_s, demand.sync_s, pipeline.staleness
        )
        alone_s = steady_step_s(rollout.life_s, work_s, train_time_s, demand.sync_s, pipeline.staleness)
        return Estimate(alone_s - demand.sync_s, train_time_s, step_s)

    def estimate(self, plan: Plan, demand: Demand) -> Estimate:
        """Expectation for `plan` in the state that its `hybrid_training` names."""
        dp = plan.train.dp + len(plan.hybrid_training)
        train_time_s = self.train_s(demand, self.raw_train(demand, plan.train, dp))
        return self.combine(demand, self.rollout_pace(demand, self.serving(plan)), train_time_s)
