"""No plan is faster than the bound, whatever its split, layouts, buckets and instances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.clusters import load_cluster
from libra.core.events import PipelineSpec, RunStart
from libra.core.plan import InstanceSpec, Plan
from libra.core.policy import Finished, Statistics
from libra.models import load_model
from libra.planning.bound import RolloutBound, least_s_per_tok, step_bound_s, train_bound_s
from libra.planning.estimate import Estimator
from libra.planning.topology import layouts
from tests.property.strategies import requests

CLUSTER = load_cluster("a800x48")
MODELS = {name: load_model(name) for name in ("qwen3-14b", "qwen3-30b-a3b", "qwen3-4b")}
CONTEXT_TOK = 40960
PIPELINES = (
    PipelineSpec("barrier"), PipelineSpec("colocated"), PipelineSpec("async", 0), PipelineSpec("async", 2),
    PipelineSpec("async", 4, 40),
)  # fmt: skip


@st.composite
def plans(draw: st.DrawFn, model: str, colocated: bool) -> Plan:
    total = CLUSTER.num_gpus
    num_train = total if colocated else draw(st.integers(1, total - 1))
    train = draw(st.sampled_from(list(layouts(CLUSTER, MODELS[model], num_train, CONTEXT_TOK))))
    left, sizes = total if colocated else total - num_train, []
    while left > 0 and (not sizes or draw(st.booleans())):
        sizes.append(draw(st.sampled_from([tp for tp in (1, 2, 4, 8) if tp <= left])))
        left -= sizes[-1]
    cuts = sorted(draw(st.sets(st.integers(1, CONTEXT_TOK - 1), max_size=len(sizes) - 1)))
    last = len(cuts)
    buckets = [*range(last + 1), *(draw(st.integers(0, last)) for _ in sizes[last + 1 :])]
    instances = tuple(InstanceSpec(i, tp, bucket) for i, (tp, bucket) in enumerate(zip(sizes, buckets, strict=True)))
    return Plan(train, instances, (*cuts, CONTEXT_TOK), colocated=colocated)


@settings(max_examples=300, deadline=None)
@given(
    st.data(),
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(PIPELINES),
    st.lists(requests, min_size=1, max_size=40),
    st.integers(1, 4),
)
def test_no_plan_is_below_the_bound(
    data: st.DataObject, name: str, pipeline: PipelineSpec, finished: list[Finished], num_batches: int
) -> None:
    run = RunStart(0.0, CLUSTER.name, name, pipeline, max(1, len(finished) // num_batches), 16, 10, CONTEXT_TOK)
    estimator = Estimator(CLUSTER, MODELS[name])
    demand = estimator.demand(Statistics(run, tuple(finished)), None)
    colocated = pipeline.kind == "colocated"
    plan = data.draw(plans(name, colocated))
    expected = estimator.estimate(plan, demand)
    sizes = sorted(estimator.engines)
    slack = 1 + 1e-9
    least = RolloutBound(estimator, demand, tuple(sizes)).pace(plan.rollout_gpus)
    pace = estimator.rollout_pace(demand, estimator.serving(plan))
    if demand.schedule.staleness is None:
        assert (least.work_s <= pace.work_s * slack).all()
    assert least.work_s.mean() <= pace.work_s.mean() * slack
    assert (least.life_s <= pace.life_s * slack).all()
    assert train_bound_s(estimator, demand, plan.train.num_gpus) <= expected.train_s * slack
    assert step_bound_s(estimator, demand, sizes, colocated=colocated) <= expected.step_s * slack


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_token_never_costs_less_at_any_batch(name: str) -> None:
    batch = np.linspace(1, 256, 20_000)
    for engine in Estimator(CLUSTER, MODELS[name]).engines.values():
        cost = engine.step_s(batch) / batch
        assert least_s_per_tok(engine) <= cost.min()
        assert least_s_per_tok(engine) >= 0.99 * cost.min()
