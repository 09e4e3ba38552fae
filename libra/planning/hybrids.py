"""Hybrid pools in counts: what serves with so many replicas lent to training, and which of all such states is the best.

A search compares thousands of states and takes one; instances with names are made for that one alone. The rules are
those of `assemble.mark_hybrids`, which depend on no name.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import count
from typing import NamedTuple

import numpy as np

from libra.core.plan import Estimate
from libra.cost.rollout import Pace
from libra.planning.bound import RolloutBound, train_bound_s
from libra.planning.estimate import Demand, Estimator
from libra.planning.layout import Bucket, RolloutLayout, bounds_tok
from libra.planning.topology import Leaf
from libra.planning.tree import ROUNDING

HETEROGENEOUS_MARGIN = 0.02
"""A mixed layout must beat the best equal one by this share: it needs right length predictions to pay (assumed)."""
TIE_SHARE = 0.01
"""Plans this close are equal: far below what the estimate can tell (assumed)."""


class Served(NamedTuple):
    """`num` instances of `tp` in the bucket of that index."""

    bucket: int
    tp: int
    num: int


def served_by(layout: RolloutLayout) -> tuple[Served, ...]:
    """All instances of a layout, in the order in which they get their names."""
    edges = layout.edges
    return tuple(Served(edges.index(pool.high), pool.tp, pool.count) for pool in layout.pools)


def serving_states(served: Sequence[Served], replica_gpus: int, num_replicas: int) -> tuple[tuple[Served, ...], ...]:
    """What serves with the first 0, 1, 2 ... hybrid replicas lent, up to `num_replicas` where there is room.

    The same numbers as by `mark_hybrids`, which takes instances in this order, largest first, and keeps one of the
    largest of the last bucket: equal instances of one bucket are interchangeable.
    """
    last = max(each.bucket for each in served)
    keep = max((at for at, each in enumerate(served) if each.bucket == last), key=lambda at: served[at].tp)
    free = [each.num - (at == keep) if each.tp <= replica_gpus else 0 for at, each in enumerate(served)]
    left, states = [each.num for each in served], [tuple(served)]
    for _ in range(num_replicas):
        group = _group_of(served, free, replica_gpus)
        if group is None:
            break
        free = [mine - lent for mine, lent in zip(free, group, strict=True)]
        left = [mine - lent for mine, lent in zip(left, group, strict=True)]
        states.append(tuple(each._replace(num=num) for each, num in zip(served, left, strict=True)))
    return tuple(states)


def _group_of(served: Sequence[Served], free: Sequence[int], num_gpus: int) -> list[int] | None:
    """Numbers that add up to `num_gpus` exactly, out of the shortest prefix of the free instances that has them.

    More than `num_gpus // tp` instances of one entry never enter a group, so longer prefixes of it are not tried.
    """
    held = 0
    for at, (each, num) in enumerate(zip(served, free, strict=True)):
        shortest = max(1, -(-(num_gpus - held) // each.tp))
        for end in range(shortest, min(num, max(shortest, num_gpus // each.tp)) + 1):
            group = _filled(served, [*free[:at], end], num_gpus)
            if group is not None:
                return group + [0] * (len(served) - len(group))
        held += num * each.tp
    return None


def _filled(served: Sequence[Served], most: Sequence[int], num_gpus: int) -> list[int] | None:
    """Largest instances first; sizes are powers of two, so this finds a group whenever there is one."""
    left, group = num_gpus, [0] * len(most)
    for at in sorted(range(len(most)), key=lambda at: (-served[at].tp, served[at].bucket)):
        group[at] = min(most[at], left // served[at].tp)
        left -= group[at] * served[at].tp
    return None if left else group


def buckets_of(served: Iterable[Served], bounds_tok: Sequence[int]) -> tuple[Bucket, ...]:
    """The same as `layout.of_instances` of the instances by name."""
    there = [each for each in served if each.num]
    indices = sorted({each.bucket for each in there})
    found: list[Bucket] = []
    low_tok = 0.0
    for index in indices:
        high_tok = float("inf") if index == indices[-1] else float(bounds_tok[index])
        counts: Counter[int] = Counter()
        for each in there:
            if each.bucket == index:
                counts[each.tp] += each.num
        found.append(Bucket(low_tok, high_tok, tuple(sorted(counts.items()))))
        low_tok = high_tok
    return tuple(found)


class State(NamedTuple):
    """A priced state: `lent` of `most` replicas train. `order` is its place among all, which settles exact ties."""

    order: tuple[int, ...]
    leaf: Leaf
    rollout: RolloutLayout
    lent: int
    most: int
    expected: Estimate

    @property
    def kind(self) -> tuple[bool, float]:
        """What decides between states that are equally fast: equal instances, then being able to move either way."""
        return not self.rollout.is_homogeneous, abs(self.lent - self.most / 2)

    @property
    def handicapped_s(self) -> float:
        return self.expected.step_s / (1.0 if self.rollout.is_homogeneous else 1 - HETEROGENEOUS_MARGIN)


@dataclass(frozen=True)
class Choices:
    """What the joint search may combine. Sizes are those of training replicas in GPUs; `equal` and `mixed` give
    rollout layouts by the number of their GPUs; a leaf that does not fit is None."""

    splits: Sequence[int]
    sizes: Callable[[int], Sequence[int]]
    leaf: Callable[[int, int], Leaf | None]
    equal: Callable[[int], Sequence[RolloutLayout]]
    mixed: Callable[[int], Sequence[RolloutLayout]]


class _Node(NamedTuple):
    """States of one split, replica size and number of lent replicas; `least_s` is a handicapped step that none of them
    is below. `is_mixed` is None until layouts of the kind are known; further on there is one, with its times."""

    least_s: float
    split: int
    size: int
    lent: int
    is_mixed: bool | None = None
    tabled: bool = False
    at: int = 0
    rollout: RolloutLayout | None = None
    pace: Pace | None = None

    def may_be(self, kind: tuple[bool, float] | None, most: int) -> bool:
        return kind is None or (abs(self.lent - most / 2) == kind[1] and self.is_mixed in (None, kind[0]))


@dataclass(frozen=True)
class HybridSearch:
    """The best state by branch and bound, without pricing what cannot be it.

    Wanted, among the states with the most hybrid replicas that any has: of those within `TIE_SHARE` of the least
    handicapped step the first by kind, step and order. Nodes are taken in ascending order of `least_s`, below which no
    state of theirs is, so that once a state is no slower than the next node, no state is faster. That says which states
    are close; then the kinds are gone through in their order in the same manner, and the first with a close state has
    the answer. A node whose `least_s` is above what is close holds no close state, and is dropped.

    Why `least_s` holds. A step is never shorter than rollout's mean work or than training, plus the sync: batch by
    batch with a barrier, version by version without, one after the other at staleness 0. Rollout on so many GPUs is not
    below `RolloutBound`, training on so many not below `train_bound_s`, whatever the layouts; with `lent` replicas of
    `size` GPUs rollout has that many fewer and training that many more. Once a layout is known its own work replaces
    rollout's bound. A mixed layout's step and its bound are divided by the same number.
    """

    estimator: Estimator
    demand: Demand
    choices: Choices
    num_replicas: int

    def best(self) -> State | None:
        """None when nothing fits."""
        most = next((m for m in range(self.num_replicas, -1, -1) if self._has_room(m)), None)
        if most is None:
            return None
        waiting = list(self._roots(most))
        states: list[State] = []
        self._look(waiting, states, most, float("inf"), None)
        if not states:
            return None
        limit_s = min(state.handicapped_s for state in states) * (1 + TIE_SHARE)
        for kind in sorted({(is_mixed, abs(m - most / 2)) for is_mixed in (False, True) for m in range(most + 1)}):
            self._look(waiting, states, most, limit_s, kind)
            close = [state for state in states if state.kind == kind and state.handicapped_s <= limit_s]
            if close:
                return min(close, key=lambda state: (state.expected.step_s, state.order))
        raise AssertionError("the fastest state is close to itself")

    def _look(
        self, waiting: list[_Node], states: list[State], most: int, limit_s: float, kind: tuple[bool, float] | None
    ) -> None:
        """Add the states of a kind that may be its fastest or as fast, up to `limit_s`; other nodes go on waiting."""
        numbers = count()
        heap: list[tuple[float, int, _Node]] = []
        mine = [node for node in waiting if node.least_s <= limit_s and node.may_be(kind, most)]
        waiting[:] = [node for node in waiting if node.least_s <= limit_s and not node.may_be(kind, most)]
        for node in mine:
            heapq.heappush(heap, (node.least_s, next(numbers), node))
        least_s = min((state.handicapped_s for state in states if kind in (None, state.kind)), default=limit_s)
        while heap and heap[0][0] <= least_s:
            for child in self._expanded(heapq.heappop(heap)[-1], most):
                if isinstance(child, State):
                    states.append(child)
                    if kind in (None, child.kind):
                        least_s = min(least_s, child.handicapped_s)
                elif child.may_be(kind, most):
                    heapq.heappush(heap, (child.least_s, next(numbers), child))
                else:
                    waiting.append(child)
        waiting.extend(node for _, _, node in heap)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _left(self, split: int) -> int:
        return self.estimator.cluster.num_gpus - split

    def _has_room(self, most: int) -> bool:
        """Whether any layouts that fit have that many replicas."""
        return any(
            self._has_room_at(split, size, most)
            for split in self.choices.splits
            for size in self.choices.sizes(split)
            if most * size < self._left(split)
        )

    def _has_room_at(self, split: int, size: int, most: int) -> bool:
        def is_enough(layouts: Iterable[RolloutLayout]) -> bool:
            return any(len(self._states(layout, size)) > most for layout in layouts)

        left, leaf = self._left(split), self.choices.leaf
        if is_enough(self.choices.equal(left)):
            return leaf(split, size) is not None
        return leaf(split, size) is not None and is_enough(self.choices.mixed(left))

    def _roots(self, most: int) -> Iterator[_Node]:
        for split in self.choices.splits:
            for size in self.choices.sizes(split):
                if most * size < self._left(split):
                    for lent in range(most + 1):
                        work_s = self._least_work_s(self._left(split) - lent * size)
                        yield _Node(self._least_s(work_s, split + lent * size), split, size, lent)

    def _least_s(self, work_s: float, train_gpus: int) -> float:
        return (max(work_s, self._least_train_s(train_gpus)) + self.demand.sync_s) * (1 - ROUNDING)

    @cached_property
    def _least_work_s(self) -> Callable[[int], float]:
        sizes = self.estimator.rollout_sizes(self.demand.run.max_context_tok)
        bound = RolloutBound(self.estimator, self.demand, tuple(sizes))
        return cache(lambda num_gpus: float(np.mean(bound.pace(num_gpus).work_s)))

    @cached_property
    def _least_train_s(self) -> Callable[[int], float]:
        return cache(lambda num_gpus: train_bound_s(self.estimator, self.demand, num_gpus))

    @cached_property
    def _states(self) -> Callable[[RolloutLayout, int], tuple[tuple[Served, ...], ...]]:
        return cache(lambda layout, size: serving_states(served_by(layout), size, self.num_replicas))

    def _expanded(self, node: _Node, most: int) -> Iterator[_Node | State]:
        if node.rollout is not None:
            return self._priced(node, most)
        return self._tabled(node, most) if node.tabled else self._by_kind(node, most)

    def _by_kind(self, node: _Node, most: int) -> Iterator[_Node]:
        equal = self.choices.equal(self._left(node.split))
        for at, layout in enumerate(equal):
            yield from self._with_layout(node, at, layout, most)
        # Without an equal layout a table's own may have equal instances.
        handicap = 1 - HETEROGENEOUS_MARGIN if equal else 1.0
        yield node._replace(
            least_s=node.least_s / handicap, is_mixed=True if equal else None, tabled=True, at=len(equal)
        )

    def _tabled(self, node: _Node, most: int) -> Iterator[_Node]:
        for at, layout in enumerate(self.choices.mixed(self._left(node.split)), node.at):
            yield from self._with_layout(node, at, layout, most)

    def _with_layout(self, node: _Node, at: int, layout: RolloutLayout, most: int) -> Iterator[_Node]:
        """The node with its layout and times; none where the layout has room for fewer replicas."""
        states = self._states(layout, node.size)
        if len(states) > most:
            bounds = bounds_tok(layout, self.demand.requests, self.demand.run.max_context_tok)
            pace = self.estimator.rollout_pace(self.demand, buckets_of(states[node.lent], bounds))
            least_s = self._least_s(float(np.mean(pace.work_s)), node.split + node.lent * node.size)
            is_mixed = not layout.is_homogeneous
            handicap = 1 - HETEROGENEOUS_MARGIN if is_mixed else 1.0
            yield node._replace(least_s=least_s / handicap, is_mixed=is_mixed, at=at, rollout=layout, pace=pace)

    def _priced(self, node: _Node, most: int) -> Iterator[State]:
        leaf = self.choices.leaf(node.split, node.size)
        if leaf is not None and node.rollout is not None and node.pace is not None:
            dp = leaf.layout.dp + node.lent
            train_s = self.estimator.train_s(self.demand, self.estimator.raw_train(self.demand, leaf.layout, dp))
            expected = self.estimator.combine(self.demand, node.pace, train_s)
            order = node.split, node.at, self.choices.sizes(node.split).index(node.size), node.lent
            yield State(order, leaf, node.rollout, node.lent, most, expected)
