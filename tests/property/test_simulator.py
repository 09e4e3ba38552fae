"""Laws that hold for every policy on every workload: each trajectory ends once, tokens add up, staleness is bounded."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libra.backends.sim.constants import Constants, load_constants, provenance
from libra.backends.sim.engine import Simulator
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import Truth
from libra.clusters import load_cluster
from libra.core.commands import Command, Place
from libra.core.errors import ConfigError
from libra.core.events import Event, PipelineSpec, TrajectoryEnd, TrajectoryStart
from libra.core.hardware import Cluster
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.core.registry import PolicyContext, PolicySpec, Registry
from libra.models import load_model
from libra.results.schemas import StepRow, TrajectoryRow
from libra.runtime.controller import Controller

CLUSTER, MODEL = load_cluster("a800x48"), load_model("qwen3-14b")
POLICIES: dict[str, PolicySpec] = Registry().all("policy")
GROUP_SIZE = 4
LITTLE_KV = "memory_use_share=0.44"
"""Leaves a TP-1 engine of the 14B model about 32,000 KV tokens: a few contexts, so that turns are preempted."""


class Drawn:
    """A workload of drawn groups, repeated in order."""

    name = "drawn"
    group_size = GROUP_SIZE
    max_context_tok = 40960
    warnings = ()

    def __init__(self, groups: Sequence[Sequence[Trajectory]], groups_per_step: int, num_steps: int) -> None:
        self._groups, self.batch, self.num_steps = groups, groups_per_step * GROUP_SIZE, num_steps

    def group(self, index: int) -> Sequence[Trajectory]:
        drawn = self._groups[index % len(self._groups)]
        return [
            Trajectory(f"p{index}", index, sample, t.prompt_tok, t.turns, t.reward, t.status)
            for sample, t in enumerate(drawn)
        ]

    def profile(self, num_groups: int) -> Sequence[Trajectory]:
        return [t for index in range(num_groups) for t in self.group(index)]

    def parameters(self) -> Sequence[object]:
        return ()


class Log:
    """Keeps everything in memory."""

    def __init__(self) -> None:
        self.decisions: list[tuple[Event, tuple[Command, ...]]] = []
        self.trajectories: list[TrajectoryRow] = []
        self.steps: list[StepRow] = []

    def decision(self, event: Event, commands: Sequence[Command], decide_s: float) -> None:
        self.decisions.append((event, tuple(commands)))

    def trajectory(self, row: TrajectoryRow) -> None:
        self.trajectories.append(row)

    def step(self, row: StepRow) -> None:
        self.steps.append(row)


def simulate(policy: str, workload: Drawn, pipeline: PipelineSpec, **options: Any) -> Log:
    spec = POLICIES[policy]
    built = spec.build(PolicyContext(CLUSTER, MODEL, spec.options()))
    if spec.pipeline:
        pipeline = PipelineSpec(spec.pipeline, 0)
    log = Log()
    simulator = Simulator(
        CLUSTER,
        MODEL,
        workload,
        pipeline,
        uses_oracle=spec.uses_oracle,
        options=SimOptions(**{"check": True, "profile_groups": 2, **options}),
    )
    simulator.run(Controller(built, log, time.perf_counter))
    return log


tool = st.builds(
    ToolReturn,
    st.sampled_from(["bash", "search"]),
    st.integers(0, 3000),
    st.sampled_from(["ok", "error", "timeout", "unknown"]),
    st.floats(0.0, 20.0, width=32),
)
turns = st.lists(st.tuples(st.integers(0, 1500), tool), max_size=5).flatmap(
    lambda middle: st.tuples(
        st.just([Turn(generated, returned) for generated, returned in middle]),
        st.integers(1, 4000),
    ).map(lambda parts: (*parts[0], Turn(parts[1])))
)
trajectory = st.builds(
    Trajectory,
    st.just("p"),
    st.just(0),
    st.just(0),
    st.integers(1, 1500),
    turns,
    st.one_of(st.none(), st.floats(0, 1)),
    st.sampled_from(["completed", "truncated", "aborted"]),
)
groups = st.lists(st.lists(trajectory, min_size=GROUP_SIZE, max_size=GROUP_SIZE), min_size=1, max_size=4)
pipelines = st.sampled_from(
    [
        PipelineSpec("barrier"),
        PipelineSpec("barrier", in_flight_cap=3),
        PipelineSpec("async", 0),
        PipelineSpec("async", 1),
        PipelineSpec("async", 3, 5),
    ]
)
many = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("policy", POLICIES)
@many
@given(groups, st.integers(1, 3), st.integers(1, 7), pipelines)
def test_laws(
    policy: str, drawn: list[list[Trajectory]], per_step: int, num_steps: int, pipeline: PipelineSpec
) -> None:
    workload = Drawn(drawn, per_step, num_steps)
    log = simulate(policy, workload, pipeline)
    check_conservation(workload, log)
    check_time(log)
    if POLICIES[policy].pipeline is None:
        bound = 1 if pipeline.kind == "barrier" else pipeline.staleness
        assert max(row.max_staleness for row in log.steps) <= bound


def check_conservation(workload: Drawn, log: Log) -> None:
    """Every trajectory starts, ends and is trained exactly once, with exactly the tokens that it was drawn with."""
    num = workload.num_steps * workload.batch
    starts = Counter(e.trajectory for e, _ in log.decisions if isinstance(e, TrajectoryStart))
    ends = {e.trajectory: e for e, _ in log.decisions if isinstance(e, TrajectoryEnd)}
    assert len(starts) == num and set(starts.values()) == {1}
    assert len(ends) == sum(isinstance(e, TrajectoryEnd) for e, _ in log.decisions) == num
    assert Counter((row.group, row.sample) for row in log.trajectories) == Counter(
        (group, sample) for group in range(num // GROUP_SIZE) for sample in range(GROUP_SIZE)
    )
    for row in log.trajectories:
        record = workload.group(row.group)[row.sample]
        assert (row.prompt_tok, row.generated_tok, row.observed_tok) == (
            record.prompt_tok,
            record.generated_tok,
            record.observed_tok,
        )
        assert ends[row.trajectory].total_tok == record.total_tok
        assert row.num_turns == len(record.turns)
        assert row.prefilled_tok + row.cached_tok >= record.prompt_tok * any(t.generated_tok for t in record.turns)
    assert sum(row.generated_tok for row in log.steps) == sum(row.generated_tok for row in log.trajectories)
    placed = Counter(c.trajectory for _, commands in log.decisions for c in commands if isinstance(c, Place))
    assert set(placed) == set(starts)


def check_time(log: Log) -> None:
    """Time never runs backwards, steps are contiguous, and no pool is busy for longer than it exists."""
    times = [event.t_s for event, _ in log.decisions]
    assert times == sorted(times)
    for before, after in itertools.pairwise(log.steps):
        assert before.end_s == after.start_s
    for row in log.steps:
        assert 0 <= row.rollout_90_s <= row.rollout_s
        assert row.train_s + row.sync_s + row.wait_rollout_s == pytest.approx(row.end_s - row.start_s)
    for pool in ("rollout", "train"):
        busy_gpu_s = sum(getattr(row, f"{pool}_busy_gpu_s") for row in log.steps)
        assert busy_gpu_s <= sum(getattr(row, f"{pool}_pool_gpu_s") for row in log.steps) * (1 + 1e-9)


@pytest.mark.parametrize("policy", ["libra", "pattern-cmlfq", "verl-greedy-heuristic"])
@settings(max_examples=5, deadline=None)
@given(groups, st.integers(1, 2), st.integers(1, 6), pipelines)
def test_same_run_twice_and_replay_of_its_events(
    policy: str, drawn: list[list[Trajectory]], per_step: int, num_steps: int, pipeline: PipelineSpec
) -> None:
    workload = Drawn(drawn, per_step, num_steps)
    first, second = (simulate(policy, workload, pipeline) for _ in range(2))
    assert first.decisions == second.decisions
    assert first.trajectories == second.trajectories
    spec = POLICIES[policy]
    fresh = spec.build(PolicyContext(CLUSTER, MODEL, spec.options()))
    assert [tuple(fresh.decide(event)) for event, _ in first.decisions] == [answer for _, answer in first.decisions]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_tok": -1}, "prompt_tok is -1"),
        ({"turns": ()}, "no turn"),
        ({"sample": 0}, r"holds \(group, sample\)"),
        ({"group": 5}, r"holds \(group, sample\)"),
    ],
)
def test_a_wrong_group_of_a_workload_is_named(change: dict[str, object], message: str) -> None:
    sound = Trajectory("p", 0, 0, 10, (Turn(20, None),), None, "completed")
    workload = Drawn([[sound] * GROUP_SIZE], 1, 1)
    rows = list(workload.group(0))
    rows[1] = msgspec.structs.replace(rows[1], **change)
    workload.group = lambda index: rows  # type: ignore[method-assign]
    workload.profile = lambda num_groups: [sound]  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=f"workload drawn: group 0 is wrong: .*{message}"):
        simulate("verl-static-uniform", workload, PipelineSpec("barrier"))


@pytest.mark.parametrize("policy", ["libra", "pattern-cmlfq", "verl-colocated", "verl-greedy-heuristic"])
@settings(max_examples=6, deadline=None)
@given(
    groups,
    st.integers(1, 3),
    st.integers(1, 4),
    pipelines,
    st.sampled_from([64, 8192]),
    st.sampled_from(["", LITTLE_KV]),
    st.sampled_from(["recompute", "keep"]),
)
def test_the_fast_engine_agrees_with_the_stepwise_one(
    policy: str,
    drawn: list[list[Trajectory]],
    per_step: int,
    num_steps: int,
    pipeline: PipelineSpec,
    budget: int,
    replace: str,
    after_sync: str,
) -> None:
    workload = Drawn(drawn, per_step, num_steps)
    fast, slow = (
        simulate(
            policy, workload, pipeline, engine=engine, max_batched_tok=budget, replace=replace, after_sync=after_sync
        )
        for engine in ("fast", "stepwise")
    )
    assert [row.end_s for row in fast.steps] == pytest.approx([row.end_s for row in slow.steps], rel=5e-3)
    for name in ("prefilled_tok", "cached_tok", "num_preemptions", "num_moves", "moved_tok", "trained_step"):
        counts = [{(r.group, r.sample): getattr(r, name) for r in log.trajectories} for log in (fast, slow)]
        assert counts[0] == counts[1], name


FACTORS = ("custom_tp8_table_s",)
"""All-reduce over eight GPUs is a table on a reference link; the runs below have no engine of eight."""


def faster(cluster: Cluster, constants: Constants) -> tuple[Cluster, Constants]:
    """Everything twice as fast: the data sheet, the network and every constant that is a time."""
    gpu = msgspec.structs.replace(
        cluster.gpu,
        peak_tflops=2 * cluster.gpu.peak_tflops,
        memory_gb_s=2 * cluster.gpu.memory_gb_s,
        link_gb_s=2 * cluster.gpu.link_gb_s,
    )
    halved: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(constants).items():
        if provenance()[name].unit.split(" ")[0] == "s" and name not in FACTORS:
            halved[name] = tuple(each / 2 for each in value) if isinstance(value, tuple) else value / 2
    twice = msgspec.structs.replace(cluster, gpu=gpu, network_gb_s=2 * cluster.network_gb_s)
    return twice, msgspec.structs.replace(constants, **halved)


@pytest.mark.parametrize("policy", ["static-tp1", "static-tp4"])
@settings(max_examples=10, deadline=None)
@given(groups, st.integers(1, 3), st.integers(1, 4), pipelines)
def test_twice_the_speed_halves_the_time(
    policy: str, drawn: list[list[Trajectory]], per_step: int, num_steps: int, pipeline: PipelineSpec
) -> None:
    def ends_s(cluster: Cluster, constants: Constants, groups: Sequence[Sequence[Trajectory]]) -> list[float]:
        spec = POLICIES[policy]
        built = spec.build(PolicyContext(CLUSTER, MODEL, spec.options()))
        log, options = Log(), SimOptions(check=True, profile_groups=2)
        workload = Drawn(groups, per_step, num_steps)
        simulator = Simulator(cluster, MODEL, workload, pipeline, options=options)
        simulator.truth = simulator.fleet.truth = simulator.rollout.truth = Truth(cluster, MODEL, constants)
        simulator.run(Controller(built, log, time.perf_counter))
        return [row.end_s for row in log.steps]

    quick = [[msgspec.structs.replace(each, turns=tuple(map(halved_tool, each.turns))) for each in g] for g in drawn]
    slow_s = ends_s(CLUSTER, load_constants(), drawn)
    fast_s = ends_s(*faster(CLUSTER, load_constants()), quick)
    assert fast_s == pytest.approx([t_s / 2 for t_s in slow_s], rel=1e-9)


def halved_tool(turn: Turn) -> Turn:
    if turn.tool is None:
        return turn
    return Turn(turn.generated_tok, msgspec.structs.replace(turn.tool, latency_s=(turn.tool.latency_s or 0.0) / 2))
