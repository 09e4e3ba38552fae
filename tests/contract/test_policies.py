"""What every policy owes the controller, whoever wrote it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType

import msgspec
import pytest

from libra.core.commands import ApplyPlan, Command, Place, Switch
from libra.core.events import Event, PipelineSpec, PlannerTick, RunStart, ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.core.hardware import Cluster, Model
from libra.core.plan import Plan, problem_in
from libra.core.policy import Policy
from libra.core.registry import PolicyContext, PolicySpec
from libra.cost.memory import engine_fits, train_fits
from tests.contract.feeder import MAX_CONTEXT_TOK, Exchange, Feeder, Oracle, Script

PIPELINES = (PipelineSpec("barrier"), PipelineSpec("async", staleness=4, in_flight_cap=16))

Play = Callable[..., list[Exchange]]


@pytest.fixture
def build(cluster: Cluster, model: Model) -> Callable[[PolicySpec], Policy]:
    return lambda spec: spec.build(PolicyContext(cluster, model, spec.options()))


@pytest.fixture
def play(cluster: Cluster, model: Model, build: Callable[[PolicySpec], Policy]) -> Play:
    def run(spec: PolicySpec, pipeline: PipelineSpec = PIPELINES[0], oracle: Oracle | None = None) -> list[Exchange]:
        kind = PipelineSpec(spec.pipeline) if spec.pipeline else pipeline
        known: Oracle = oracle or ("true" if spec.uses_oracle else "hidden")
        return Feeder(build(spec), cluster, model, Script(kind), known).run()

    return run


def check_plan(plan: Plan, cluster: Cluster, model: Model) -> None:
    """A plan that can be built: groups within nodes, all within the cluster, everything within memory."""
    assert plan.num_gpus <= cluster.num_gpus
    assert problem_in(plan, MAX_CONTEXT_TOK) is None
    for tp in {plan.train.tp, *(i.tp for i in plan.instances)}:
        assert cluster.gpus_per_node % tp == 0, "a tensor-parallel group stays in one node"
    assert train_fits(cluster.gpu, model, plan.train)
    assert all(engine_fits(cluster.gpu, model, tp, MAX_CONTEXT_TOK) for tp in {i.tp for i in plan.instances})


def places(commands: tuple[Command, ...]) -> list[Place]:
    return [command for command in commands if isinstance(command, Place)]


def test_the_spec_introduces_itself(spec: PolicySpec) -> None:
    assert spec.summary.strip() and "\n" not in spec.summary
    assert spec.name == spec.name.lower() and " " not in spec.name


def test_it_is_a_policy(spec: PolicySpec, build: Callable[[PolicySpec], Policy]) -> None:
    assert isinstance(build(spec), Policy)


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.kind)
def test_it_answers_every_event_as_it_must(
    spec: PolicySpec, pipeline: PipelineSpec, play: Play, cluster: Cluster, model: Model
) -> None:
    exchanges = play(spec, pipeline)
    for exchange in exchanges:
        event, commands = exchange.event, exchange.commands
        if isinstance(event, RunStart):
            assert len(commands) == 1 and isinstance(commands[0], ApplyPlan)
        elif isinstance(event, TrajectoryStart | ToolReturned):
            assert [type(command) for command in commands] == [Place]
            assert places(commands)[0].trajectory == event.trajectory
        elif isinstance(event, PlannerTick):
            assert len(commands) <= 1 and not places(commands)
        else:
            assert commands == ()
        assert all(place.instance in exchange.up for place in places(commands)), "placed on an engine that is not up"
        assert all(place.trajectory in exchange.live for place in places(commands))
        for command in commands:
            if isinstance(command, ApplyPlan):
                check_plan(command.plan, cluster, model)
            assert not isinstance(command, Switch) or command.moves
    kinds = Counter(type(exchange.event) for exchange in exchanges)
    script = Script()
    assert kinds[TrajectoryStart] == kinds[TrajectoryEnd] == script.batch * script.num_steps, "nobody is left behind"


def test_trajectories_that_it_never_met_do_no_harm(
    spec: PolicySpec, play: Play, build: Callable[[PolicySpec], Policy]
) -> None:
    policy = build(spec)
    before = next(i for i, e in enumerate(play(spec)) if isinstance(e.event, TrajectoryStart))
    for exchange in play(spec)[:before]:
        policy.decide(exchange.event)
    stray = policy.decide(ToolReturned(1.0, 10_000, 0, 1, "bash", 10, "ok", 1.0, 700))
    assert all(isinstance(command, Place) and command.trajectory == 10_000 for command in stray)
    assert not policy.decide(TrajectoryEnd(2.0, 10_000, 0, "completed", 200, 700, 1, 0.0))


def test_the_same_events_get_the_same_commands(
    spec: PolicySpec, play: Play, build: Callable[[PolicySpec], Policy]
) -> None:
    exchanges = play(spec)
    fresh = build(spec)
    assert [tuple(fresh.decide(exchange.event)) for exchange in exchanges] == [e.commands for e in exchanges]


def test_two_policies_of_one_spec_share_nothing(
    spec: PolicySpec, play: Play, build: Callable[[PolicySpec], Policy]
) -> None:
    exchanges = play(spec)
    one, other = build(spec), build(spec)
    for exchange in exchanges:
        one.decide(exchange.event)
    assert [tuple(other.decide(exchange.event)) for exchange in exchanges] == [e.commands for e in exchanges]


def test_events_are_left_as_they_are(spec: PolicySpec, play: Play, build: Callable[[PolicySpec], Policy]) -> None:
    events: list[Event] = [exchange.event for exchange in play(spec)]
    before = [msgspec.json.encode(event) for event in events]
    policy = build(spec)
    for event in events:
        policy.decide(event)
    assert [msgspec.json.encode(event) for event in events] == before


def test_commands_survive_the_event_log(spec: PolicySpec, play: Play) -> None:
    for exchange in play(spec):
        for command in exchange.commands:
            assert msgspec.json.decode(msgspec.json.encode(command), type=Command) == command


def test_nothing_is_kept_by_trajectory_once_all_have_ended(
    spec: PolicySpec, cluster: Cluster, model: Model, build: Callable[[PolicySpec], Policy]
) -> None:
    policy, first_id = build(spec), 10**9
    kind = PipelineSpec(spec.pipeline) if spec.pipeline else PIPELINES[0]
    feeder = Feeder(policy, cluster, model, Script(kind), "true" if spec.uses_oracle else "hidden", first_id=first_id)
    num = sum(isinstance(exchange.event, TrajectoryStart) for exchange in feeder.run())
    ids = range(first_id, first_id + num)
    kept = [key for keys in keyed_by(policy) for key in keys if isinstance(key, int) and key in ids]
    assert num and not kept, "a run's memory would grow with its length"


def keyed_by(root: object) -> Iterator[list[object]]:
    """The keys of every dictionary and the members of every set that an object holds, however deep."""
    seen, waiting = {id(root)}, [root]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict | set | frozenset):
            yield list(found)
        for part in gc.get_referents(found):
            if id(part) not in seen and not isinstance(part, type | ModuleType | FunctionType):
                seen.add(id(part))
                waiting.append(part)


def test_only_an_oracle_looks_at_true_lengths(spec: PolicySpec, play: Play) -> None:
    if spec.uses_oracle:
        assert [e.commands for e in play(spec, oracle="wrong")] != [e.commands for e in play(spec)]
    else:
        assert [e.commands for e in play(spec, oracle="wrong")] == [e.commands for e in play(spec)]
