"""Plans and switches on a simulated fleet: what they cost, when engines come and go, and what is refused."""

from __future__ import annotations

import math

import msgspec
import pytest

from libra.backends.sim.clock import Clock
from libra.backends.sim.fleet import Fleet, pack
from libra.backends.sim.instance import Request
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import Truth
from libra.clusters import load_cluster
from libra.core.errors import CapacityError
from libra.core.events import AllocationChanged
from libra.core.plan import InstanceSpec, Move, Plan, TrainLayout
from libra.models import load_model

CLUSTER, MODEL = load_cluster("a800x48"), load_model("qwen3-14b")
HYBRID = Plan(
    train=TrainLayout(tp=4, dp=6),
    instances=(InstanceSpec(0, 8), InstanceSpec(1, 8), InstanceSpec(2, 4, hybrid=0), InstanceSpec(3, 4, hybrid=1)),
    bounds_tok=(40960,),
)


class Desk:
    """A fleet with its clock and the acknowledgements that it gave."""

    def __init__(self, plan: Plan) -> None:
        self.clock, self.reports = Clock(), list[AllocationChanged]()
        self.truth = Truth(CLUSTER, MODEL)
        self.fleet = Fleet(
            CLUSTER,
            self.truth,
            SimOptions(check=True),
            self.clock,
            lambda e, _: self.fleet.drained(e),
            self.reports.append,
            40960,
        )
        self.fleet.install(plan)

    def states(self) -> dict[int, str]:
        return dict(self.fleet.states)

    def trainer_ready_s(self) -> float:
        """Infinite while the time is not known yet."""
        known = [math.inf]
        self.fleet.when_trainer_ready(known.append)
        return known[-1]

    def run_until(self, t_s: float) -> None:
        done: list[bool] = []
        self.clock.at(t_s, lambda: done.append(True))
        self.clock.run(lambda: bool(done))


def test_first_plan_is_up_at_once_and_free() -> None:
    desk = Desk(HYBRID)
    assert set(desk.states().values()) == {"up"}
    assert desk.fleet.moving_gpu_s == 0.0
    assert desk.fleet.train_layout().dp == 6
    assert [report.cause for report in desk.reports] == ["plan"]


def test_hybrid_replica_trains_only_after_sleep_and_snapshot() -> None:
    desk = Desk(HYBRID)
    desk.fleet.switch((Move(0, "train"),))
    price_s = desk.truth.sleep_s + desk.truth.snapshot_join_s(HYBRID.train)
    assert desk.states() == {0: "up", 1: "up", 2: "training", 3: "up"}
    assert desk.fleet.train_layout().dp == 6, "the core does not wait for it"
    desk.run_until(price_s * 0.999)
    assert desk.fleet.train_layout().dp == 6
    desk.run_until(price_s)
    assert desk.fleet.train_layout().dp == 7
    assert desk.fleet.moving_gpu_s == pytest.approx(4 * price_s)


def test_hybrid_replica_returns_after_wake_and_weight_sync() -> None:
    desk = Desk(HYBRID)
    desk.fleet.switch((Move(1, "train"),))
    desk.run_until(100.0)
    desk.fleet.switch((Move(1, "rollout"),))
    assert desk.fleet.train_layout().dp == 6
    assert desk.states()[3] == "starting"
    desk.run_until(100.0 + desk.truth.wake_s + desk.truth.weight_sync_s())
    assert desk.states()[3] == "up"
    assert [report.cause for report in desk.reports] == ["plan", "switch", "switch", "up"]


def test_switch_is_idempotent_and_an_unknown_replica_is_refused() -> None:
    desk = Desk(HYBRID)
    desk.fleet.switch((Move(0, "train"),))
    before = desk.fleet.moving_gpu_s
    desk.fleet.switch((Move(0, "train"), Move(1, "rollout")))
    assert desk.fleet.moving_gpu_s == before
    desk.fleet.switch((Move(9, "train"),))
    assert (desk.reports[-1].cause, "no such hybrid replica" in desk.reports[-1].reason) == ("rejected", True)


