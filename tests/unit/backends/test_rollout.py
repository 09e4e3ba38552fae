"""Contexts that move between engines: a transfer saves the prefill, unless the weights change while it is under way."""

from __future__ import annotations

import msgspec
import pytest

from libra.backends.sim.clock import Clock
from libra.backends.sim.fleet import Fleet
from libra.backends.sim.options import SimOptions
from libra.backends.sim.rollout import Live, Rollout
from libra.backends.sim.truth import Truth
from libra.clusters import load_cluster
from libra.core.commands import Place
from libra.core.events import Event, Placed, ToolReturned, TrajectoryStart
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.models import load_model

CLUSTER, MODEL = load_cluster("a800x48"), load_model("qwen3-14b")
PLAN = Plan(TrainLayout(4, 6), (InstanceSpec(0, 8), InstanceSpec(1, 8)), (40960,))
RECORD = Trajectory("p", 0, 0, 1000, (Turn(500, ToolReturn("bash", 100, "ok", 1.0)), Turn(50, None)), None, "completed")


def moved(*, sync_during_transfer: bool) -> tuple[Live, list[Event]]:
    """The trajectory's books after its second turn ran on another engine than its first."""
    clock, truth = Clock(), Truth(CLUSTER, MODEL)
    events: list[Event] = []
    ended: list[Live] = []

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, TrajectoryStart):
            rollout.place(Place(event.trajectory, 0))
        elif isinstance(event, ToolReturned):
            rollout.place(Place(event.trajectory, 1, kv="transfer"))
            if sync_during_transfer:
                fleet.instances[1].update_weights(clock.now_s, recompute=False)

    fleet = Fleet(
        CLUSTER, truth, SimOptions(check=True), clock, lambda e, r: rollout.turn_done(e, r), lambda _: None, 40960
    )
    fleet.install(PLAN)
    rollout = Rollout(clock, fleet, truth, emit, ended.append, in_flight_cap=0, kv_transfer=True, uses_oracle=False)
    rollout.launch([RECORD], meant_step=0)
    clock.run(lambda: bool(ended))
    return ended[0], events


@pytest.mark.parametrize(("sync", "cached_tok"), [(False, 1488), (True, 0)])
def test_a_context_in_transfer_is_useless_once_the_weights_have_changed(sync: bool, cached_tok: int) -> None:
    live, events = moved(sync_during_transfer=sync)
    assert [event.how for event in events if isinstance(event, Placed)] == ["start", "transfer"]
    assert live.cached_tok == cached_tok, "1500 tokens in blocks of 16, or none"
    assert live.prefilled_tok == 1000 + 1600 - cached_tok


def test_transfers_that_share_a_link_follow_one_another() -> None:
    clock, truth = Clock(), Truth(CLUSTER, MODEL)
    arrivals: list[tuple[float, int]] = []
    ended: list[Live] = []

    def emit(event: Event) -> None:
        if isinstance(event, TrajectoryStart):
            rollout.place(Place(event.trajectory, 0))
        elif isinstance(event, ToolReturned):
            rollout.place(Place(event.trajectory, 1, kv="transfer"))
            arrivals.append((event.t_s, fleet.instances[1].num_arriving))

    options = SimOptions(check=True)
    fleet = Fleet(CLUSTER, truth, options, clock, lambda e, r: rollout.turn_done(e, r), lambda _: None, 40960)
    fleet.install(PLAN)
    rollout = Rollout(clock, fleet, truth, emit, ended.append, in_flight_cap=0, kv_transfer=True, uses_oracle=False)
    rollout.launch([RECORD, msgspec.structs.replace(RECORD, sample=1)], meant_step=0)
    clock.run(lambda: len(arrivals) == 2)
    assert [number for _, number in arrivals] == [1, 2]
    assert arrivals[0][0] == arrivals[1][0], "both tools return at once"
    one_s = truth.kv_transfer_s(1500, same_node=False)
    clock.run(lambda: fleet.instances[1].num_arriving == 1)
    assert clock.now_s - arrivals[0][0] == pytest.approx(one_s)
    clock.run(lambda: fleet.instances[1].num_arriving == 0)
    assert clock.now_s - arrivals[0][0] == pytest.approx(2 * one_s)
