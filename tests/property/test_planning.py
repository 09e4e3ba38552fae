"""The interval program equals brute force, and plans keep their promises, on random small instances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.clusters import load_cluster
from libra.core.events import PipelineSpec, RunStart
from libra.core.policy import Finished, Statistics
from libra.cost.engine import Engine
from libra.cost.memory import train_fits
from libra.cost.requests import compress
from libra.cost.rollout import Schedule
from libra.models import load_model
from libra.planning.intervals import interval_costs, solve
from libra.planning.search import JointPlanner
from tests.property.strategies import requests

CLUSTER = load_cluster("a800x48")
MODEL = load_model("qwen3-14b")
SIZES = (1, 2, 4, 8)


def brute_force(costs: dict[int, np.ndarray], num_gpus: int) -> float:
    """Least makespan over every sequence of instances and every cut of the points."""
    num = next(iter(costs.values())).shape[0] - 1

    def best(low: int, left: int) -> float:
        if low == num:
            return 0.0
        options = (
            max(float(costs[tp][low, high]), best(high, left - tp))
            for tp in costs
            if tp <= left
            for high in range(low + 1, num + 1)
        )
        return min(options, default=float("inf"))

    return best(0, num_gpus)


@settings(max_examples=60, deadline=None)
@given(st.lists(requests, min_size=1, max_size=6), st.integers(1, 9), st.sampled_from([Schedule(), Schedule(3.0, 2)]))
def test_interval_program_equals_brute_force(finished: list[Finished], num_gpus: int, schedule: Schedule) -> None:
    points = compress(finished, len(finished))
    costs = interval_costs({tp: Engine(CLUSTER, MODEL, tp) for tp in SIZES}, points, schedule)
    table = solve(costs, num_gpus)
    assert table.makespan_s(num_gpus) == brute_force(costs, num_gpus)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_interval_program_equals_brute_force_for_arbitrary_costs(num: int, num_gpus: int, seed: int) -> None:
    """Also when costs are not monotone, are tied, or are infinite."""
    rng = np.random.default_rng(seed)
    costs = {}
    for tp in SIZES:
        cost = rng.integers(0, 6, (num + 1, num + 1)).astype(float)
        cost[rng.random(cost.shape) < 0.1] = np.inf
        costs[tp] = np.where(np.tril(np.ones_like(cost, dtype=bool)), np.inf, cost)
    table = solve(costs, num_gpus)
    assert table.makespan_s(num_gpus) == brute_force(costs, num_gpus)
    found = table.intervals(num_gpus)
    if np.isfinite(table.makespan_s(num_gpus)):
        assert [x.low for x in found] == [0, *(x.high for x in found[:-1])]
        assert found[-1].high == num
        assert sum(x.tp for x in found) <= num_gpus
        assert max(costs[x.tp][x.low, x.high] for x in found) == table.makespan_s(num_gpus)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.sets(st.sampled_from(SIZES), min_size=1), st.integers(0, 2**32 - 1))
def test_a_table_that_stops_early_is_the_whole_one(num: int, sizes: set[int], seed: int) -> None:
    """More GPUs than help: every row as the recurrence gives it."""
    rng = np.random.default_rng(seed)
    void = np.tril(np.ones((num + 1, num + 1), dtype=bool))
    costs = {tp: np.where(void, np.inf, rng.integers(0, 9, void.shape).astype(float)) for tp in sizes}
    best = [[0.0] + [np.inf] * num]
    for g in range(1, 60):
        usable = [tp for tp in sizes if tp <= g]
        row = [
            min([best[g - 1][i], *(max(best[g - tp][j], float(costs[tp][j, i])) for tp in usable for j in range(i))])
            for i in range(num + 1)
        ]
        best.append(row)
    table = solve(costs, 59)
    assert table.best_s.tolist() == best
    assert sum(x.tp for x in table.intervals(59)) <= 59


@settings(max_examples=40, deadline=None)
@given(st.lists(requests, min_size=1, max_size=40))
def test_more_gpus_never_cost_more(finished: list[Finished]) -> None:
    points = compress(finished, len(finished))
    costs = interval_costs({tp: Engine(CLUSTER, MODEL, tp) for tp in SIZES}, points, Schedule())
    table = solve(costs, 24)
    assert np.all(np.diff(table.best_s[1:, -1]) <= 0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(requests, min_size=1, max_size=80),
    st.integers(1, 300),
    st.sampled_from(["barrier", "async", "colocated"]),
    st.integers(0, 4),
    st.integers(0, 64),
    st.integers(0, 3),
)
def test_plans_never_exceed_the_cluster_and_always_fit(
    finished: list[Finished], batch: int, kind: str, staleness: int, cap: int, hybrids: int
) -> None:
    pipeline = PipelineSpec(kind, staleness, cap)  # type: ignore[arg-type]
    run = RunStart(0.0, CLUSTER.name, MODEL.name, pipeline, batch, 16, 100, 40960)
    plan = JointPlanner(CLUSTER, MODEL, hybrid_replicas=hybrids).plan(Statistics(run, tuple(finished)), None)
    assert plan.num_gpus == CLUSTER.num_gpus
    assert train_fits(CLUSTER.gpu, MODEL, plan.train)
    assert len({i.id for i in plan.instances}) == len(plan.instances)
    assert plan.bounds_tok[-1] == 40960
    assert np.isfinite(plan.expected.step_s)
    assert plan.expected.step_s >= max(plan.expected.rollout_s, plan.expected.train_s)
    assert plan.expected.step_s == pytest.approx(plan.expected.step_s)