def test_a_busy_engine_drains_before_it_is_lent() -> None:
    desk = Desk(HYBRID)
    desk.fleet.instances[2].submit(Request(0, ("p", 100), 100, 2000))
    desk.fleet.switch((Move(0, "train"),))
    assert desk.states()[2] == "draining"
    assert desk.fleet.moving_gpu_s == 0.0
    desk.run_until(1000.0)
    assert desk.states()[2] == "training"
    assert desk.reports[-1].cause == "down"
    drained_s = desk.reports[-1].t_s
    price_s = desk.truth.sleep_s + desk.truth.snapshot_join_s(HYBRID.train)
    assert drained_s > 10.0
    assert desk.fleet.joined_s[0] == pytest.approx(drained_s + price_s), "it joins after its last turn, not before"


def test_repartition_keeps_equal_engines_and_cold_starts_the_others() -> None:
    desk = Desk(HYBRID)
    kept = desk.fleet.instances[0]
    plan = Plan(TrainLayout(4, 4), (InstanceSpec(0, 8), InstanceSpec(5, 8), InstanceSpec(6, 8)), (40960,))
    desk.fleet.repartition(plan)
    assert desk.states() == {0: "up", 5: "starting", 6: "starting"}
    assert desk.fleet.instances[0] is kept
    assert desk.trainer_ready_s() == pytest.approx(desk.truth.regroup_s(plan.train))
    desk.run_until(desk.truth.cold_start_s)
    assert set(desk.states().values()) == {"up"}


def test_engines_that_start_together_are_reported_together() -> None:
    desk = Desk(HYBRID)
    plan = Plan(HYBRID.train, tuple(InstanceSpec(id_, 4) for id_ in range(10, 16)), (40960,))
    desk.fleet.repartition(plan)
    desk.run_until(1000.0)
    (came,) = [report for report in desk.reports if report.cause == "up"]
    assert [status.state for status in came.allocation.instances] == ["up"] * 6


def test_new_engines_wait_for_the_gpus_of_those_that_drain() -> None:
    desk = Desk(HYBRID)
    desk.fleet.instances[1].submit(Request(0, ("p", 100), 100, 3000))
    plan = Plan(HYBRID.train, (InstanceSpec(0, 8), InstanceSpec(7, 4), InstanceSpec(8, 4)), (40960,))
    desk.fleet.repartition(plan)
    assert desk.states() == {0: "up", 1: "draining"}
    desk.run_until(1000.0)
    assert desk.states() == {0: "up", 7: "up", 8: "up"}


def test_the_trainer_regroups_once_its_new_gpus_are_free() -> None:
    desk = Desk(HYBRID)
    desk.fleet.instances[1].submit(Request(0, ("p", 100), 100, 3000))
    desk.fleet.repartition(Plan(TrainLayout(4, 8), (InstanceSpec(0, 8),), (40960,)))
    assert desk.states() == {0: "up", 1: "draining"}
    ready: list[float] = []
    desk.fleet.when_trainer_ready(ready.append)
    desk.run_until(1000.0)
    (drained,) = [report.t_s for report in desk.reports if report.cause == "down"]
    assert drained > 10.0
    assert ready == [pytest.approx(drained + desk.truth.regroup_s(desk.fleet.train_layout()))]


def test_gpu_seconds_of_the_pools_follow_every_move() -> None:
    desk = Desk(HYBRID)
    desk.run_until(10.0)
    assert desk.fleet.pool_gpu_s() == (240.0, 240.0)
    desk.fleet.switch((Move(0, "train"),))
    desk.run_until(20.0)
    assert desk.fleet.pool_gpu_s() == (240.0 + 200.0, 240.0 + 280.0)
    desk.fleet.switch((Move(0, "rollout"),))
    desk.run_until(30.0)
    assert desk.fleet.pool_gpu_s() == pytest.approx((440.0 + 240.0, 520.0 + 240.0))


