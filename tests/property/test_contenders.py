"""The joint search without hybrid pools takes from its contenders what it would take from all candidates."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.clusters import load_cluster
from libra.core.events import PipelineSpec, RunStart
from libra.core.policy import Finished, Statistics
from libra.models import load_model
from libra.planning.search import JointPlanner, _choose
from tests.property.strategies import requests

CLUSTER = load_cluster("a800x48")
PIPELINES = (
    PipelineSpec("barrier"), PipelineSpec("colocated"), PipelineSpec("async", 0), PipelineSpec("async", 2),
    PipelineSpec("async", 4, 40),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    st.sampled_from(("qwen3-14b", "qwen3-4b", "qwen3-30b-a3b")),
    st.sampled_from((1, 2, 3, 6, 12, 40)),
    st.sampled_from(PIPELINES),
    st.lists(requests, min_size=1, max_size=80),
    st.integers(1, 4),
    st.sampled_from((None, None, (8,), (2, 4))),
)
def test_the_choice_among_contenders_is_the_choice_among_all(
    data: st.DataObject,
    name: str,
    num_nodes: int,
    pipeline: PipelineSpec,
    finished: list[Finished],
    num_batches: int,
    sizes: tuple[int, ...] | None,
) -> None:
    """Also with any of the candidates there already, which near-ties prefer."""
    cluster = msgspec.structs.replace(CLUSTER, num_nodes=num_nodes)
    run = RunStart(0.0, cluster.name, name, pipeline, max(1, len(finished) // num_batches), 16, 10, 40960)
    planner = JointPlanner(cluster, load_model(name), sizes=sizes)
    demand = planner.estimator.demand(Statistics(run, tuple(finished)), None)
    everything = list(planner._candidates(demand))
    contenders = planner._contenders(demand, None)
    assert set(contenders) <= set(everything)
    if not everything:
        assert not contenders
        return
    there = planner._assemble(demand, data.draw(st.sampled_from(everything)), None)
    for current in (None, there):
        contenders = planner._contenders(demand, current)
        assert [c for c in everything if c in contenders] == contenders
        assert _choose(contenders, current) == _choose(everything, current)


@pytest.mark.parametrize("kind", ["barrier", "async"])
@pytest.mark.parametrize(
    ("num_nodes", "log_tok", "sigma"), [(4, 7.5, 0.8), (6, 7.5, 0.8), (6, 7.5, 1.2), (3, 7.5, 1.2)]
)
def test_so_it_is_where_mixed_layouts_win(num_nodes: int, log_tok: float, sigma: float, kind: str) -> None:
    """Splits of two GPUs are near-ties; each candidate that is close to the best is there once."""
    rng = np.random.default_rng(0)
    totals = np.clip(rng.lognormal(log_tok, sigma, 512), 600, 40960).astype(int).tolist()
    finished = tuple(Finished(500, tok // 2, tok - tok // 2 - 500, 1 + tok // 700, tok / 350) for tok in totals)
    run = RunStart(0.0, CLUSTER.name, "qwen3-4b", PipelineSpec(kind, 2), 512, 16, 10, 40960)  # type: ignore[arg-type]
    cluster = msgspec.structs.replace(CLUSTER, num_nodes=num_nodes)
    planner = JointPlanner(cluster, load_model("qwen3-4b"), granularity=2)
    demand = planner.estimator.demand(Statistics(run, finished), None)
    everything = list(planner._candidates(demand))
    assert not _choose(everything, None).rollout.is_homogeneous
    best_s = min(c.expected.step_s for c in everything)
    for candidate in everything:
        if candidate.expected.step_s <= best_s * 1.04:
            current = planner._assemble(demand, candidate, None)
            assert _choose(planner._contenders(demand, current), current) == _choose(everything, current)


def test_no_table_is_solved_where_no_mixed_layout_can_win() -> None:
    """On many GPUs every plan is about as fast as the longest request, so no mixed layout can be the needed share
    faster; on few one may be."""
    finished = tuple(Finished(500, 30_000 if i % 50 == 0 else 3000, 0, 1, 0.0) for i in range(512))
    run = RunStart(0.0, CLUSTER.name, "qwen3-14b", PipelineSpec("barrier"), 512, 16, 10, 40960)

    def num_mixed(num_nodes: int) -> tuple[int, int]:
        planner = JointPlanner(msgspec.structs.replace(CLUSTER, num_nodes=num_nodes), load_model("qwen3-14b"))
        demand = planner.estimator.demand(Statistics(run, finished), None)
        found = planner._contenders(demand, None), planner._candidates(demand)
        few, all_of_them = (sum(not c.rollout.is_homogeneous for c in each) for each in found)
        return few, all_of_them

    few, all_of_them = num_mixed(64)
    assert few == 0 < all_of_them
    few, all_of_them = num_mixed(6)
    assert 0 < few < all_of_them
