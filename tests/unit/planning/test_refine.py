from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from libra.clusters import load_cluster
from libra.core.events import PipelineSpec, RunStart
from libra.core.policy import Finished, Statistics
from libra.models import load_model
from libra.planning.estimate import Demand, Estimator
from libra.planning.intervals import interval_costs, solve
from libra.planning.layout import Pool, RolloutLayout, coarsen, merge, of_pools
from libra.planning.refine import neighbours, refine

CLUSTER, MODEL = load_cluster("a800x48"), load_model("qwen3-14b")
SIZES = (1, 2, 4, 8)
TRAIN_S = 10.0


def demand_of(estimator: Estimator, seed: int, batches: int = 4, batch: int = 64) -> Demand:
    rng = np.random.default_rng(seed)
    totals = np.clip(rng.lognormal(8.3, 1.0, batches * batch), 600, 40960).astype(int).tolist()
    finished = tuple(Finished(500, tok - 500, 0, 1, 0.0) for tok in totals)
    run = RunStart(0.0, CLUSTER.name, MODEL.name, PipelineSpec("barrier"), batch, 16, 500, 40960)
    return estimator.demand(Statistics(run, finished), None)


def step_s(estimator: Estimator, demand: Demand, layout: RolloutLayout) -> float:
    pace = estimator.rollout_pace(demand, of_pools(layout, demand.requests))
    return estimator.combine(demand, pace, TRAIN_S).step_s


@pytest.mark.parametrize("slow", [(0, 20), (20, 50), (50, 64)])
def test_a_neighbour_serves_every_length_on_no_more_gpus(slow: tuple[int, int]) -> None:
    layout = RolloutLayout((Pool(1, 6, 0, 20), Pool(2, 1, 20, 50), Pool(4, 2, 20, 50), Pool(8, 2, 50, 64)))
    found = list(neighbours(layout, SIZES, slow))
    assert len(set(found)) > 4
    for each in found:
        assert each != layout
        assert each.num_gpus <= layout.num_gpus
        edges = (0, *each.edges)
        assert edges[-1] == 64
        assert {(pool.low, pool.high) for pool in each.pools} == set(pairwise(edges))
        assert all(pool.tp in SIZES and pool.count > 0 for pool in each.pools)


def test_the_interval_program_s_answer_is_never_worsened_and_sometimes_improved() -> None:
    """The program minimises the slowest instance of the mean batch; over batches other layouts do better."""
    gains = []
    for seed in range(12):
        estimator = Estimator(CLUSTER, MODEL)
        demand = demand_of(estimator, seed)
        costs = interval_costs({tp: estimator.engines[tp] for tp in SIZES}, demand.requests, demand.schedule)
        start = coarsen(merge(solve(costs, 24).intervals(24)), demand.requests, 40960)
        found = refine(estimator, demand, start, SIZES, TRAIN_S, 40)
        assert coarsen(found, demand.requests, 40960) == found
        gains.append(1 - step_s(estimator, demand, found) / step_s(estimator, demand, start))
    assert min(gains) >= 0
    assert max(gains) > 0.02


def test_no_more_neighbours_are_priced_than_asked_for() -> None:
    estimator = Estimator(CLUSTER, MODEL)
    demand = demand_of(estimator, 0)
    start = RolloutLayout((Pool(1, 8, 0, 40), Pool(4, 4, 40, 64)))
    few, many = (refine(estimator, demand, start, SIZES, TRAIN_S, most) for most in (0, 100))
    assert few == start
    assert step_s(estimator, demand, many) < step_s(estimator, demand, start)
    # Nothing is left to gain: the first round already goes through all neighbours.
    assert refine(estimator, demand, many, SIZES, TRAIN_S, 100) == many
