"""Turns become events and placements; nothing is lost or counted twice, whatever happens to engines."""

from __future__ import annotations

import msgspec
import pytest

from libra.core.commands import ApplyPlan, Switch
from libra.core.errors import PolicyError
from libra.core.events import AllocationChanged, Placed, PlannerTick, StepEnd, ToolReturned, TrajectoryEnd
from libra.core.plan import InstanceSpec, Move, Plan, TrainLayout
from libra.core.records import ToolReturn, VersionSpan
from libra.integrations.turns import Ended, StepDone, TurnDone
from tests.unit.integrations.conftest import Scene

SEARCH = ToolReturn("search", 7, "ok", 0.5)


def test_a_trajectory_becomes_the_simulators_events(scene: Scene) -> None:
    first = scene.turn("a", 10)
    scene.now_s += 2.0
    scene.done("a", (3, 5))
    assert scene.turn("a", 22, SEARCH) == first  # 10 prompt, 5 generated, 7 observed
    scene.done("a", (3, 4), (4, 2))
    scene.session.ended(Ended("a", "completed", 0.5))
    kinds = [type(event).__name__ for event in scene.kept.events]
    assert kinds == [
        "RunStart", "AllocationChanged", "TrajectoryStart", "Placed", "ToolReturned", "Placed", "TrajectoryEnd",
    ]  # fmt: skip
    returned = next(event for event in scene.kept.events if isinstance(event, ToolReturned))
    assert (returned.payload_tok, returned.context_tok, returned.turn, returned.status) == (7, 22, 1, "ok")
    assert (returned.t_s, returned.latency_s) == (2.0, 0.5)
    end = next(event for event in scene.kept.events if isinstance(event, TrajectoryEnd))
    assert (end.generated_tok, end.total_tok, end.num_turns, end.reward) == (11, 28, 2, 0.5)


def test_the_wait_in_engines_queues_is_summed_and_unknown_if_one_turns_is(scene: Scene) -> None:
    for key, waits_s in (("a", (0.5, 0.25)), ("b", (0.5, None))):
        for number, queue_s in enumerate(waits_s):
            scene.turn(key, 10 + 5 * number)
            scene.session.turn_done(TurnDone(key, (VersionSpan(0, 5),), queue_s=queue_s))
        scene.session.ended(Ended(key, "completed"))
    assert [live.row(-1, -1).queue_s for live in scene.session.ended_keys.values()] == [0.75, None]


def test_a_step_counts_its_batch_once_and_its_age(scene: Scene) -> None:
    scene.whole("a", version=2)
    scene.whole("b", version=4)
    scene.now_s += 1.0
    row = scene.session.step_done(StepDone(4, ("a", "b"), 4, train_s=0.5, sync_s=0.25, wait_rollout_s=0.1))
    assert (row.num_trajectories, row.prompt_tok, row.generated_tok, row.max_staleness) == (2, 20, 10, 2)
    assert (row.start_s, row.end_s, row.mean_staleness) == (0.0, 3.0, 1.0)
    assert row.rollout_s == 2.0  # from the first start to the last end
    assert sorted(each.trajectory for each in scene.kept.trajectories) == [0, 1]
    assert {each.version_trained for each in scene.kept.trajectories} == {4}
    assert [type(event) for event in scene.kept.events[-2:]] == [StepEnd, PlannerTick]
    with pytest.raises(KeyError):
        scene.session.step_done(StepDone(5, ("a",), 5, 0.0, 0.0, 0.0))


def test_busy_time_is_the_union_of_turns_times_the_engines_size(scene: Scene) -> None:
    scene.session.set_state(0, "down")
    scene.turn("a", 10)
    scene.now_s += 1.0
    scene.turn("b", 10)  # both on instance 1, of two devices
    scene.now_s += 1.0
    scene.done("a", (0, 1))
    scene.now_s += 1.0
    scene.done("b", (0, 1))
    scene.session.ended(Ended("a", "completed"))
    scene.session.ended(Ended("b", "completed"))
    scene.now_s += 4.0
    row = scene.session.step_done(StepDone(0, ("a", "b"), 0, 1.0, 0.5, 0.0))
    assert row.rollout_busy_gpu_s == pytest.approx(3.0 * 2)
    assert row.wait_train_s == pytest.approx(4.0 - 0.5)  # nothing live for four seconds, half of one syncing
    assert row.rollout_pool_gpu_s == pytest.approx(7.0 * 3)


