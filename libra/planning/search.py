"""The joint search: training GPUs times training layouts times rollout layouts (paper, Algorithm 1, outer loop).

For each split branch and bound gives training and one dynamic-programming table gives rollout; homogeneous rollout is
always among the candidates. The plan with the least expected step wins; near-ties prefer homogeneous and what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from math import ceil

import msgspec
import numpy as np

from libra.core.errors import CapacityError, ConfigError
from libra.core.hardware import Cluster, Model
from libra.core.plan import Allocation, Estimate, Plan
from libra.core.policy import Statistics
from libra.cost.rates import Rates
from libra.cost.rollout import Pace
from libra.planning.assemble import mark_hybrids, name_instances
from libra.planning.bound import RolloutBound
from libra.planning.estimate import Demand, Estimator, plan_of
from libra.planning.homogeneous import fill, homogeneous_layouts
from libra.planning.hybrids import HETEROGENEOUS_MARGIN, TIE_SHARE, Choices, HybridSearch
from libra.planning.intervals import Table, interval_costs, solve
from libra.planning.layout import RolloutLayout, bounds_tok, coarsen, merge, of_pools
from libra.planning.refine import refine
from libra.planning.topology import RUNNABLE, Leaf, Limits, Space, divisors, leaves, no_layout
from libra.planning.tree import ROUNDING, fastest, replica_sizes

MAX_PRICES = 8
"""Neighbours of the fastest mixed layout that are priced: on 24 jobs (series 7 of `experiments.accuracy`) 40 neighbours
of the nine fastest were shorter by a further tenth of a per cent of the step."""
MIN_SPLITS = 6
"""Splits that small clusters are divided into at least, where they have the GPUs: in steps of 8, 16 GPUs would have one
(assumed enough)."""
MAX_SPLITS = 64
"""Splits that are looked at on very large clusters; the granularity grows to match (assumed)."""


def check_two_pools(cluster: Cluster) -> None:
    """Raises `CapacityError` where training and rollout cannot have a GPU each."""
    if cluster.num_gpus < 2:
        raise CapacityError(
            "separate pools need a GPU each for training and rollout",
            where="planner",
            value=f"{cluster.num_gpus} GPU",
            mend="take a larger cluster, or a colocated policy",
        )


@dataclass(frozen=True)
class Candidate:
    """A split with its layouts, priced."""

    leaf: Leaf
    rollout: RolloutLayout
    expected: Estimate


@dataclass(frozen=True)
class JointPlanner:
    """Plans training and rollout together.

    `heterogeneous` allows mixed instance sizes; `hybrid_replicas` marks that many training replicas' worth of rollout
    GPUs as elastic; `train_gpus` fixes the split; `granularity` is the step of the split in GPUs, finer on small
    clusters; `sizes` restricts the instances' tensor-parallel sizes; `colocated` gives both stages all GPUs; `space` is
    what training layouts may be; `limits` searches the paper's tree with its thresholds instead. A repartition must
    beat what hybrid moves reach by `min_repartition_share`. What the transition costs is the gate's business.
    """

    cluster: Cluster
    model: Model
    heterogeneous: bool = True
    hybrid_replicas: int = 0
    train_gpus: int | None = None
    granularity: int = 8
    sizes: tuple[int, ...] | None = None
    colocated: bool = False
    min_repartition_share: float = 0.05
    space: Space = RUNNABLE
    limits: Limits | None = None
    rates: Rates = field(default_factory=Rates)

    @cached_property
    def estimator(self) -> Estimator:
        return Estimator(self.cluster, self.model, self.rates)

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        """Best plan for one step of the window's demand. Raises `CapacityError` when nothing fits."""
        demand = self.estimator.demand(statistics, allocation)
        current = plan_of(allocation) if allocation else None
        moved = best_move(self.estimator, demand, current) if current else None
        fresh = self._repartition(demand, allocation, current)
        if moved and fresh.expected.step_s > moved.expected.step_s * (1 - self.min_repartition_share):
            return moved
        return fresh

    def compared(self, statistics: Statistics) -> tuple[Plan, ...]:
        """Every plan that the search prices for a new job, one per split, training layout and kind of rollout."""
        demand = self.estimator.demand(statistics, None)
        return tuple(self._assemble(demand, candidate, None) for candidate in self._candidates(demand))

    def _repartition(self, demand: Demand, allocation: Allocation | None, current: Plan | None) -> Plan:
        if self.hybrid_replicas and not self._is_colocated(demand):
            return self._with_hybrids(demand, allocation)
        candidates = self._contenders(demand, current)
        if not candidates:
            raise self._nothing(demand)
        return self._assemble(demand, _choose([*candidates, *self._refined(demand, candidates)], current), allocation)

    def _refined(self, demand: Demand, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """A better neighbour of the fastest mixed candidate."""
        mixed = (candidate for candidate in candidates if not candidate.rollout.is_homogeneous)
        best = min(mixed, key=lambda candidate: candidate.expected.step_s, default=None)
        if best is None:
            return
        train_s = self.estimator.train_s(demand, best.leaf.time)
        layout = refine(self.estimator, demand, best.rollout, self._instance_sizes(demand), train_s, MAX_PRICES)
        if not layout.is_homogeneous:
            pace = self.estimator.rollout_pace(demand, of_pools(layout, demand.requests))
            yield Candidate(best.leaf, layout, self.estimator.combine(demand, pace, train_s))

    def _contenders(self, demand: Demand, current: Plan | None) -> list[Candidate]:
        """Candidates, in their order, without those that `_choose` cannot take and that do not change what it takes.

        No candidate is below its split's bound: rollout's mean work by `RolloutBound` or its training, whichever is
        longer, plus the sync. A split whose bound is further above an equal candidate than ties reach has nothing that
        is close to the least of its kind, the equal ones or, if mixed ones gain enough to be taken, those. Of the
        others, a mixed candidate whose bound is no less than what mixed ones must beat does not make them be taken;
        nor is it the fastest of them then, or where its bound is above another mixed one. It could only be taken for
        being there, so the split that is there keeps all.
        """
        room, sizes = self._room(demand), self._instance_sizes(demand)
        leaves = {split: some for split in self.splits(demand) if (some := self._leaves(demand, split))}
        least = RolloutBound(self.estimator, demand, self.estimator.rollout_sizes(demand.run.max_context_tok))
        bounds = {split: self._bound_s(least, room(split), some) for split, some in leaves.items()}

        def priced(split: int, table: Table | None) -> tuple[Candidate, ...]:
            return tuple(self._combined(demand, leaves[split], self._rollouts(demand, room(split), sizes, table)))

        found: dict[int, tuple[Candidate, ...]] = {}
        equal_s = mixed_s = float("inf")
        for split in sorted(leaves, key=lambda split: bounds[split]):
            if bounds[split] <= equal_s * (1 + TIE_SHARE):
                found[split] = priced(split, None)
                equal_s = min([equal_s, *(c.expected.step_s for c in found[split])])
        there = current.train.num_gpus if current else None
        must = {split for split, equal in found.items() if split == there or not equal}
        kept = [split for split in found if split in must or bounds[split] < equal_s * (1 - HETEROGENEOUS_MARGIN)]
        table = self._table(demand, sizes, room(min(kept))) if kept and sizes else None
        for split in kept:
            if split in must or bounds[split] <= mixed_s:
                found[split] = priced(split, table)
                mixed_s = min([mixed_s, *(c.expected.step_s for c in found[split] if not c.rollout.is_homogeneous)])
        return [candidate for split in leaves for candidate in found.get(split, ())]

    def _bound_s(self, least: RolloutBound, num_gpus: int, found: Sequence[Leaf]) -> float:
        work_s = float(np.mean(least.pace(num_gpus).work_s))
        train_s = min(self.estimator.train_s(least.demand, leaf.time) for leaf in found)
        return (max(work_s, train_s) + least.demand.sync_s) * (1 - ROUNDING)

    def _room(self, demand: Demand) -> Callable[[int], int]:
        """Rollout's GPUs by training's."""
        total, colocated = self.cluster.num_gpus, self._is_colocated(demand)
        return lambda split: total if colocated else total - split

    def _combined(
        self, demand: Demand, found: Sequence[Leaf], rollouts: Iterable[tuple[RolloutLayout, Pace]]
    ) -> Iterator[Candidate]:
        for rollout, pace in rollouts:
            for leaf in found:
                expected = self.estimator.combine(demand, pace, self.estimator.train_s(demand, leaf.time))
                yield Candidate(leaf, rollout, expected)

    def _is_colocated(self, demand: Demand) -> bool:
        return self.colocated or demand.run.pipeline.kind == "colocated"

    def splits(self, demand: Demand) -> tuple[int, ...]:
        """Training GPU counts to look at."""
        total = self.cluster.num_gpus
        if self._is_colocated(demand):
            return (total,)
        if self.train_gpus is not None:
            if not 0 < self.train_gpus < total:
                raise ConfigError(
                    "training GPUs must leave some for rollout",
                    where="JointPlanner.train_gpus",
                    value=self.train_gpus,
                    mend=f"choose 1 to {total - 1} of {self.cluster.name}",
                )
            return (self.train_gpus,)
        check_two_pools(self.cluster)
        finest = 1 << max(0, (total // MIN_SPLITS).bit_length() - 1)
        step = min(self.granularity, finest)
        step *= max(1, ceil(total / step / MAX_SPLITS))
        return tuple(range(step, total, step))

    def _candidates(self, demand: Demand) -> Iterator[Candidate]:
        room, sizes, splits = self._room(demand), self._instance_sizes(demand), self.splits(demand)
        table = self._table(demand, sizes, room(min(splits))) if sizes else None
        for split in splits:
            found = self._leaves(demand, split)
            if found:
                yield from self._combined(demand, found, self._rollouts(demand, room(split), sizes, table))

    def _instance_sizes(self, demand: Demand) -> tuple[int, ...]:
        fitting = self.estimator.rollout_sizes(demand.run.max_context_tok)
        return tuple(tp for tp in fitting if self.sizes is None or tp in self.sizes)

    def _table(self, demand: Demand, sizes: Sequence[int], num_gpus: int) -> Table | None:
        if not self.heterogeneous:
            return None
        engines = {tp: self.estimator.engines[tp] for tp in sizes}
        return solve(interval_costs(engines, demand.requests, demand.schedule), num_gpus)

    def _leaves(self, demand: Demand, num_train: int) -> Sequence[Leaf]:
        """The fastest leaf; with a hybrid pool the fastest per replica size, since replicas are what moves."""
        context = demand.run.max_context_tok
        if self.limits is not None:
            found = leaves(
                self.cluster, self.model, num_train, demand.train, context, limits=self.limits, rates=self.rates
            )
            return self._distinct(found) if self.hybrid_replicas else found[:1]
        search = self._search(demand, num_train)
        # With expert parallelism one replica does not hold all experts, so it cannot come and go.
        sizes = divisors(num_train) if self.hybrid_replicas else ()
        per_size = [leaf for size in sizes if (leaf := search(replica_gpus=size, split_experts=False))]
        return per_size or [leaf for leaf in (search(),) if leaf]

    def _search(self, demand: Demand, num_train: int) -> Callable[..., Leaf | None]:
        context = demand.run.max_context_tok
        return partial(
            fastest, self.cluster, self.model, num_train, demand.train, context, self.space, rates=self.rates
        )

    def _distinct(self, found: Sequence[Leaf]) -> Sequence[Leaf]:
        per_size: dict[int, Leaf] = {}
        for leaf in found:
            if leaf.layout.ep == 1:
                per_size.setdefault(leaf.layout.replica_gpus, leaf)
        return tuple(per_size.values()) or found[:1]

    def _rollouts(
        self, demand: Demand, num_gpus: int, sizes: Sequence[int], table: Table | None
    ) -> list[tuple[RolloutLayout, Pace]]:
        found = list(homogeneous_layouts(num_gpus, sizes, len(demand.requests)))
        if table is not None and (intervals := table.intervals(num_gpus)):
            mixed = coarsen(merge(intervals), demand.requests, demand.run.max_context_tok)
            mixed = fill(self.estimator, demand, mixed, num_gpus)
            # Equal instances are a homogeneous layout, which serves one bucket and stands above.
            if not mixed.is_homogeneous or not found:
                found.append(mixed)
        return [(layout, self.estimator.rollout_pace(demand, of_pools(layout, demand.requests))) for layout in found]

    def _assemble(self, demand: Demand, chosen: Candidate, allocation: Allocation | None) -> Plan:
        bounds = bounds_tok(chosen.rollout, demand.requests, demand.run.max_context_tok)
        return Plan(
            train=chosen.leaf.layout,
            instances=name_instances(chosen.rollout, allocation),
            bounds_tok=bounds,
            colocated=self._is_colocated(demand),
            expected=chosen.expected,
            note="homogeneous rollout" if chosen.rollout.is_homogeneous else "heterogeneous rollout",
        )

    def _with_hybrids(self, demand: Demand, allocation: Allocation | None) -> Plan:
        found = HybridSearch(self.estimator, demand, self._choices(demand), self.hybrid_replicas).best()
        if found is None:
            raise self._nothing(demand)
        plan = self._assemble(demand, Candidate(found.leaf, found.rollout, found.expected), allocation)
        marked = mark_hybrids(plan.instances, found.leaf.layout.replica_gpus, self.hybrid_replicas)
        plan = msgspec.structs.replace(plan, instances=marked, hybrid_training=tuple(range(found.lent)))
        if found.most == self.hybrid_replicas:
            return plan
        note = f"{plan.note}; room for {found.most} of {self.hybrid_replicas} hybrid replicas"
        return msgspec.structs.replace(plan, note=note)

    def _choices(self, demand: Demand) -> Choices:
        """The same candidates as `_candidates`, each made when it is asked for."""
        total, splits, sizes = self.cluster.num_gpus, self.splits(demand), self._instance_sizes(demand)

        @cache
        def equal(num_gpus: int) -> tuple[RolloutLayout, ...]:
            return homogeneous_layouts(num_gpus, sizes, len(demand.requests))

        @cache
        def table() -> Table | None:
            return self._table(demand, sizes, total - min(splits)) if sizes else None

        @cache
        def mixed(num_gpus: int) -> tuple[RolloutLayout, ...]:
            known = equal(num_gpus)
            priced = self._rollouts(demand, num_gpus, sizes, table())
            return tuple(layout for layout, _ in priced if layout not in known)

        return Choices(splits, *self._leaves_by_size(demand), equal, mixed)

    def _leaves_by_size(
        self, demand: Demand
    ) -> tuple[Callable[[int], Sequence[int]], Callable[[int, int], Leaf | None]]:
        """Replica sizes of a split, ascending, and the leaf of a split and a size. A dense model's leaves are searched
        one by one; of the article's tree, and where experts may have to be split, all of a split together."""
        if self.limits is None and not self.model.is_moe:
            whole = replica_sizes(self.cluster, self.model, self.space)
            return lambda split: [size for size in whole if split % size == 0], cache(
                lambda split, size: self._search(demand, split)(replica_gpus=size, split_experts=False)
            )

        @cache
        def found(split: int) -> dict[int, Leaf]:
            return {leaf.layout.replica_gpus: leaf for leaf in self._leaves(demand, split)}

        return lambda split: list(found(split)), lambda split, size: found(split).get(size)

    def _nothing(self, demand: Demand) -> CapacityError:
        """Why there is no candidate: training does not fit any split, or no instance size fits what is left."""
        run, splits = demand.run, self.splits(demand)
        total = self.cluster.num_gpus
        for num_train in splits:
            if self._leaves(demand, num_train):
                left = total if self._is_colocated(demand) else total - num_train
                sizes = self.estimator.rollout_sizes(run.max_context_tok)
                return CapacityError(
                    f"no rollout instance of {self.model.name} fits {left} GPUs beside {num_train} for training",
                    where="planner",
                    value=self.sizes,
                    allowed=[f"tensor parallel {tp}" for tp in sizes],
                    mend="give rollout a multiple of one of the allowed sizes",
                )
        cp_sizes = self.space.context_sizes if self.limits is None else (1,)
        return no_layout(self.cluster, self.model, max(splits), run.max_context_tok, cp_sizes)


def _choose(candidates: Sequence[Candidate], current: Plan | None) -> Candidate:
    """Least expected step; homogeneous unless mixed gains enough; among equals what is there."""

    def least(found: Sequence[Candidate]) -> float:
        return min((c.expected.step_s for c in found), default=float("inf"))

    equal = [c for c in candidates if c.rollout.is_homogeneous]
    mixed = [c for c in candidates if not c.rollout.is_homogeneous]
    pool = mixed if least(mixed) < least(equal) * (1 - HETEROGENEOUS_MARGIN) or not equal else equal
    close = [c for c in pool if c.expected.step_s <= least(pool) * (1 + TIE_SHARE)]

    def is_there(candidate: Candidate) -> bool:
        if current is None or candidate.leaf.layout != current.train:
            return False
        sizes = sorted(pool.tp for pool in candidate.rollout.pools for _ in range(pool.count))
        return sizes == sorted(i.tp for i in current.instances)

    return min(close, key=lambda c: (not is_there(c), c.expected.step_s, c.expected.rollout_s + c.expected.train_s))


def hybrid_states(estimator: Estimator, demand: Demand, plan: Plan) -> tuple[Plan, ...]:
    """`plan` in every state of its hybrid pool: the first m replicas train, for each m, and the state that it is in."""
    replicas = plan.hybrid_replicas
    states = {plan.hybrid_training: None} | {replicas[:m]: None for m in range(len(replicas) + 1)}
    priced = []
    for training in states:
        state = msgspec.structs.replace(plan, hybrid_training=training)
        priced.append(msgspec.structs.replace(state, expected=estimator.estimate(state, demand)))
    return tuple(priced)


def best_move(estimator: Estimator, demand: Demand, current: Plan) -> Plan | None:
    """Best plan that hybrid moves alone reach from what is there, staying included; None when nothing serves."""
    if not current.instances:
        return None
    states = hybrid_states(estimator, demand, current)
    best = min(states, key=lambda plan: plan.expected.step_s)
    stay = states[0]
    chosen = stay if stay.expected.step_s <= best.expected.step_s * (1 + TIE_SHARE) else best
    return msgspec.structs.replace(chosen, note="what is there" if chosen is stay else "hybrid moves only")
