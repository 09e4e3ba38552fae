from __future__ import annotations

import pytest

from libra.core.errors import CapacityError
from libra.core.hardware import Cluster
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.planning.placement import TRAINING, Placement, Seat, node_sizes, place
from libra.planning.transfer import Step, transfer


def plan(train: TrainLayout, *sizes: int, **changes: object) -> Plan:
    instances = tuple(InstanceSpec(i, tp) for i, tp in enumerate(sizes))
    return Plan(train, instances, (100,), **changes)  # type: ignore[arg-type]


def homes(placement: Placement) -> dict[int, int]:
    return {seat.tenant[1]: seat.node for seat in placement.seats if seat.tenant != TRAINING}


def test_training_is_contiguous_and_large_instances_come_before_small_ones(cluster: Cluster) -> None:
    found = place(plan(TrainLayout(4, 5), 1, 1, 2, 4, 8, 8), node_sizes(cluster))
    train = [gpu for seat in found.seats if seat.tenant == TRAINING for gpu in seat.ids]
    assert sorted(train) == [(n, g) for n in range(2) for g in range(8)] + [(2, g) for g in range(4)]
    assert homes(found) == {3: 2, 4: 3, 5: 4, 0: 5, 1: 5, 2: 5}


def test_a_replica_stays_in_its_node_where_that_is_possible() -> None:
    found = place(plan(TrainLayout(2, 2, pp=3), 2, 2), (8, 8))
    replicas = {seat.group // 3: set() for seat in found.seats if seat.tenant == TRAINING}  # type: ignore[var-annotated]
    for seat in found.seats:
        if seat.tenant == TRAINING:
            replicas[seat.group // 3].add(seat.node)
    assert replicas == {0: {0}, 1: {1}}
    tight = place(plan(TrainLayout(2, 2, pp=3), 4), (8, 8))
    assert sum(len(seat.gpus) for seat in tight.seats) == 16


def test_instances_of_a_hybrid_replica_share_a_node() -> None:
    instances = (*(InstanceSpec(i, 1, hybrid=0) for i in range(4)), InstanceSpec(4, 4), InstanceSpec(5, 2))
    found = place(Plan(TrainLayout(4, 1), instances, (100,)), (6, 4, 4))
    assert len({node for tenant, node in homes(found).items() if tenant < 4}) == 1


def test_nodes_of_different_size_hold_what_fits_them() -> None:
    found = place(plan(TrainLayout(1, 3), 8, 2), (8, 3, 2))
    assert homes(found) == {0: 0, 1: 1}
    assert sorted(seat.node for seat in found.seats if seat.tenant == TRAINING) == [1, 2, 2]


def test_what_does_not_pack_is_an_error_with_figures() -> None:
    with pytest.raises(CapacityError, match="groups of 4, 4, 4 GPUs"):
        place(plan(TrainLayout(4, 1), 4, 4), (6, 6))


def test_colocated_stages_lie_on_the_same_gpus() -> None:
    found = place(plan(TrainLayout(4, 4), 8, 8, colocated=True), (8, 8))
    assert all(len(tenants) == 2 for tenants in found.tenants().values())
    assert len(found.tenants()) == 16


def test_what_fits_stays_and_a_large_instance_clears_the_cheapest_node() -> None:
    old = place(plan(TrainLayout(8, 1), 1, 1, 4, 2, 4), (8, 8, 8))
    new = Plan(
        TrainLayout(8, 1), (InstanceSpec(9, 8), InstanceSpec(0, 1), InstanceSpec(2, 4), InstanceSpec(3, 2)), (100,)
    )
    target = place(new, (8, 8, 8), old)
    done = transfer(old, target)
    assert homes(old) == {2: 1, 4: 1, 3: 2, 0: 2, 1: 2}
    assert homes(target) == {2: 1, 0: 1, 3: 1, 9: 2}
    assert done.num_changed == 8 + 1 + 2
    assert [(step.action, step.tenant[1]) for step in done.steps] == [
        ("stop", 4), ("stop", 1), ("stop", 0), ("start", 0), ("stop", 3), ("start", 3), ("start", 9),
    ]  # fmt: skip


def test_two_that_change_places_are_separated_by_a_stop() -> None:
    one, two = ("rollout", 1), ("rollout", 2)
    old = Placement((Seat(one, 0, (0, 1)), Seat(two, 1, (0, 1))))
    new = Placement((Seat(two, 0, (0, 1)), Seat(one, 1, (0, 1))))
    left, right = ((0, 0), (0, 1)), ((1, 0), (1, 1))
    assert transfer(old, new).steps == (
        Step("stop", two, right), Step("stop", one, left), Step("start", one, right), Step("start", two, left),
    )  # fmt: skip
    assert transfer(old, new).num_changed == 4


def test_gpus_that_go_from_rollout_to_training_are_counted_once() -> None:
    old = place(plan(TrainLayout(4, 2), 4, 4), (8, 8))
    done = transfer(old, place(plan(TrainLayout(4, 3), 4), (8, 8), old))
    assert done.num_changed == 4
    assert [step.action for step in done.steps] == ["stop", "stop", "start"]
