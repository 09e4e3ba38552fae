from __future__ import annotations

import msgspec

from libra.core.plan import Allocation, InstanceSpec, InstanceStatus, Move, Plan, TrainLayout
from libra.elastic.moves import HybridPool

TRAIN = TrainLayout(tp=4, dp=2)
PLAN = Plan(TRAIN, (InstanceSpec(0, 4, 0, 0), InstanceSpec(1, 4, 0, 1), InstanceSpec(2, 8, 1)), (4000, 40960))


def allocated(plan: Plan) -> Allocation:
    lent = set(plan.hybrid_training)
    statuses = tuple(
        InstanceStatus(i.id, i.tp, i.bucket, "training" if i.hybrid in lent else "up", i.hybrid) for i in plan.instances
    )
    return Allocation(plan.train, plan.train.dp + len(lent), statuses, plan.bounds_tok, plan.hybrid_training)


def training(*hybrids: int) -> Plan:
    return msgspec.structs.replace(PLAN, hybrid_training=hybrids)


def test_the_moves_lead_from_what_is_there_to_what_is_wanted() -> None:
    assert HybridPool().reconcile(training(1), allocated(training(0))) == (Move(0, "rollout"), Move(1, "train"))
    assert HybridPool().reconcile(training(0, 1), allocated(training())) == (Move(0, "train"), Move(1, "train"))


def test_a_plan_that_is_reached_needs_nothing() -> None:
    for plan in (training(), training(0), training(0, 1)):
        assert HybridPool().reconcile(plan, allocated(plan)) == ()


def test_another_core_is_out_of_reach() -> None:
    others = (
        msgspec.structs.replace(training(0), train=TrainLayout(tp=4, dp=3)),
        msgspec.structs.replace(training(0), instances=PLAN.instances[:2]),
        msgspec.structs.replace(training(0), bounds_tok=(5000, 40960)),
        msgspec.structs.replace(training(0), colocated=True),
    )
    for plan in others:
        assert HybridPool().reconcile(plan, allocated(PLAN)) == ()


def test_the_order_of_instances_and_their_states_do_not_matter() -> None:
    allocation = allocated(PLAN)
    shuffled = msgspec.structs.replace(allocation, instances=tuple(reversed(allocation.instances)))
    assert HybridPool().reconcile(training(0), shuffled) == (Move(0, "train"),)
