"""The compiled core gives the same bits as Python's: every event, command, row and the number of simulator events."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libra.backends.sim.engine import Simulator
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import kv_capacity_tok
from libra.core.commands import ApplyPlan, Command, Place, Switch
from libra.core.events import (
    AllocationChanged,
    Event,
    PipelineSpec,
    PlannerTick,
    RunStart,
    ToolReturned,
    TrajectoryStart,
)
from libra.core.plan import InstanceSpec, Move, Plan, TrainLayout
from libra.core.policy import Policy
from libra.core.records import Trajectory
from libra.core.registry import PolicyContext
from libra.runtime.controller import Controller
from tests.property.test_simulator import CLUSTER, MODEL, POLICIES, Drawn, Log, groups, pipelines

pytest.importorskip("numba", reason="the compiled core needs numba (extra `fast`)")

REPLICA = (InstanceSpec(2, 2, hybrid=0), InstanceSpec(4, 2, hybrid=0))
PLANS = [
    Plan(TrainLayout(tp=4, dp=6), (InstanceSpec(0, 1), InstanceSpec(1, 1), *REPLICA), (40960,)),
    Plan(TrainLayout(tp=4, dp=6), (InstanceSpec(0, 1), InstanceSpec(1, 2), *REPLICA, InstanceSpec(3, 1)), (40960,)),
]


class Restless:
    """Moves trajectories, lends the hybrid replica and changes plans all the time, by `seed`."""

    def __init__(self, seed: int) -> None:
        self.seed, self.up, self.num = seed, list[int](), 0

    def decide(self, event: Event) -> Sequence[Command]:
        self.num += 1
        if isinstance(event, RunStart):
            return (ApplyPlan(PLANS[0]),)
        if isinstance(event, AllocationChanged):
            self.up = [engine.id for engine in event.allocation.up()]
        elif isinstance(event, TrajectoryStart | ToolReturned):
            chance = hash((self.seed, self.num)) % 997
            kv = ("auto", "transfer", "recompute")[chance % 3]
            return (Place(event.trajectory, self.up[chance % len(self.up)], kv=kv),)  # type: ignore[arg-type]
        elif isinstance(event, PlannerTick):
            what = hash((self.seed, event.step)) % 4
            if what == 0:
                return (ApplyPlan(PLANS[event.step % 2]),)
            return () if what == 1 else (Switch((Move(0, "train" if what == 2 else "rollout"),)),)
        return ()


def run(policy: Policy, workload: Drawn, pipeline: PipelineSpec, uses_oracle: bool, **options: Any) -> tuple[Log, int]:
    log = Log()
    chosen = SimOptions(**{"check": True, "profile_groups": 2, **options})
    simulator = Simulator(CLUSTER, MODEL, workload, pipeline, uses_oracle=uses_oracle, options=chosen)
    simulator.run(Controller(policy, log, time.perf_counter))
    return log, simulator.clock.num_events


def check_same(logs: Sequence[tuple[Log, int]]) -> None:
    (fast, num_events), (compiled, num_compiled) = logs
    assert compiled.steps == fast.steps
    assert compiled.trajectories == fast.trajectories
    assert compiled.decisions == fast.decisions
    assert num_compiled == num_events


options = st.fixed_dictionaries(
    {
        "max_num_seqs": st.sampled_from([2, 5, 256]),
        "max_batched_tok": st.sampled_from([64, 700, 8192]),
        "block_tok": st.sampled_from([1, 16]),
        "async_lag_steps": st.integers(0, 1),
        "after_sync": st.sampled_from(["recompute", "keep"]),
        "keep_prefixes": st.booleans(),
    }
)
slowly = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("policy", ["libra", "pattern-cmlfq", "verl-colocated", "areal-static-optimal"])
@slowly
@given(groups, st.integers(1, 3), st.integers(1, 5), pipelines, options)
def test_policies(
    policy: str,
    drawn: list[list[Trajectory]],
    per_step: int,
    num_steps: int,
    pipeline: PipelineSpec,
    chosen: dict[str, Any],
) -> None:
    spec, workload = POLICIES[policy], Drawn(drawn, per_step, num_steps)
    if spec.pipeline:
        pipeline = PipelineSpec(spec.pipeline, 0)
    check_same(
        [
            run(
                spec.build(PolicyContext(CLUSTER, MODEL, spec.options())),
                workload,
                pipeline,
                spec.uses_oracle,
                engine=engine,
                **chosen,
            )
            for engine in ("fast", "compiled")
        ]
    )


def little_kv(drawn: list[list[Trajectory]], spare_tok: int) -> str:
    """Memory that leaves a TP-1 engine room for the longest context and little more, so that turns are preempted."""
    wanted_tok = max(each.total_tok for group in drawn for each in group) + 1 + spare_tok
    shares = [share / 1e4 for share in range(3700, 6000, 5)]
    return next(f"memory_use_share={share}" for share in shares if kv_tok(share) >= wanted_tok)


@functools.cache
def kv_tok(memory_use_share: float) -> int:
    constants = SimOptions(replace=f"memory_use_share={memory_use_share}").constants()
    return kv_capacity_tok(CLUSTER, MODEL, 1, constants)


@settings(slowly, max_examples=60)
@given(groups, st.integers(1, 4), st.integers(1, 6), pipelines, options, st.integers(0, 1000), st.integers(0, 5000))
def test_moves_plans_and_little_kv(
    drawn: list[list[Trajectory]],
    per_step: int,
    num_steps: int,
    pipeline: PipelineSpec,
    chosen: dict[str, Any],
    seed: int,
    spare_tok: int,
) -> None:
    replace = little_kv(drawn, spare_tok)
    workload = Drawn(drawn, per_step, num_steps)
    check_same(
        [
            run(Restless(seed), workload, pipeline, False, engine=engine, replace=replace, **chosen)
            for engine in ("fast", "compiled")
        ]
    )
