"""Rollout layouts of equal instances: one bucket, every size that divides the budget. Always a candidate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from libra.planning.estimate import Demand, Estimator
from libra.planning.layout import Pool, RolloutLayout


def homogeneous_layouts(num_gpus: int, sizes: Sequence[int], num_points: int) -> tuple[RolloutLayout, ...]:
    """One pool per size that divides `num_gpus`; smaller instances first."""
    return tuple(
        RolloutLayout((Pool(tp, num_gpus // tp, 0, num_points),)) for tp in sorted(sizes) if num_gpus % tp == 0
    )


def best_homogeneous(
    estimator: Estimator, demand: Demand, num_gpus: int, sizes: Sequence[int]
) -> tuple[RolloutLayout, float] | None:
    """Fastest of them with its corrected makespan in seconds; None when no size divides the budget."""
    priced = [
        (layout, estimator.rollout_s(demand, layout))
        for layout in homogeneous_layouts(num_gpus, sizes, len(demand.requests))
    ]
    return min(priced, key=lambda pair: pair[1], default=None)


def fill(estimator: Estimator, demand: Demand, layout: RolloutLayout, num_gpus: int) -> RolloutLayout:
    """Give left-over GPUs to the slowest pool whose instances fit into them, else smaller instances to the first."""
    pools = list(layout.pools)

    @cache
    def alone_s(pool: Pool) -> float:
        return estimator.raw_rollout_s(demand, RolloutLayout((pool,)))

    while (left := num_gpus - sum(pool.num_gpus for pool in pools)) > 0:
        fitting = [i for i, pool in enumerate(pools) if pool.tp <= left]
        if not fitting:
            usable = [tp for tp in estimator.rollout_sizes(demand.run.max_context_tok) if tp <= left]
            if not usable:
                break
            tp = max(usable)
            pools.insert(0, Pool(tp, left // tp, pools[0].low, pools[0].high))
            continue
        slowest = max(fitting, key=lambda i: alone_s(pools[i]))
        # A quarter of what is left at a time keeps this short on thousands of GPUs.
        more = max(1, left // pools[slowest].tp // 4)
        old = pools[slowest]
        pools[slowest] = Pool(old.tp, old.count + more, old.low, old.high)
    return RolloutLayout(tuple(pools))
