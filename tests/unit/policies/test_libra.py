from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from libra.core.commands import Switch
from libra.core.errors import ConfigError
from libra.core.events import AllocationChanged, PlannerTick, RunStart
from libra.core.plan import Allocation, Move, Plan
from libra.core.policy import ComposedPolicy, NeverReplan, NoElastic, Statistics
from libra.core.registry import parse_options
from libra.elastic.moves import HybridPool
from libra.planning.gate import AcceptChange, HorizonGate
from libra.planning.search import JointPlanner
from libra.policies.libra import LibraOptions
from libra.routing.cmlfq import CMlfq
from libra.routing.least_loaded import LeastLoaded

Build = Callable[..., ComposedPolicy]
FirstPlan = Callable[[ComposedPolicy], Plan]
Applied = Callable[[Plan], Allocation]


@dataclass
class InTurn:
    """Proposes given plans one after the other."""

    plans: list[Plan] = field(default_factory=list)

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        return self.plans.pop(0)


def test_libra_is_the_sum_of_its_parts(build: Build) -> None:
    libra = build("libra")
    parts = (libra.planner, libra.router, libra.gate, libra.elastic)
    assert tuple(type(part) for part in parts) == (JointPlanner, CMlfq, HorizonGate, HybridPool)
    assert libra.replan_every == 5


def test_its_plan_marks_hybrid_replicas_as_complete_training_replicas(build: Build, first_plan: FirstPlan) -> None:
    plan = first_plan(build("libra"))
    owned = {h: sum(i.tp for i in plan.instances if i.hybrid == h) for h in plan.hybrid_replicas}
    assert owned == {0: plan.train.replica_gpus, 1: plan.train.replica_gpus}
    assert first_plan(build("libra", hybrid_replicas=0)).hybrid_replicas == ()


def test_without_heterogeneity_all_instances_are_equal(build: Build, first_plan: FirstPlan) -> None:
    plan = first_plan(build("libra", heterogeneous=False))
    assert len({i.tp for i in plan.instances}) == 1


def test_a_change_of_sides_is_a_switch_and_a_reached_plan_nothing(
    build: Build, first_plan: FirstPlan, applied: Applied, run_start: RunStart
) -> None:
    base = msgspec.structs.replace(first_plan(build("libra")), hybrid_training=())
    wanted = msgspec.structs.replace(base, hybrid_training=(0,))
    policy = build("libra").with_(planner=InTurn([base, wanted, wanted]), gate=AcceptChange(), replan_every=1)
    policy.decide(run_start)
    policy.decide(AllocationChanged(0.0, applied(base), "plan"))
    assert policy.decide(PlannerTick(1.0, 0, applied(base))) == (Switch((Move(0, "train"),)),)
    assert policy.decide(PlannerTick(2.0, 1, applied(wanted))) == ()


@pytest.mark.parametrize(
    ("name", "router", "heterogeneous"),
    [("libra-homogeneous", LeastLoaded, False), ("libra-hetero", LeastLoaded, True), ("libra-cmlfq", CMlfq, True)],
)
def test_each_ablation_is_libra_less_something(build: Build, name: str, router: type, heterogeneous: bool) -> None:
    policy = build(name)
    assert policy.name == name
    assert isinstance(policy.planner, JointPlanner) and policy.planner.heterogeneous is heterogeneous
    assert policy.planner.hybrid_replicas == 0 and policy.replan_every == 0
    assert isinstance(policy.router, router)
    assert isinstance(policy.gate, NeverReplan) and isinstance(policy.elastic, NoElastic)


def test_an_unknown_or_impossible_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'hybrid_replicas'"):
        parse_options(LibraOptions, {"hybrid_replica": 1}, "libra")
    with pytest.raises(ConfigError, match="replan_every"):
        parse_options(LibraOptions, {"replan_every": -1}, "libra")
