"""Step times of the three pipelines against their definitions, on real runs of a small workload."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest

from libra.backends.sim.engine import Simulator
from libra.backends.sim.options import SimOptions
from libra.clusters import load_cluster
from libra.core.commands import ApplyPlan, Command, Place
from libra.core.errors import ConfigError, PolicyError
from libra.core.events import (
    AllocationChanged,
    Event,
    PipelineKind,
    PipelineSpec,
    PlannerTick,
    RunStart,
    StepEnd,
    ToolReturned,
    TrajectoryStart,
)
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.core.registry import Registry, parse_options
from libra.models import load_model
from libra.results.schemas import StepRow, TrajectoryRow
from libra.runtime.controller import Controller

CLUSTER, MODEL = load_cluster("a800x48"), load_model("qwen3-14b")
SPLIT = Plan(TrainLayout(4, 2), tuple(InstanceSpec(i, 1) for i in range(8)), (40960,))
SHARED = Plan(TrainLayout(4, 12), tuple(InstanceSpec(i, 1) for i in range(48)), (40960,), colocated=True)


class RoundRobin:
    """Places by trajectory number, always on the same engine."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def decide(self, event: Event) -> Sequence[Command]:
        if isinstance(event, RunStart):
            return (ApplyPlan(self.plan),)
        if isinstance(event, TrajectoryStart | ToolReturned):
            return (Place(event.trajectory, event.trajectory % len(self.plan.instances)),)
        return ()


class Silent(RoundRobin):
    """Makes a plan and places nothing."""

    def decide(self, event: Event) -> Sequence[Command]:
        return (ApplyPlan(self.plan),) if isinstance(event, RunStart) else ()


class Astray(RoundRobin):
    """Places on an engine that is not there."""

    def decide(self, event: Event) -> Sequence[Command]:
        return (Place(event.trajectory, 99),) if isinstance(event, TrajectoryStart) else super().decide(event)


class Rows:
    def __init__(self) -> None:
        self.steps: list[StepRow] = []
        self.trajectories: list[TrajectoryRow] = []

    def decision(self, event: Event, commands: Sequence[Command], decide_s: float) -> None: ...

    def trajectory(self, row: TrajectoryRow) -> None:
        self.trajectories.append(row)

    def step(self, row: StepRow) -> None:
        self.steps.append(row)


def run(pipeline: PipelineSpec, policy: RoundRobin, num_steps: int = 5, workload: str = "r2e-gym") -> Rows:
    spec = Registry().get("workload", workload)
    built = spec.build(parse_options(spec.options, {"num_steps": num_steps}, workload), 0, MODEL.max_context_tok)
    rows = Rows()
    simulator = Simulator(CLUSTER, MODEL, built, pipeline, options=SimOptions(check=True, profile_groups=1))
    simulator.run(Controller(policy, rows, time.perf_counter))
    return rows


def test_barrier_step_is_the_slower_of_training_and_the_next_rollout_plus_sync() -> None:
    steps = run(PipelineSpec("barrier"), RoundRobin(SPLIT)).steps
    for row, following in itertools.pairwise(steps[1:]):
        assert row.end_s - row.start_s == pytest.approx(max(row.train_s, following.rollout_s) + row.sync_s, rel=1e-9)
    assert steps[-1].end_s - steps[-1].start_s == pytest.approx(steps[-1].train_s + steps[-1].sync_s)
    assert [row.max_staleness for row in steps] == [0, 1, 1, 1, 1]


def test_colocated_step_is_rollout_plus_training_plus_two_switches_and_on_policy() -> None:
    steps = run(PipelineSpec("colocated"), RoundRobin(SHARED)).steps
    for row in steps:
        assert row.end_s - row.start_s == pytest.approx(row.rollout_s + row.train_s + row.sync_s, rel=1e-9)
        assert row.max_staleness == 0


def test_asynchronous_rollout_does_not_wait_and_staleness_is_bounded() -> None:
    barrier = run(PipelineSpec("barrier"), RoundRobin(SPLIT), 8).steps
    for staleness in (1, 2, 4):
        steps = run(PipelineSpec("async", staleness), RoundRobin(SPLIT), 8).steps
        assert steps[-1].end_s < barrier[-1].end_s
        assert max(row.max_staleness for row in steps) <= staleness


def test_in_flight_cap_bounds_live_trajectories() -> None:
    rows = run(PipelineSpec("async", 4, 5), RoundRobin(SPLIT), 3).trajectories
    edges = sorted([(row.start_s, 1) for row in rows] + [(row.end_s, -1) for row in rows])
    live = most = 0
    for _, change in edges:
        live += change
        most = max(most, live)
    assert most == 5


@pytest.mark.parametrize(
    ("policy", "message"),
    [(Silent(SPLIT), "32 trajectories wait for a placement"), (Astray(SPLIT), "placed trajectory 0 on instance 99")],
)
def test_a_policy_that_breaks_the_protocol_is_told_so(policy: RoundRobin, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        run(PipelineSpec("barrier"), policy, 1)


def test_plan_and_pipeline_must_agree_about_colocation() -> None:
    with pytest.raises(ConfigError, match="disagree about colocation"):
        run(PipelineSpec("barrier"), RoundRobin(SHARED), 1)


class Listening(RoundRobin):
    """Notes the rollout time that each step reports."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.heard: list[float] = []

    def decide(self, event: Event) -> Sequence[Command]:
        if isinstance(event, StepEnd):
            self.heard.append(event.rollout_s)
        return super().decide(event)


@pytest.mark.parametrize(("kind", "field"), [("barrier", "rollout_s"), ("async", "wait_rollout_s")])
def test_a_step_reports_its_makespan_or_when_asynchronous_the_wait_for_it(kind: PipelineKind, field: str) -> None:
    policy = Listening(SPLIT)
    rows = run(PipelineSpec(kind), policy)
    assert policy.heard == [getattr(row, field) for row in rows.steps]


class Mover(RoundRobin):
    """Replaces every engine after the second step, and places on what is up."""

    def __init__(self, plan: Plan, other: Plan) -> None:
        super().__init__(plan)
        self.other = other
        self.up: tuple[int, ...] = ()

    def decide(self, event: Event) -> Sequence[Command]:
        if isinstance(event, AllocationChanged):
            self.up = tuple(status.id for status in event.allocation.up())
        if isinstance(event, PlannerTick) and event.step == 1:
            return (ApplyPlan(self.other),)
        if isinstance(event, TrajectoryStart | ToolReturned):
            return (Place(event.trajectory, self.up[event.trajectory % len(self.up)]),)
        return super().decide(event)


@pytest.mark.parametrize("pipeline", [PipelineSpec("barrier"), PipelineSpec("async", 3)], ids=lambda spec: spec.kind)
def test_trajectories_wait_while_every_engine_is_replaced(pipeline: PipelineSpec) -> None:
    other = Plan(TrainLayout(4, 4), tuple(InstanceSpec(100 + i, 4) for i in range(4)), (40960,))
    rows = run(pipeline, Mover(SPLIT, other), 6)
    stays = run(pipeline, RoundRobin(SPLIT), 6)
    assert len(rows.trajectories) == len(stays.trajectories) == 6 * 32
    assert max(row.max_staleness for row in rows.steps) <= max(1, pipeline.staleness)
    assert {row.last_instance for row in rows.trajectories if row.trained_step == 5} <= {100, 101, 102, 103}
    assert sum(row.moving_gpu_s for row in rows.steps) > 16 * 60
