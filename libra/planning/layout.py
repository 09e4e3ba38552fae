"""A rollout layout in counts, before instances have names: pools of equal instances, each serving one bucket.

What the search compares, and what a plan or an observed allocation is turned into to be priced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from libra.core.plan import InstanceSpec
from libra.cost.requests import Requests
from libra.planning.intervals import Interval

MIN_BOUND_RATIO = 1.5
"""Neighbouring bounds differ by at least this: published ones differ two-fold or more, and length predictions have
errors of tens of per cent (assumed)."""


class Pool(msgspec.Struct, frozen=True):
    """`count` instances of `tp` that serve points `low` to `high` (exclusive)."""

    tp: int
    count: int
    low: int
    high: int

    @property
    def num_gpus(self) -> int:
        return self.tp * self.count


class Bucket(msgspec.Struct, frozen=True):
    """Requests of more than `low_tok` and at most `high_tok` tokens in all, and its instances as (size, count)."""

    low_tok: float
    high_tok: float
    sizes: tuple[tuple[int, int], ...]


class RolloutLayout(msgspec.Struct, frozen=True):
    """Pools in ascending order of length. Pools of one bucket have equal `low` and `high` and differ in `tp`."""

    pools: tuple[Pool, ...]

    @property
    def num_gpus(self) -> int:
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def is_homogeneous(self) -> bool:
        return len({pool.tp for pool in self.pools}) == 1

    @property
    def edges(self) -> tuple[int, ...]:
        """Upper ends of the buckets, in points."""
        return tuple(sorted({pool.high for pool in self.pools}))


def merge(intervals: Sequence[Interval]) -> RolloutLayout:
    """Neighbouring instances of one size share a bucket, so that a router can balance inside it."""
    pools: list[Pool] = []
    for x in intervals:
        if pools and pools[-1].tp == x.tp:
            last = pools.pop()
            pools.append(Pool(x.tp, last.count + 1, last.low, x.high))
        else:
            pools.append(Pool(x.tp, 1, x.low, x.high))
    return RolloutLayout(tuple(pools))


def coarsen(layout: RolloutLayout, requests: Requests, max_context_tok: int) -> RolloutLayout:
    """Join buckets whose bounds lie too close for a router to tell them apart; joined buckets hold mixed sizes.

    The dynamic program knows every length and would cut between two requests of nearly the same one.
    """
    edges = layout.edges
    kept = [len(requests)]
    above_tok = float(max_context_tok)
    for edge in reversed(edges[:-1]):
        if requests.upper_tok[edge - 1] * MIN_BOUND_RATIO <= above_tok:
            kept.append(edge)
            above_tok = requests.upper_tok[edge - 1]
    starts = [0, *sorted(kept)]
    joined: dict[tuple[int, int], int] = {}
    for pool in layout.pools:
        bucket = next(i for i, edge in enumerate(starts[1:]) if pool.high <= edge)
        joined[bucket, pool.tp] = joined.get((bucket, pool.tp), 0) + pool.count
    pools = (Pool(tp, num, starts[bucket], starts[bucket + 1]) for (bucket, tp), num in sorted(joined.items()))
    return RolloutLayout(tuple(pools))


def ascending(cuts: Sequence[int], last: int) -> tuple[int, ...]:
    """`cuts` and `last` as strictly ascending bounds, however equal or large the cuts are."""
    bounds: list[int] = []
    for at, cut in enumerate(cuts):
        floor = bounds[-1] + 1 if bounds else 1
        bounds.append(min(max(floor, cut), last - len(cuts) + at))
    return (*bounds, last)


def bounds_tok(layout: RolloutLayout, requests: Requests, max_context_tok: int) -> tuple[int, ...]:
    """Largest total length per bucket, strictly ascending; the last is `max_context_tok`."""
    return ascending([int(requests.upper_tok[edge - 1]) for edge in layout.edges[:-1]], max_context_tok)


def of_instances(instances: Sequence[InstanceSpec], bounds: Sequence[int]) -> tuple[Bucket, ...]:
    """Buckets of named instances, ascending. Totals above the last bound belong to the last bucket; a bucket that no
    instance serves leaves its lengths to the next one up, or to the last served one."""
    served = sorted({i.bucket for i in instances})
    found: list[Bucket] = []
    low_tok = 0.0
    for bucket in served:
        high_tok = float("inf") if bucket == served[-1] else float(bounds[bucket])
        counts = Counter(i.tp for i in instances if i.bucket == bucket)
        found.append(Bucket(low_tok, high_tok, tuple(sorted(counts.items()))))
        low_tok = high_tok
    return tuple(found)


def of_pools(layout: RolloutLayout, requests: Requests) -> tuple[Bucket, ...]:
    """The same of a layout in points of `requests`; a pool without a point serves nothing."""
    counts: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pool in layout.pools:
        if pool.low != pool.high:
            counts.setdefault((pool.low, pool.high), []).append((pool.tp, pool.count))

    def edge_tok(point: int) -> float:
        if point == len(requests):
            return float("inf")
        return float(requests.upper_tok[point - 1]) if point else 0.0

    return tuple(Bucket(edge_tok(low), edge_tok(high), tuple(sizes)) for (low, high), sizes in counts.items())
