"""The search for hybrid pools returns what pricing every state returns, and its numbers are those of the named plan."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.clusters import load_cluster
from libra.core.errors import CapacityError
from libra.core.events import PipelineSpec, RunStart
from libra.core.plan import Plan
from libra.core.policy import Finished, Statistics
from libra.models import load_model
from libra.planning.assemble import mark_hybrids, name_instances
from libra.planning.estimate import Demand
from libra.planning.hybrids import HETEROGENEOUS_MARGIN, TIE_SHARE, buckets_of, served_by, serving_states
from libra.planning.layout import Pool, RolloutLayout, of_instances
from libra.planning.search import JointPlanner, hybrid_states
from libra.planning.topology import Limits, Space
from tests.property.strategies import requests

CLUSTER = load_cluster("a800x48")
CONTEXT_TOK = 40960
PIPELINES = (
    PipelineSpec("barrier"), PipelineSpec("async", 0), PipelineSpec("async", 2), PipelineSpec("async", 4, 40),
)  # fmt: skip


def every_state(planner: JointPlanner, demand: Demand) -> Plan | None:
    """All candidates, with names, in every state; then the choice in words: most replicas, close, kind, step, order."""
    plans: list[Plan] = []
    for candidate in planner._candidates(demand):
        base = planner._assemble(demand, candidate, None)
        replica_gpus = candidate.leaf.layout.replica_gpus
        marked = mark_hybrids(base.instances, replica_gpus, planner.hybrid_replicas)
        plans.extend(hybrid_states(planner.estimator, demand, msgspec.structs.replace(base, instances=marked)))
    if not plans:
        return None
    most = max(len(plan.hybrid_replicas) for plan in plans)
    plans = [plan for plan in plans if len(plan.hybrid_replicas) == most]

    def is_mixed(plan: Plan) -> bool:
        return len({i.tp for i in plan.instances}) > 1

    def handicapped_s(plan: Plan) -> float:
        return plan.expected.step_s / (1 - HETEROGENEOUS_MARGIN if is_mixed(plan) else 1.0)

    close_s = min(map(handicapped_s, plans)) * (1 + TIE_SHARE)
    close = [plan for plan in plans if handicapped_s(plan) <= close_s]
    return min(close, key=lambda p: (is_mixed(p), abs(len(p.hybrid_training) - most / 2), p.expected.step_s))


@settings(max_examples=120, deadline=None)
@given(
    st.data(),
    st.sampled_from(("qwen3-14b", "qwen3-4b", "qwen3-30b-a3b")),
    st.integers(1, 12),
    st.sampled_from(PIPELINES),
    st.lists(requests, min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_the_search_returns_what_pricing_every_state_returns(
    data: st.DataObject,
    name: str,
    num_nodes: int,
    pipeline: PipelineSpec,
    finished: list[Finished],
    num_batches: int,
    num_replicas: int,
) -> None:
    """All pipelines with two pools, dense and experts, restricted sizes, larger spaces, the article's tree."""
    cluster = msgspec.structs.replace(CLUSTER, num_nodes=num_nodes)
    run = RunStart(0.0, cluster.name, name, pipeline, max(1, len(finished) // num_batches), 16, 10, CONTEXT_TOK)
    planner = JointPlanner(
        cluster,
        load_model(name),
        hybrid_replicas=num_replicas,
        heterogeneous=data.draw(st.sampled_from((True, True, False))),
        sizes=data.draw(st.sampled_from((None, None, (8,), (2, 4)))),
        limits=data.draw(st.sampled_from((None, None, Limits()))),
        space=data.draw(st.sampled_from((Space(context_sizes=(1,)), Space(interleaved=False, micro_batches=(1,))))),
    )
    statistics = Statistics(run, tuple(finished))
    wanted = every_state(planner, planner.estimator.demand(statistics, None))
    if wanted is None:
        with pytest.raises(CapacityError):
            planner.plan(statistics, None)
        return
    found = planner.plan(statistics, None)
    assert msgspec.structs.replace(found, note="") == msgspec.structs.replace(wanted, note="")


@pytest.mark.parametrize(("num_nodes", "num_replicas", "batch"), [(6, 2, 512), (32, 2, 128), (64, 1, 512)])
def test_so_it_does_where_most_splits_are_equally_fast(num_nodes: int, num_replicas: int, batch: int) -> None:
    """On many GPUs the longest request sets the step of nearly every state, and ties decide."""
    cluster = msgspec.structs.replace(CLUSTER, num_nodes=num_nodes)
    rng = np.random.default_rng(num_nodes)
    totals = np.clip(rng.lognormal(np.log(9000) - 0.72, 1.2, batch), 600, CONTEXT_TOK).astype(int).tolist()
    finished = tuple(Finished(500, tok // 2, tok - tok // 2 - 500, 1 + tok // 700, tok / 350) for tok in totals)
    run = RunStart(0.0, cluster.name, "qwen3-14b", PipelineSpec("barrier"), batch, 16, 10, CONTEXT_TOK)
    planner = JointPlanner(cluster, load_model("qwen3-14b"), hybrid_replicas=num_replicas)
    statistics = Statistics(run, finished)
    wanted = every_state(planner, planner.estimator.demand(statistics, None))
    assert wanted is not None
    found = planner.plan(statistics, None)
    assert msgspec.structs.replace(found, note="") == msgspec.structs.replace(wanted, note="")


@st.composite
def layouts(draw: st.DrawFn) -> RolloutLayout:
    """Up to four buckets, each with instances of some of the sizes."""
    pools: list[Pool] = []
    for low in range(draw(st.integers(1, 4))):
        for tp in sorted(draw(st.sets(st.sampled_from((1, 2, 4, 8)), min_size=1))):
            pools.append(Pool(tp, draw(st.integers(1, 9)), low, low + 1))
    return RolloutLayout(tuple(pools))


@settings(max_examples=500, deadline=None)
@given(layouts(), st.sampled_from((1, 2, 3, 4, 5, 8, 10, 12, 16, 20, 40)), st.integers(0, 6))
def test_numbers_are_those_of_named_instances(layout: RolloutLayout, replica_gpus: int, num_replicas: int) -> None:
    marked = mark_hybrids(name_instances(layout, None), replica_gpus, num_replicas)
    states = serving_states(served_by(layout), replica_gpus, num_replicas)
    assert len(states) == len({i.hybrid for i in marked} - {None}) + 1
    bounds = tuple(100 * (edge + 1) for edge in range(len(layout.edges)))
    for lent, served in enumerate(states):
        there = [i for i in marked if i.hybrid is None or i.hybrid >= lent]
        assert Counter({(x.bucket, x.tp): x.num for x in served if x.num}) == Counter((i.bucket, i.tp) for i in there)
        assert buckets_of(served, bounds) == of_instances(there, bounds)


def test_the_largest_of_the_last_bucket_is_never_lent() -> None:
    layout = RolloutLayout((Pool(4, 1, 0, 1), Pool(4, 2, 1, 2)))
    assert [[x.num for x in served] for served in serving_states(served_by(layout), 4, 5)] == [[1, 2], [0, 2], [0, 1]]