def test_a_turn_that_is_resumed_asks_no_policy_and_stays(scene: Scene) -> None:
    first = scene.turn("a", 10)
    decisions = len(scene.kept.commands)
    scene.session.turn_lost("a")
    assert scene.turn("a", 14, resumed=True) == first
    assert len(scene.kept.commands) == decisions


def test_a_turn_whose_engine_died_goes_to_a_living_one(scene: Scene) -> None:
    first = scene.turn("a", 10)
    assert first is not None
    scene.session.set_state(first, "down", "killed")
    other = scene.turn("a", 10, resumed=True)
    assert other == 1 - first
    placed = [event for event in scene.kept.events if isinstance(event, Placed)]
    assert [(each.instance, each.how, each.moved_tok) for each in placed] == [
        (first, "start", 0),
        (other, "recompute", 10),
    ]
    scene.done("a", (0, 3))
    scene.session.ended(Ended("a", "completed"))
    row = scene.session.ended_keys["a"].row(0, 0)
    assert (row.num_moves, row.moved_tok, row.generated_tok) == (1, 10, 3)


def test_nobody_is_placed_while_no_engine_is_up(scene: Scene) -> None:
    scene.session.set_state(0, "down")
    scene.session.set_state(1, "down")
    assert scene.turn("a", 10) is None
    scene.session.set_state(1, "up")
    assert scene.turn("a", 10) == 1


def test_what_live_engines_cannot_do_is_rejected_with_a_reason(scene: Scene) -> None:
    session = scene.session
    session._apply(Switch((Move(0, "train"),)))
    plan = session.plan
    assert plan is not None
    other = msgspec.structs.replace(plan, instances=tuple(InstanceSpec(number, 1) for number in range(3)))
    session._apply(ApplyPlan(other))
    reasons = [event.reason for event in scene.kept.events if isinstance(event, AllocationChanged)]
    assert "cannot change sides" in reasons[-2]
    assert "cannot change their sizes" in reasons[-1]
    assert session.plan == plan


def test_untrained_trajectories_are_rows_at_the_end(scene: Scene) -> None:
    scene.whole("a")
    scene.turn("b", 10)
    scene.session.close()
    rows = {row.trajectory: row for row in scene.kept.trajectories}
    assert {row.trained_step for row in rows.values()} == {-1}
    assert (rows[0].status, rows[1].status) == ("completed", "aborted")


def test_reports_of_unknown_trajectories_are_ignored(scene: Scene) -> None:
    scene.done("nobody", (0, 1))
    scene.session.turn_lost("nobody")
    scene.session.ended(Ended("nobody", "completed"))
    assert scene.session.ended_keys == {}


def test_a_policy_without_a_plan_is_refused() -> None:
    scene = Scene()
    scene.session.controller.policy = Silent()
    with pytest.raises(PolicyError, match="no plan"):
        scene.session.start()


class Silent:
    def decide(self, event: object) -> tuple[()]:
        return ()


def test_a_trajectory_of_which_no_step_is_told_has_a_row_at_once(scene) -> None:
    scene.whole("a")
    scene.session.write_untrained("a")
    scene.session.write_untrained("a")
    scene.session.write_untrained("nobody")
    (row,) = scene.kept.trajectories
    assert (row.trained_step, row.version_trained, row.status, row.reward) == (-1, -1, "completed", 1.0)
    scene.session.close()
    assert len(scene.kept.trajectories) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bounds_tok": (10,)}, "its last bound is below the longest context, 1024 tokens"),
        ({"instances": (InstanceSpec(0, 1, 0), InstanceSpec(0, 1, 0))}, "two of its instances share an id"),
        ({"colocated": True}, "colocated"),
    ],
)
def test_an_impossible_first_plan_is_refused(wrong: dict[str, object], message: str) -> None:
    scene = Scene((1, 1))
    sound = Plan(TrainLayout(1, 1), (InstanceSpec(0, 1, 0), InstanceSpec(1, 1, 0)), (1024,))
    with pytest.raises(PolicyError, match=message):
        scene.session._apply(ApplyPlan(msgspec.structs.replace(sound, **wrong)))
