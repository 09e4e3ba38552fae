"""Local search around the interval program's answer, by the price that plans are compared at.

The program sees one mean batch and minimises its slowest instance; the estimate takes the mean over batches of the
slowest bucket. The neighbours of a layout relieve its slowest bucket: instances halved or doubled, a bound moved, GPUs
taken from another pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from libra.planning.estimate import Demand, Estimator
from libra.planning.layout import Pool, RolloutLayout, coarsen, of_pools

SHIFTS = (8, 4, 2, 1)
"""Points by which a bound is moved, of the 64 that the program looks at."""
LEAST_GAIN = 1e-3
"""A neighbour this much better is taken: far below what the estimate can tell (assumed)."""


def refine(
    estimator: Estimator,
    demand: Demand,
    layout: RolloutLayout,
    sizes: Sequence[int],
    train_s: float,
    max_prices: int,
) -> RolloutLayout:
    """The first neighbour with a shorter step beside training of `train_s`, again and again, until there is none or
    `max_prices` have been priced. Neighbours whose bounds a router could not tell apart are passed over."""
    best_s, seen = _step_s(estimator, demand, layout, train_s), {layout}
    while True:
        for neighbour in neighbours(layout, sizes, _slowest(estimator, demand, layout)):
            if neighbour in seen or coarsen(neighbour, demand.requests, demand.run.max_context_tok) != neighbour:
                continue
            if len(seen) > max_prices:
                return layout
            seen.add(neighbour)
            step_s = _step_s(estimator, demand, neighbour, train_s)
            if step_s < best_s * (1 - LEAST_GAIN):
                layout, best_s = neighbour, step_s
                break
        else:
            return layout


def _step_s(estimator: Estimator, demand: Demand, layout: RolloutLayout, train_s: float) -> float:
    return estimator.combine(demand, estimator.rollout_pace(demand, of_pools(layout, demand.requests)), train_s).step_s


def _slowest(estimator: Estimator, demand: Demand, layout: RolloutLayout) -> tuple[int, int]:
    """Points (from, to) of the bucket that takes the longest by itself."""
    buckets: dict[tuple[int, int], list[Pool]] = {}
    for pool in layout.pools:
        buckets.setdefault((pool.low, pool.high), []).append(pool)
    return max(buckets, key=lambda at: estimator.raw_rollout_s(demand, RolloutLayout(tuple(buckets[at]))))


def neighbours(layout: RolloutLayout, sizes: Sequence[int], slow: tuple[int, int]) -> Iterator[RolloutLayout]:
    """Layouts on as many GPUs or fewer that differ by one move at the bucket of points `slow`."""
    pools = layout.pools
    mine = [i for i, pool in enumerate(pools) if (pool.low, pool.high) == slow]
    for i in mine:
        yield from _resized(pools, i, sizes)
    for shift in SHIFTS:
        yield from _shifted(pools, slow, shift)
    for giver in range(len(pools)):
        if giver not in mine:
            for taker in mine:
                yield from _moved(pools, giver, taker)


def _resized(pools: Sequence[Pool], at: int, sizes: Sequence[int]) -> Iterator[RolloutLayout]:
    """As many instances of a pool as can be, or as few, of twice or half their size."""
    pool = pools[at]
    for tp in (pool.tp * 2, pool.tp // 2):
        whole, least = pool.num_gpus // tp * tp if tp else 0, max(tp, pool.tp)
        for num_gpus in dict.fromkeys((whole, least)):
            if tp in sizes and 0 < num_gpus <= pool.num_gpus:
                kept = Pool(pool.tp, pool.count - num_gpus // pool.tp, pool.low, pool.high)
                changed = Pool(tp, num_gpus // tp, pool.low, pool.high)
                yield _layout([*pools[:at], changed, kept, *pools[at + 1 :]])


def _shifted(pools: Sequence[Pool], slow: tuple[int, int], shift: int) -> Iterator[RolloutLayout]:
    """The slow bucket's bounds moved inwards."""
    low, high = slow
    ends = {pool.low for pool in pools}
    for edge, to in ((low, low + shift), (high, high - shift)):
        if edge != 0 and edge in ends and low < to < high:
            moved = [(to if p.low == edge else p.low, to if p.high == edge else p.high) for p in pools]
            yield _layout([Pool(p.tp, p.count, *points) for p, points in zip(pools, moved, strict=True)])


def _moved(pools: Sequence[Pool], giver: int, taker: int) -> Iterator[RolloutLayout]:
    """As few GPUs as make whole instances of both."""
    num_gpus = max(pools[giver].tp, pools[taker].tp)
    if num_gpus < pools[giver].num_gpus:
        change = {giver: -num_gpus, taker: num_gpus}
        yield _layout([Pool(p.tp, p.count + change.get(i, 0) // p.tp, p.low, p.high) for i, p in enumerate(pools)])


def _layout(pools: Sequence[Pool]) -> RolloutLayout:
    """Pools of one bucket and size as one, without empty ones, in ascending order."""
    counts: dict[tuple[int, int, int], int] = {}
    for pool in pools:
        key = pool.low, pool.high, pool.tp
        counts[key] = counts.get(key, 0) + pool.count
    return RolloutLayout(tuple(Pool(tp, num, low, high) for (low, high, tp), num in sorted(counts.items()) if num > 0))
