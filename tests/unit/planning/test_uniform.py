from __future__ import annotations

import msgspec
import pytest

from libra.core.errors import CapacityError, ConfigError
from libra.core.hardware import Cluster, Model
from libra.core.plan import TrainLayout
from libra.models import load_model
from libra.planning.search import JointPlanner
from libra.planning.uniform import (
    BestHomogeneousPlanner,
    FixedPlanner,
    GreedyPlanner,
    PatternPlanner,
    StaticOptimalPlanner,
    UniformPlanner,
)


def test_uniform_is_24_by_24(cluster: Cluster, model: Model, statistics) -> None:
    plan = UniformPlanner(cluster, model).plan(statistics(), None)
    assert plan.train == TrainLayout(tp=4, dp=6)
    assert [i.tp for i in plan.instances] == [1] * 24
    assert plan.bounds_tok == (40960,)


def test_colocated_uniform_gives_both_stages_all_gpus(cluster: Cluster, model: Model, statistics) -> None:
    plan = UniformPlanner(cluster, model, tp=2, colocated=True).plan(statistics(kind="colocated"), None)
    assert plan.colocated
    assert plan.train.num_gpus == plan.rollout_gpus == plan.num_gpus == 48


def test_uniform_needs_no_lengths(cluster: Cluster, model: Model, statistics) -> None:
    blind = msgspec.structs.replace(statistics(), finished=())
    assert UniformPlanner(cluster, model).plan(blind, None).expected.step_s == 0


def test_uniform_refuses_what_does_not_fit(cluster: Cluster, statistics) -> None:
    with pytest.raises(CapacityError, match="tensor-parallel size"):
        UniformPlanner(cluster, load_model("qwen3-32b"), tp=1).plan(statistics(), None)
    with pytest.raises(ConfigError, match="without GPUs"):
        UniformPlanner(cluster, load_model("qwen3-4b"), train_share=0.0).plan(statistics(), None)


def test_two_pools_need_two_gpus(cluster: Cluster, statistics) -> None:
    one = msgspec.structs.replace(cluster, num_nodes=1, gpus_per_node=1)
    for planner in (GreedyPlanner(one, load_model("tiny")), JointPlanner(one, load_model("tiny"))):
        with pytest.raises(CapacityError, match="a GPU each"):
            planner.plan(statistics(), None)


def test_pattern_is_the_released_one(cluster: Cluster, model: Model, statistics) -> None:
    asked = statistics(64)
    plan = PatternPlanner(cluster, model).plan(asked, None)
    assert plan.train.num_gpus == 16
    assert sorted(i.tp for i in plan.instances) == [1] * 8 + [2] * 4 + [4] * 4
    assert {(i.bucket, i.tp) for i in plan.instances} == {(0, 1), (1, 2), (2, 4)}
    totals = sorted(f.total_tok for f in asked.finished)
    shares = [sum(t <= bound for t in totals) / len(totals) for bound in plan.bounds_tok]
    assert shares == pytest.approx([0.40, 0.75, 1.0], abs=0.01)


def test_greedy_moves_for_five_steps_and_freezes(cluster: Cluster, model: Model, statistics, applied, step_end) -> None:
    planner = GreedyPlanner(cluster, model)
    plan = planner.plan(statistics(), None)
    assert plan.train.num_gpus == 24
    assert {i.tp for i in plan.instances} == {1}
    seen = []
    for step in range(8):
        # Rollout is slower at first, training after the second move.
        slower = 300.0 if plan.train.num_gpus > 8 else 20.0
        asked = statistics(steps=(step_end(step, slower, 60.0, plan.train),))
        plan = planner.plan(asked, applied(plan))
        seen.append(plan.train.num_gpus)
    assert seen == [16, 8, 16, 8, 16, 16, 16, 16]


def test_greedy_keeps_ids_of_instances_that_stay(cluster: Cluster, model: Model, statistics, applied, step_end) -> None:
    planner = GreedyPlanner(cluster, model)
    first = planner.plan(statistics(), None)
    then = planner.plan(statistics(steps=(step_end(0, 300.0, 60.0, first.train),)), applied(first))
    assert set(first.instances) < set(then.instances)


def test_static_optimal_is_the_joint_plan_once(cluster: Cluster, model: Model, statistics, applied) -> None:
    asked = statistics(512)
    plan = StaticOptimalPlanner(cluster, model).plan(asked, None)
    assert plan == JointPlanner(cluster, model).plan(asked, None)
    later = StaticOptimalPlanner(cluster, model).plan(statistics(512, mean_tok=30000.0), applied(plan))
    assert (later.train, later.instances) == (plan.train, plan.instances)


def test_best_homogeneous_is_no_worse_than_any_fixed_one(cluster: Cluster, model: Model, statistics) -> None:
    asked = statistics(64)
    best = BestHomogeneousPlanner(cluster, model).plan(asked, None)
    for tp in (1, 2, 4, 8):
        for num_train in (8, 16, 24, 32):
            fixed = FixedPlanner(cluster, model, tp, num_train).plan(asked, None)
            assert {i.tp for i in fixed.instances} == {tp}
            assert fixed.train.num_gpus == num_train
            assert best.expected.step_s <= fixed.expected.step_s * 1.01
