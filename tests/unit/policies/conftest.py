"""The paper's cluster and model, and a short profile of lognormal lengths."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from libra.clusters import load_cluster
from libra.core.commands import ApplyPlan
from libra.core.events import PipelineSpec, RunStart
from libra.core.plan import Allocation, InstanceStatus, Plan
from libra.core.policy import ComposedPolicy
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.core.registry import PolicyContext, Registry
from libra.core.rng import stream
from libra.models import load_model


@pytest.fixture
def build() -> Callable[..., ComposedPolicy]:
    """A registered policy by name, with options."""

    def build_policy(name: str, **options: object) -> ComposedPolicy:
        spec = Registry().get("policy", name)
        return spec.build(PolicyContext(load_cluster("a800x48"), load_model("qwen3-14b"), spec.options(**options)))

    return build_policy


@pytest.fixture
def run_start() -> RunStart:
    rng = stream("profile of the policy tests")
    totals = [int(min(40000, max(1000, tok))) for tok in 9000 * rng.lognormal(-0.7, 1.2, 64)]
    profile = tuple(
        Trajectory(f"p{n // 16}", n // 16, n % 16, 500, (Turn(tok // 2, ToolReturn("bash", 200)), Turn(tok - tok // 2)))
        for n, tok in enumerate(totals)
    )
    return RunStart(0.0, "a800x48", "qwen3-14b", PipelineSpec("barrier"), 32, 16, 100, 40960, profile)


@pytest.fixture
def first_plan(run_start: RunStart) -> Callable[[ComposedPolicy], Plan]:
    def plan(policy: ComposedPolicy) -> Plan:
        (command,) = policy.decide(run_start)
        assert isinstance(command, ApplyPlan)
        return command.plan

    return plan


@pytest.fixture
def applied() -> Callable[[Plan], Allocation]:
    """What is there once a plan is carried out."""

    def allocation(plan: Plan) -> Allocation:
        lent = set(plan.hybrid_training)
        statuses = tuple(
            InstanceStatus(i.id, i.tp, i.bucket, "training" if i.hybrid in lent else "up", i.hybrid)
            for i in plan.instances
        )
        return Allocation(
            plan.train, plan.train.dp + len(lent), statuses, plan.bounds_tok, plan.hybrid_training, plan.colocated
        )

    return allocation
