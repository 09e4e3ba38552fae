"""The interval program against two independent oracles: a MILP on medium instances, every assignment on small ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import combinations, product

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from libra.clusters import load_cluster
from libra.core.policy import Finished
from libra.cost.engine import Engine
from libra.cost.loads import whole_load
from libra.cost.requests import Requests, compress
from libra.cost.rollout import Schedule, rollout_s
from libra.models import load_model
from libra.planning.intervals import interval_costs, solve

ENGINES = {tp: Engine(load_cluster("a800x48"), load_model("qwen3-14b"), tp) for tp in (1, 2, 4, 8)}
SCHEDULES = (Schedule(), Schedule(2.0, 1))
MOST_EXCESS = 0.06
"""What serving by length may cost against any assignment; of 320 draws 37 had any excess, the largest was 0.050."""
WORST = 7


def draw(rng: np.random.Generator, num: int) -> list[Finished]:
    """Heavy-tailed lengths; in half of the draws tool time has nothing to do with length."""
    has_slow_tools = rng.random() < 0.5
    found = []
    for _ in range(num):
        generated, turns = max(1, min(int(rng.lognormal(8, 1.2)), 20_000)), int(rng.integers(1, 12))
        tool_s = float(rng.exponential(60)) if has_slow_tools else 2.0 * (turns - 1)
        found.append(Finished(500, generated, int(rng.integers(0, 8000)), turns, tool_s))
    return found


def fewest_gpus(costs: dict[int, np.ndarray], limit_s: float) -> float:
    """GPUs that serve every point within `limit_s`, each instance one interval: a set partition, solved by HiGHS."""
    num = next(iter(costs.values())).shape[0] - 1
    columns = [(tp, low, high) for tp, cost in costs.items() for low, high in np.argwhere(cost <= limit_s)]
    if not columns:
        return np.inf
    cells = [(point, at) for at, (_, low, high) in enumerate(columns) for point in range(low, high)]
    rows, cols = zip(*cells, strict=True)
    covers = coo_array((np.ones(len(cells)), (rows, cols)), shape=(num, len(columns)))
    price = [tp for tp, _, _ in columns]
    found = milp(price, constraints=LinearConstraint(covers.tocsr(), 1, 1), integrality=1, bounds=(0, 1))
    return round(found.fun) if found.success else np.inf


@pytest.mark.parametrize("seed", range(24))
def test_a_milp_needs_all_the_gpus_for_the_makespan_and_more_for_a_shorter_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num, num_gpus = int(rng.integers(10, 33)), int(rng.integers(4, 33))
    points = compress(draw(rng, num), num)
    costs = interval_costs(ENGINES, points, SCHEDULES[seed % 2])
    makespan_s = solve(costs, num_gpus).makespan_s(num_gpus)
    assert fewest_gpus(costs, makespan_s) <= num_gpus
    assert fewest_gpus(costs, makespan_s * (1 - 1e-9)) > num_gpus


def partitions(items: list[int]) -> Iterator[list[tuple[int, ...]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            left = [item for item in rest if item not in others]
            for found in partitions(left):
                yield [(first, *others), *found]


def best_of_all(points: Requests, num_gpus: int, schedule: Schedule) -> float:
    """Least makespan over every assignment of requests to instances, whether or not lengths are contiguous."""

    def cost(chosen: tuple[int, ...], tp: int) -> float:
        part = Requests(**{f.name: getattr(points, f.name)[list(chosen)] for f in fields(points)})
        return float(rollout_s(ENGINES[tp], part, whole_load(ENGINES[tp], part), schedule))

    return min(
        max(cost(chosen, tp) for chosen, tp in zip(found, sizes, strict=True))
        for found in partitions(list(range(len(points))))
        for sizes in product(ENGINES, repeat=len(found))
        if sum(sizes) <= num_gpus
    )


def excess(seed: int) -> float:
    """By what share the best contiguous plan of a small instance takes longer than the best of all."""
    rng = np.random.default_rng(seed)
    num, num_gpus = int(rng.integers(2, 6)), int(rng.integers(2, 7))
    points, schedule = compress(draw(rng, num), num), SCHEDULES[seed % 2]
    contiguous_s = solve(interval_costs(ENGINES, points, schedule), num_gpus).makespan_s(num_gpus)
    return contiguous_s / best_of_all(points, num_gpus, schedule) - 1


def test_serving_by_length_is_not_always_the_best_but_close() -> None:
    """Length decides most of a request's cost and not all (tools, turns, prefill), so counter-examples exist. A bucket
    is an interval of lengths because that is what a router can follow; this is what it costs."""
    found = [excess(seed) for seed in (*range(100), WORST)]
    assert found[-1] > 0.02
    assert min(found) > -1e-9
    assert max(found) <= MOST_EXCESS
    assert np.mean(found) < 0.003
