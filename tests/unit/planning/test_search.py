from __future__ import annotations

import msgspec
import pytest

from libra.clusters import load_cluster
from libra.core.errors import CapacityError, ConfigError
from libra.core.hardware import Cluster, Model
from libra.cost.memory import engine_fits, train_fits
from libra.models import load_model
from libra.planning.search import JointPlanner
from libra.planning.topology import packs_into_nodes

KINDS = ("barrier", "async", "colocated")


@pytest.mark.parametrize("name", ["qwen3-4b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [16, 256, 2048])
def test_a_plan_uses_all_gpus_fits_and_packs(cluster: Cluster, statistics, name: str, kind: str, batch: int) -> None:
    model = load_model(name)
    plan = JointPlanner(cluster, model).plan(statistics(batch, kind=kind), None)
    assert plan.num_gpus == cluster.num_gpus
    assert plan.colocated == (kind == "colocated")
    assert train_fits(cluster.gpu, model, plan.train)
    assert all(engine_fits(cluster.gpu, model, i.tp, 40960) for i in plan.instances)
    if not plan.colocated:
        replicas = [plan.train.tp] * (plan.train.num_gpus // plan.train.tp)
        assert packs_into_nodes(cluster, [i.tp for i in plan.instances] + replicas)
    assert plan.bounds_tok[-1] == 40960
    assert list(plan.bounds_tok) == sorted(set(plan.bounds_tok))
    assert {i.bucket for i in plan.instances} == set(range(len(plan.bounds_tok)))
    assert plan.expected.step_s > 0


def test_expected_is_the_estimate_of_the_plan_itself(cluster: Cluster, model: Model, statistics) -> None:
    planner = JointPlanner(cluster, model, hybrid_replicas=2)
    asked = statistics(256)
    plan = planner.plan(asked, None)
    assert planner.estimator.estimate(plan, planner.estimator.demand(asked, None)) == plan.expected


@pytest.mark.parametrize("kind", KINDS)
def test_homogeneous_wins_when_lengths_are_equal(cluster: Cluster, model: Model, statistics, kind: str) -> None:
    plan = JointPlanner(cluster, model).plan(statistics(64, kind=kind, equal_tok=4000), None)
    assert len({i.tp for i in plan.instances}) == 1
    assert plan.bounds_tok == (40960,)


@pytest.mark.parametrize("batch", [32, 512])
def test_never_worse_than_the_best_homogeneous_plan(cluster: Cluster, model: Model, statistics, batch: int) -> None:
    asked = statistics(batch)
    free = JointPlanner(cluster, model).plan(asked, None).expected.step_s
    equal = JointPlanner(cluster, model, heterogeneous=False).plan(asked, None).expected.step_s
    assert free <= equal * 1.01


def test_objective_by_pipeline(cluster: Cluster, model: Model, statistics) -> None:
    for kind in KINDS:
        e = JointPlanner(cluster, model).plan(statistics(64, kind=kind), None).expected
        busy = e.rollout_s + e.train_s if kind == "colocated" else max(e.rollout_s, e.train_s)
        assert 0 < e.step_s - busy < 10


def test_longer_sequences_move_the_split_toward_rollout(cluster: Cluster, model: Model, statistics) -> None:
    """Throughput-bound: KV reads grow with the square of the length, training nearly linearly."""
    planner = JointPlanner(cluster, model, granularity=4)
    splits = [
        planner.plan(
            statistics(512, mean_tok=tok, sigma=0.5, tool_s=0.0, kind="async", staleness=4), None
        ).train.num_gpus
        for tok in (1500.0, 6000.0, 20000.0)
    ]
    assert splits == sorted(splits, reverse=True)
    assert splits[0] > splits[-1]


def test_slower_training_moves_the_split_toward_training(
    cluster: Cluster, model: Model, statistics, applied, step_end
) -> None:
    """Telemetry says that training takes k times the estimate."""
    planner = JointPlanner(cluster, model, min_repartition_share=0.0)
    before = planner.plan(statistics(512), None)
    there = applied(before)
    demand = planner.estimator.demand(statistics(512), there)
    tok = int(demand.train.total_tok)
    sizes = []
    for slow in (1.0, 3.9):
        end = step_end(7, before.expected.rollout_s, slow * before.expected.train_s, before.train)
        ends = tuple(msgspec.structs.replace(end, trained_tok=tok, step=i) for i in range(8))
        sizes.append(planner.plan(statistics(512, steps=ends), there).train.num_gpus)
    assert sizes[1] > sizes[0]


def test_fault_9_three_times_the_history_gives_the_same_plan(cluster: Cluster, model: Model, statistics) -> None:
    once = statistics(64)
    thrice = msgspec.structs.replace(once, finished=once.finished * 3)
    planner = JointPlanner(cluster, model)
    a, b = planner.plan(once, None), planner.plan(thrice, None)
    assert a.instances == b.instances
    assert a.expected.rollout_s == pytest.approx(b.expected.rollout_s)
    assert a.expected.train_s == pytest.approx(b.expected.train_s)


@pytest.mark.parametrize("num_nodes", [36, 512])
def test_fault_10_large_clusters_have_plans(cluster: Cluster, model: Model, statistics, num_nodes: int) -> None:
    large = msgspec.structs.replace(cluster, num_nodes=num_nodes)
    plan = JointPlanner(large, model).plan(statistics(2048), None)
    assert plan.num_gpus == 8 * num_nodes


def test_fault_12_the_planner_emits_bounds_with_the_layout(cluster: Cluster, model: Model, statistics) -> None:
    asked = statistics(512, kind="colocated")
    plan = JointPlanner(cluster, model).plan(asked, None)
    assert len({i.tp for i in plan.instances}) > 1
    totals = {f.total_tok for f in asked.finished}
    assert all(bound in totals for bound in plan.bounds_tok[:-1])


def test_fewer_trajectories_in_flight_than_a_batch_make_the_step_longer(
    cluster: Cluster, model: Model, statistics
) -> None:
    def step_s(cap: int) -> float:
        asked = statistics(256, kind="async", staleness=1, cap=cap)
        return JointPlanner(cluster, model).plan(asked, None).expected.step_s

    assert step_s(16) > max(step_s(64), step_s(0))


def test_fixed_split_and_its_limits(cluster: Cluster, model: Model, statistics) -> None:
    assert JointPlanner(cluster, model, train_gpus=16).plan(statistics(), None).train.num_gpus == 16
    with pytest.raises(ConfigError, match="leave some for rollout"):
        JointPlanner(cluster, model, train_gpus=48).plan(statistics(), None)


def test_fault_8_what_does_not_fit_is_an_error_with_figures(model: Model, statistics) -> None:
    small = load_cluster("cpu2")
    with pytest.raises(CapacityError, match=r"need \d+\.\d GB a GPU, 3\.9 GB"):
        JointPlanner(small, model).plan(statistics(), None)
    one_node = msgspec.structs.replace(load_cluster("a800x48"), num_nodes=1)
    with pytest.raises(CapacityError, match=r"no training layout of qwen3-32b on"):
        JointPlanner(one_node, load_model("qwen3-32b")).plan(statistics(), None)
    with pytest.raises(CapacityError, match="no rollout instance of qwen3-32b fits 16 GPUs"):
        JointPlanner(load_cluster("a800x48"), load_model("qwen3-32b"), sizes=(1,), train_gpus=32).plan(
            statistics(), None
        )


def test_two_cores_and_a_tiny_model_have_a_plan(statistics) -> None:
    plan = JointPlanner(load_cluster("cpu2"), load_model("tiny")).plan(
        statistics(8, equal_tok=1200, context_tok=2048), None
    )
    assert (plan.train.num_gpus, plan.rollout_gpus) == (1, 1)


@pytest.mark.parametrize("batch", [32, 512])
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_hybrid_replicas_can_join_as_whole_replicas(
    cluster: Cluster, model: Model, statistics, batch: int, num_replicas: int
) -> None:
    plan = JointPlanner(cluster, model, hybrid_replicas=num_replicas).plan(statistics(batch), None)
    assert plan.hybrid_replicas == tuple(range(num_replicas))
    for hybrid in plan.hybrid_replicas:
        assert sum(i.tp for i in plan.instances if i.hybrid == hybrid) == plan.train.replica_gpus
    assert set(plan.hybrid_training) <= set(plan.hybrid_replicas)
    assert plan.num_gpus == cluster.num_gpus


def test_what_is_there_stays_when_nothing_changed(cluster: Cluster, model: Model, statistics, applied) -> None:
    planner = JointPlanner(cluster, model, hybrid_replicas=2)
    plan = planner.plan(statistics(256), None)
    again = planner.plan(statistics(256), applied(plan))
    assert msgspec.structs.replace(again, note="") == msgspec.structs.replace(plan, note="")


def test_drift_within_reach_is_answered_by_hybrid_moves(cluster: Cluster, model: Model, statistics, applied) -> None:
    """Short lengths, then long ones: hybrid replicas leave training, and core layout and ids stay."""
    planner = JointPlanner(cluster, model, hybrid_replicas=4, min_repartition_share=0.5)
    common = {"sigma": 0.5, "tool_s": 0.0, "kind": "async", "staleness": 4}
    first = planner.plan(statistics(512, mean_tok=1500.0, **common), None)
    moved = planner.plan(statistics(512, mean_tok=20000.0, **common), applied(first))
    assert moved.train == first.train
    assert moved.instances == first.instances
    assert len(moved.hybrid_training) < len(first.hybrid_training)


@pytest.mark.parametrize(("num_nodes", "step"), [(1, 1), (2, 2), (4, 4), (6, 8), (16, 8)])
def test_small_clusters_are_split_more_finely(
    cluster: Cluster, model: Model, statistics, num_nodes: int, step: int
) -> None:
    small = msgspec.structs.replace(cluster, num_nodes=num_nodes)
    planner = JointPlanner(small, model)
    splits = planner.splits(planner.estimator.demand(statistics(), None))
    assert splits == tuple(range(step, 8 * num_nodes, step))
