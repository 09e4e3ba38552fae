from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from libra.core.commands import ApplyPlan
from libra.core.events import AllocationChanged, PlannerTick, RunStart, StepEnd
from libra.core.plan import Allocation, Plan
from libra.core.policy import ComposedPolicy, NeverReplan
from libra.core.registry import Registry
from libra.routing.least_loaded import LeastLoaded

Build = Callable[..., ComposedPolicy]
FirstPlan = Callable[[ComposedPolicy], Plan]
Applied = Callable[[Plan], Allocation]

PAPERS_BASELINES = ("verl-colocated", "verl-static-uniform", "verl-greedy-heuristic", "areal-static-optimal")
PATTERN = ("blind", "mlfq", "cmlfq", "turn-index", "prompt-history", "prompt-history-promote", "oracle")


def sizes(plan: Plan) -> Counter[int]:
    return Counter(i.tp for i in plan.instances)


def test_only_the_oracle_is_marked_as_one() -> None:
    specs = Registry().all("policy")
    assert [name for name, spec in specs.items() if spec.uses_oracle] == ["pattern-oracle"]


def test_only_colocated_pins_its_pipeline() -> None:
    pinned = {name: spec.pipeline for name, spec in Registry().all("policy").items() if spec.pipeline}
    assert pinned == {"verl-colocated": "colocated"}


@pytest.mark.parametrize("name", [*PAPERS_BASELINES, "best-homogeneous"])
def test_baselines_route_length_blind(build: Build, name: str) -> None:
    assert isinstance(build(name).router, LeastLoaded)


def test_static_uniform_is_24_to_24(build: Build, first_plan: FirstPlan) -> None:
    plan = first_plan(build("verl-static-uniform"))
    assert (plan.train.num_gpus, plan.rollout_gpus, sizes(plan)) == (24, 24, {1: 24})
    assert sizes(first_plan(build("verl-static-uniform", tp=2))) == {2: 12}


def test_colocated_gives_both_stages_all_gpus(build: Build, first_plan: FirstPlan) -> None:
    plan = first_plan(build("verl-colocated"))
    assert (plan.colocated, plan.train.num_gpus, plan.rollout_gpus) == (True, 48, 48)


@pytest.mark.parametrize("name", ["areal-static-optimal", "best-homogeneous", "libra-homogeneous"])
def test_the_best_static_layout_is_homogeneous_and_at_least_as_good_as_uniform(
    build: Build, first_plan: FirstPlan, name: str
) -> None:
    plan, uniform = first_plan(build(name)), first_plan(build("verl-static-uniform"))
    assert len(sizes(plan)) == 1
    assert plan.expected.step_s <= uniform.expected.step_s


def test_static_optimal_never_looks_again(build: Build) -> None:
    policy = build("areal-static-optimal")
    assert policy.replan_every == 0 and isinstance(policy.gate, NeverReplan)


@pytest.mark.parametrize(("slower", "moved"), [("rollout", -8), ("training", 8)])
def test_greedy_moves_a_node_toward_the_slower_stage_five_times_at_most_and_then_freezes(
    build: Build, run_start: RunStart, applied: Applied, slower: str, moved: int
) -> None:
    policy = build("verl-greedy-heuristic")
    (command,) = policy.decide(run_start)
    num_train = []
    plan = command.plan  # type: ignore[union-attr]
    rollout_s, train_s = (300.0, 30.0) if slower == "rollout" else (30.0, 300.0)
    for step in range(8):
        num_train.append(plan.train.num_gpus)
        allocation = applied(plan)
        policy.decide(AllocationChanged(0.0, allocation, "plan"))
        policy.decide(StepEnd(0.0, step, rollout_s, train_s, 2.0, 302.0, 300_000, plan.train, plan.train.dp))
        commands = policy.decide(PlannerTick(0.0, step, allocation))
        if commands:
            assert isinstance(commands[0], ApplyPlan)
            plan = commands[0].plan
    changes = [after - before for before, after in pairwise(num_train)]
    assert set(changes[:2]) == {moved} and set(changes) <= {0, moved} and set(changes[5:]) == {0}


@pytest.mark.parametrize("router", PATTERN)
def test_the_pattern_policies_differ_in_the_router_alone(build: Build, first_plan: FirstPlan, router: str) -> None:
    policy, blind = build(f"pattern-{router}"), build("pattern-blind")
    assert policy.name == f"pattern-{router}"
    assert first_plan(policy) == first_plan(blind)
    assert sizes(first_plan(policy)) == {1: 8, 2: 4, 4: 4}
    assert first_plan(policy).train.num_gpus == 16


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_static_tp(build: Build, first_plan: FirstPlan, tp: int) -> None:
    plan = first_plan(build(f"static-tp{tp}"))
    assert (plan.train.num_gpus, sizes(plan)) == (16, {tp: 32 // tp})
    assert first_plan(build(f"static-tp{tp}", num_train_gpus=32)).rollout_gpus == 16
