"""Placements and the way from one to another: nothing twice, no group over a node's edge, the fewest GPUs touched."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from libra.core.errors import CapacityError
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.planning.placement import TRAINING, Placement, Tenant, place
from libra.planning.transfer import transfer

SIZES = (1, 2, 4, 8)
node_lists = st.lists(st.integers(1, 8), min_size=1, max_size=4)


@st.composite
def plans(draw: st.DrawFn, num_gpus: int, first_id: int = 0) -> Plan:
    """Training and instances that are not too many for `num_gpus` together; they need not pack."""
    train = TrainLayout(draw(st.sampled_from(SIZES[:3])), draw(st.integers(1, 3)), draw(st.sampled_from((1, 1, 2, 3))))
    assume(train.num_gpus < num_gpus)
    left, sizes = num_gpus - train.num_gpus, []
    while left and len(sizes) < 5 and (not sizes or draw(st.booleans())):
        sizes.append(draw(st.sampled_from([tp for tp in SIZES if tp <= left])))
        left -= sizes[-1]
    ids = draw(st.lists(st.integers(first_id, first_id + 7), min_size=len(sizes), max_size=len(sizes), unique=True))
    return Plan(train, tuple(InstanceSpec(i, tp) for i, tp in zip(ids, sizes, strict=True)), (100,))


def check(plan: Plan, placement: Placement, nodes: list[int]) -> None:
    used = [gpu for seat in placement.seats for gpu in seat.ids]
    assert len(used) == len(set(used)) == plan.num_gpus
    assert all(0 <= gpu < nodes[node] for node, gpu in used)
    groups = sorted(len(seat.gpus) for seat in placement.seats if seat.tenant == TRAINING)
    assert groups == [plan.train.tp] * (plan.train.dp * plan.train.pp * plan.train.cp)
    seats = {seat.tenant: len(seat.gpus) for seat in placement.seats if seat.tenant != TRAINING}
    assert seats == {("rollout", each.id): each.tp for each in plan.instances}


def units_of(plan: Plan, whole: bool) -> list[tuple[Tenant, int]]:
    per_unit = plan.train.pp * plan.train.cp if whole else 1
    size = per_unit * plan.train.tp
    train = [(TRAINING, size)] * (plan.train.num_gpus // size)
    return train + [(("rollout", each.id), each.tp) for each in plan.instances]


def fewest_changed(plan: Plan, nodes: list[int], current: Placement) -> int | None:
    """Every unit on every node: the least number of GPUs with a new tenant, replicas whole if that is possible."""
    trained = [
        sum(len(s.gpus) for s in current.seats if s.node == n and s.tenant == TRAINING) for n in range(len(nodes))
    ]
    there = {(s.tenant, len(s.gpus)): s.node for s in current.seats if s.tenant != TRAINING}
    for whole in (True, False):
        units, least = units_of(plan, whole), None
        for homes in product(range(len(nodes)), repeat=len(units)):
            room, trains, kept = list(nodes), [0] * len(nodes), 0
            for unit, node in zip(units, homes, strict=True):
                room[node] -= unit[1]
                trains[node] += unit[1] * (unit[0] == TRAINING)
                kept += unit[1] * (there.get(unit) == node)
            if min(room) >= 0:
                kept += sum(map(min, trains, trained))
                changed = plan.num_gpus - kept
                least = changed if least is None else min(least, changed)
        if least is not None:
            return least
    return None


@settings(max_examples=300, deadline=None)
@given(st.data(), node_lists)
def test_a_new_job_is_placed_wherever_that_is_possible(data: st.DataObject, nodes: list[int]) -> None:
    plan = data.draw(plans(sum(nodes)))
    assume(len(units_of(plan, whole=False)) <= 9)
    possible = fewest_changed(plan, nodes, Placement(()))
    if possible is None:
        with pytest.raises(CapacityError, match="does not fit the nodes"):
            place(plan, nodes)
        return
    check(plan, place(plan, nodes), nodes)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(st.integers(2, 8), min_size=2, max_size=3))
def test_a_change_touches_the_fewest_gpus(data: st.DataObject, nodes: list[int]) -> None:
    old, new = data.draw(plans(sum(nodes))), data.draw(plans(sum(nodes), first_id=3))
    assume(len(units_of(new, whole=False)) <= 8)
    try:
        current = place(old, nodes)
    except CapacityError:
        assume(False)
    least = fewest_changed(new, nodes, current)
    if least is None:
        with pytest.raises(CapacityError):
            place(new, nodes, current)
        return
    target = place(new, nodes, current)
    check(new, target, nodes)
    assert transfer(current, target).num_changed == least


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(st.integers(2, 8), min_size=1, max_size=4))
def test_no_gpu_has_two_tenants_on_the_way(data: st.DataObject, nodes: list[int]) -> None:
    old, new = data.draw(plans(sum(nodes))), data.draw(plans(sum(nodes), first_id=3))
    try:
        current = place(old, nodes)
        # A target that was made without looking at what is there crosses it as it likes.
        target = place(new, nodes, current if data.draw(st.booleans()) else None)
    except CapacityError:
        assume(False)
    holder = {gpu: tenant for seat in current.seats for gpu in seat.ids for tenant in [seat.tenant]}
    running = set(holder.values())
    for step in transfer(current, target).steps:
        if step.action == "stop":
            assert {holder.pop(gpu) for gpu in step.gpus} == {step.tenant}
            running.remove(step.tenant)
        else:
            assert not set(step.gpus) & set(holder)
            assert step.tenant not in running
            holder |= dict.fromkeys(step.gpus, step.tenant)
            running.add(step.tenant)
    assert holder == {gpu: seat.tenant for seat in target.seats for gpu in seat.ids}


@settings(max_examples=50, deadline=None)
@given(st.data(), node_lists)
def test_nothing_happens_where_nothing_changes(data: st.DataObject, nodes: list[int]) -> None:
    plan = data.draw(plans(sum(nodes)))
    try:
        current = place(plan, nodes)
    except CapacityError:
        assume(False)
    again = place(plan, nodes, current)
    assert again.tenants() == current.tenants()
    assert transfer(current, again).num_changed == 0
