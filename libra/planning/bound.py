"""A step time that no plan of a cluster is below, by the estimate that prices plans: how far can the best one be off?

Rollout: every request needs at least so many GPU seconds, on whatever instance, and the longest one its serial time.
Training: the FLOPs of a step at the estimate's efficiency. Both hold for every split, layout and routing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from libra.cost.engine import MAX_SEQUENCES, Engine
from libra.cost.loads import serial_s
from libra.cost.requests import Array, Batches
from libra.cost.rollout import Pace
from libra.cost.training import least_train_s
from libra.planning.estimate import Demand, Estimator, least_steady_step_s


def rollout_gpu_s(engines: Sequence[Engine], batches: Batches) -> Array:
    """GPU seconds of each batch's requests, each on the size that takes the fewest; of shape [num].

    Decode steps are limited twice: by the sequences of a batch, and by the context that the KV cache holds, so that
    `traffic / capacity` steps are needed whatever the batch.
    """
    requests = batches.requests
    by_batch, by_memory = [], []
    for engine in engines:
        own_s = engine.kv_s_per_tok * requests.traffic_tok + engine.prefill_s(
            requests.prefill_tok, requests.prefill_pairs
        )
        by_batch.append(engine.tp * (own_s + requests.generated_tok * least_s_per_tok(engine)))
        num_steps = requests.traffic_tok / max(engine.capacity_tok, 1)
        by_memory.append(engine.tp * (own_s + num_steps * engine.step_s(1.0)))
    return np.maximum(*(batches.sums(np.minimum.reduce(each)) for each in (by_batch, by_memory)))


def least_s_per_tok(engine: Engine) -> float:
    """Seconds of decode steps per generated token at the best batch, without KV reads.

    Steps take longer with more sequences, so between batches n and n + 1 a token costs at least `step(n) / (n + 1)`.
    """
    batch = np.arange(1, MAX_SEQUENCES + 1)
    return float((engine.step_s(batch) / (batch + 1)).min())


@dataclass(frozen=True)
class RolloutBound:
    """What every rollout layout of `sizes` needs: corrected GPU seconds and the longest serial time of each batch."""

    estimator: Estimator
    demand: Demand
    sizes: tuple[int, ...]

    @cached_property
    def _gpu_s(self) -> Array:
        engines = [self.estimator.engines[tp] for tp in self.sizes]
        return rollout_gpu_s(engines, self.demand.batches)

    @cached_property
    def _last_s(self) -> Array:
        requests = self.demand.batches.requests
        serial = np.minimum.reduce([serial_s(self.estimator.engines[tp], requests) for tp in self.sizes])
        return np.asarray(serial[self.demand.batches.largest(serial)] * self.demand.correction.rollout)

    def pace(self, num_gpus: int) -> Pace:
        """Corrected times of each batch that no rollout on `num_gpus` is below."""
        work_s = self._gpu_s / num_gpus * self.demand.correction.rollout
        if self.demand.schedule.staleness is None:
            return Pace(np.maximum(work_s, self._last_s), np.zeros_like(work_s))
        return Pace(work_s, self._last_s)


def train_bound_s(estimator: Estimator, demand: Demand, num_gpus: int) -> float:
    """Corrected seconds that no training layout of `num_gpus` is below."""
    least_s = least_train_s(estimator.cluster, estimator.model, demand.train, num_gpus, estimator.rates)
    return least_s * demand.correction.train + demand.correction.train_fixed_s


def step_bound_s(estimator: Estimator, demand: Demand, sizes: Sequence[int], *, colocated: bool) -> float:
    """Seconds that no plan of the whole cluster is below."""
    total = estimator.cluster.num_gpus
    least = RolloutBound(estimator, demand, tuple(sizes))
    splits = [(total, total)] if colocated else [(total - train, train) for train in range(1, total)]
    return min(
        _least_step_s(
            estimator,
            demand,
            least.pace(rollout),
            train_bound_s(estimator, demand, train),
        )
        for rollout, train in splits
    )


def _least_step_s(estimator: Estimator, demand: Demand, rollout: Pace, train_s: float) -> float:
    """The step of these times, below which no longer ones bring it."""
    pipeline = demand.run.pipeline
    if pipeline.kind != "async" or pipeline.staleness == 0:
        return estimator.combine(demand, rollout, train_s).step_s
    pace_s = max(train_s, float(np.mean(rollout.work_s)))
    return least_steady_step_s(rollout.life_s, pace_s, train_s, demand.sync_s, pipeline.staleness)