def test_an_engine_that_takes_over_the_id_of_a_draining_one_starts_after_it() -> None:
    desk = Desk(HYBRID)
    desk.fleet.instances[2].submit(Request(0, ("p", 100), 100, 3000))
    plan = Plan(HYBRID.train, (InstanceSpec(0, 8), InstanceSpec(1, 8), InstanceSpec(2, 8)), (40960,))
    desk.fleet.repartition(plan)
    assert desk.states() == {0: "up", 1: "up", 2: "draining"}
    desk.run_until(1000.0)
    assert desk.states() == {0: "up", 1: "up", 2: "up"}
    assert desk.fleet.instances[2].tp == 8


def test_new_engines_of_a_replica_that_trains_join_the_trainer_and_serve_only_when_it_returns() -> None:
    desk = Desk(HYBRID)
    plan = Plan(HYBRID.train, (InstanceSpec(0, 8), InstanceSpec(1, 8), InstanceSpec(7, 4, hybrid=0)), (40960,), (0,))
    desk.fleet.repartition(plan)
    assert desk.states() == {0: "up", 1: "up", 7: "training"}
    desk.run_until(1000.0)
    assert desk.states()[7] == "training"
    assert desk.fleet.train_layout().dp == 7
    desk.fleet.switch((Move(0, "rollout"),))
    desk.run_until(2000.0)
    assert desk.states()[7] == "up"
    assert desk.fleet.train_layout().dp == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": TrainLayout(4, 12)}, "uses 72 GPUs of 48"),
        ({"instances": ()}, "no rollout instance"),
        ({"instances": (InstanceSpec(0, 8), InstanceSpec(0, 8))}, "share an id"),
        ({"instances": (InstanceSpec(0, 8, bucket=1),)}, "serves no bucket"),
        ({"instances": (InstanceSpec(0, 8), InstanceSpec(1, 2, hybrid=0))}, "no whole training replicas of 4 GPUs"),
        ({"hybrid_training": (5,)}, "owns no instance"),
        ({"hybrid_training": (0,), "instances": (InstanceSpec(2, 4, hybrid=0),)}, "none rolls out"),
        ({"bounds_tok": (40960, 1000)}, "do not ascend"),
        ({"bounds_tok": (1000,)}, "below the longest context"),
        ({"train": TrainLayout(4, 0)}, "below 1"),
        ({"train": TrainLayout(4, 6, micro_batch_tok=0)}, "hold no token"),
        ({"train": TrainLayout(1, 1), "instances": (InstanceSpec(0, 8),)}, "needs 281 GiB"),
        ({"instances": tuple(InstanceSpec(i, 3) for i in range(2))}, "no engine of 3 GPUs"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_and_nothing_changes(change: dict[str, object], message: str) -> None:
    plan = msgspec.structs.replace(HYBRID, **change)
    with pytest.raises(CapacityError, match=message):
        Desk(plan)
    desk = Desk(HYBRID)
    before = desk.fleet.allocation()
    desk.fleet.repartition(plan)
    assert desk.reports[-1].cause == "rejected" and desk.reports[-1].reason
    assert desk.fleet.allocation() == before


def test_a_running_plan_does_not_turn_colocated() -> None:
    desk = Desk(HYBRID)
    desk.fleet.repartition(msgspec.structs.replace(HYBRID, colocated=True, instances=(InstanceSpec(0, 8),)))
    assert desk.reports[-1].cause == "rejected" and "another pipeline" in desk.reports[-1].reason


def test_groups_are_packed_into_nodes() -> None:
    nodes = pack(HYBRID, CLUSTER)
    assert nodes == {0: 3, 1: 4, 2: 5, 3: 5}
    uneven = Plan(TrainLayout(4, 11), (InstanceSpec(0, 4), InstanceSpec(1, 4)), (40960,))
    with pytest.raises(CapacityError, match="needs 4 GPUs of one node"):
        pack(uneven, CLUSTER)
