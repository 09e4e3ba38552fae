"""Which GPUs of which node hold what: seats of a plan's tensor-parallel groups, near to what is there.

A tensor-parallel group, and where it fits a whole data-parallel replica or hybrid replica, lies inside one node. A new
job packs training into the first nodes and instances largest first, so that small ones fill gaps. With a current
placement an integer program keeps as many GPUs as possible with what runs on them; `libra.planning.transfer` orders the
steps from one to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import msgspec

from libra.core.errors import CapacityError
from libra.core.hardware import Cluster
from libra.core.plan import InstanceSpec, Plan

GpuId = tuple[int, int]
"""Node and GPU in it."""
Tenant = tuple[Literal["train", "rollout"], int]
"""Who runs on a GPU: the training job (0), or an instance by its id."""
TRAINING: Tenant = ("train", 0)


class Seat(msgspec.Struct, frozen=True):
    """GPUs of one tensor-parallel group in one node; `group` numbers training's, replica by replica."""

    tenant: Tenant
    node: int
    gpus: tuple[int, ...]
    group: int = 0

    @property
    def ids(self) -> tuple[GpuId, ...]:
        return tuple((self.node, gpu) for gpu in self.gpus)


class Placement(msgspec.Struct, frozen=True):
    """Seats in order of node and GPU. In a colocated plan training's and the instances' lie on the same GPUs."""

    seats: tuple[Seat, ...]

    def tenants(self) -> dict[GpuId, frozenset[Tenant]]:
        """Who is on each GPU that is used."""
        found: dict[GpuId, frozenset[Tenant]] = {}
        for seat in self.seats:
            for gpu in seat.ids:
                found[gpu] = found.get(gpu, frozenset()) | {seat.tenant}
        return found


@dataclass(frozen=True)
class Unit:
    """Groups that lie in one node: (tenant, tensor-parallel size) of each, a training group as often as it is there."""

    groups: tuple[tuple[Tenant, int], ...]

    @property
    def num_gpus(self) -> int:
        return sum(tp for _, tp in self.groups)

    @property
    def is_training(self) -> bool:
        return self.groups[0][0] == TRAINING


def node_sizes(cluster: Cluster) -> tuple[int, ...]:
    """GPUs of each node. A cluster file has equal nodes; `place` takes any."""
    return (cluster.gpus_per_node,) * cluster.num_nodes


def place(plan: Plan, nodes: Sequence[int], current: Placement | None = None) -> Placement:
    """Seats for `plan` on nodes of these sizes; with `current`, those that start anew on the fewest GPUs.

    A GPU starts anew unless it trains before and after, or serves the instance of the same id and size at the same
    place. Replicas are kept whole where that is possible at all. Raises `CapacityError`.
    """
    training = tuple(_units(plan, whole=whole) for whole in (True, False))
    rollout = tuple(_rollout(plan, whole=whole) for whole in (True, False))
    if plan.colocated:
        halves = (_first_that_fits(each, nodes, current) for each in (training, rollout))
        return _sorted(seat for half in halves for seat in half)
    both = tuple(train + serve for train in training for serve in rollout)
    return _sorted(_first_that_fits(both, nodes, current))


def _sorted(seats: Iterable[Seat]) -> Placement:
    return Placement(tuple(sorted(seats, key=lambda seat: (seat.node, seat.gpus, seat.tenant))))


# -- units -------------------------------------------------------------------------------------------------------------


def _units(plan: Plan, *, whole: bool) -> tuple[Unit, ...]:
    """Training's: one a replica, or one a tensor-parallel group."""
    train = plan.train
    per_unit = train.pp * train.cp if whole else 1
    unit = Unit(((TRAINING, train.tp),) * per_unit)
    return (unit,) * (train.num_gpus // unit.num_gpus)


def _rollout(plan: Plan, *, whole: bool) -> tuple[Unit, ...]:
    """Instances, largest first; those of a hybrid replica together, or as far as a group that trains needs it."""
    units = [Unit((_group(each),)) for each in plan.instances if each.hybrid is None]
    for hybrid in plan.hybrid_replicas:
        members = sorted((i for i in plan.instances if i.hybrid == hybrid), key=lambda i: (-i.tp, i.id))
        # A replica that trains needs groups of `tp` in a node. Sizes divide one another, so they fill such chunks.
        chunk = plan.train.replica_gpus if whole else max(plan.train.tp, members[0].tp)
        groups: list[tuple[Tenant, int]] = []
        for member in members:
            groups.append(_group(member))
            if sum(tp for _, tp in groups) >= chunk:
                units.append(Unit(tuple(groups)))
                groups = []
        if groups:
            units.append(Unit(tuple(groups)))
    return tuple(sorted(units, key=lambda unit: (-unit.num_gpus, unit.groups)))


def _group(instance: InstanceSpec) -> tuple[Tenant, int]:
    return ("rollout", instance.id), instance.tp


# -- nodes -------------------------------------------------------------------------------------------------------------


def _first_that_fits(
    choices: Sequence[tuple[Unit, ...]], nodes: Sequence[int], current: Placement | None
) -> list[Seat]:
    for units in dict.fromkeys(choices):
        found = _packed(units, nodes) if current is None else _nearest(units, nodes, current)
        if found is not None:
            return _seats(units, found, nodes, current)
    groups = sorted((tp for unit in choices[-1] for _, tp in unit.groups), reverse=True)
    raise CapacityError(
        "the plan does not fit the nodes: a tensor-parallel group lies in one node",
        where="placement",
        value=f"groups of {', '.join(map(str, groups[:8]))}{', ...' * (len(groups) > 8)} GPUs",
        allowed=(f"nodes of {', '.join(map(str, nodes[:8]))}{', ...' * (len(nodes) > 8)} GPUs",),
        mend="take smaller tensor-parallel sizes, or more nodes",
    )


def _packed(units: Sequence[Unit], nodes: Sequence[int]) -> list[int] | None:
    """Node of each unit, training in the first nodes if that leaves room for the rest, else largest first.

    Group sizes divide one another, so largest first finds room for groups whenever there is some.
    """
    by_size = sorted(range(len(units)), key=lambda at: -units[at].num_gpus)
    for order in (range(len(units)), by_size):
        room, found = list(nodes), [-1] * len(units)
        first: dict[int, int] = {}
        for at in order:
            size = units[at].num_gpus
            # Rooms only shrink: a size finds none before the node where it found the last.
            start = first.get(size, 0)
            node = next((n for n in range(start, len(room)) if room[n] >= size), None)
            if node is None:
                break
            first[size], found[at] = node, node
            room[node] -= size
        else:
            return found
    return None


def _nearest(units: Sequence[Unit], nodes: Sequence[int], current: Placement) -> list[int] | None:
    """Node of each unit so that the most GPUs keep their tenant; None when the units do not fit.

    An integer program: `x[unit, node]` for units that could keep something, counts for the others of a size, and per
    node the training GPUs that stay, at most those there and those wanted.
    """
    from libra.planning.assignment import Kind, fewest_changes

    kinds: dict[tuple[bool, int, tuple[tuple[int, int], ...]], list[int]] = {}
    there = {(seat.tenant, len(seat.gpus)): seat.node for seat in current.seats if seat.tenant != TRAINING}
    for at, unit in enumerate(units):
        kept: dict[int, int] = {}
        for tenant, tp in unit.groups:
            if tenant != TRAINING and (tenant, tp) in there and there[tenant, tp] < len(nodes):
                kept[there[tenant, tp]] = kept.get(there[tenant, tp], 0) + tp
        kinds.setdefault((unit.is_training, unit.num_gpus, tuple(sorted(kept.items()))), []).append(at)
    training = [0] * len(nodes)
    for seat in current.seats:
        if seat.tenant == TRAINING and seat.node < len(nodes):
            training[seat.node] += len(seat.gpus)
    asked = [Kind(size, len(members), dict(kept), trains) for (trains, size, kept), members in kinds.items()]
    counts = fewest_changes(asked, nodes, training)
    if counts is None:
        return None
    found = [-1] * len(units)
    for members, per_node in zip(kinds.values(), counts, strict=True):
        homes = [node for node, count in enumerate(per_node) for _ in range(count)]
        for at, node in zip(members, homes, strict=True):
            found[at] = node
    return found


# -- GPUs --------------------------------------------------------------------------------------------------------------


def _seats(units: Sequence[Unit], homes: Sequence[int], nodes: Sequence[int], current: Placement | None) -> list[Seat]:
    """GPUs of each group: its own where it stays, else the lowest free ones of its node, training first."""
    kept: dict[tuple[Tenant, int, int], tuple[int, ...]] = {}
    trained: dict[int, list[int]] = {}
    for seat in current.seats if current else ():
        if seat.tenant == TRAINING:
            trained.setdefault(seat.node, []).extend(seat.gpus)
        else:
            kept[seat.tenant, len(seat.gpus), seat.node] = seat.gpus
    groups = [(tenant, tp, node) for unit, node in zip(units, homes, strict=True) for tenant, tp in unit.groups]
    free = [set(range(size)) for size in nodes]
    for each in groups:
        free[each[2]] -= set(kept.get(each, ()))
    found: list[Seat] = []
    numbers = count()
    for tenant, tp, node in sorted(groups, key=lambda each: each[0] != TRAINING):
        gpus = kept.get((tenant, tp, node))
        if gpus is None:
            old = set(trained.get(node, ()))
            wanted = sorted(free[node], key=lambda gpu: ((gpu not in old) == (tenant == TRAINING), gpu))[:tp]
            gpus = tuple(sorted(wanted))
            free[node] -= set(gpus)
        found.append(Seat(tenant, node, gpus, next(numbers) if tenant == TRAINING else 0))
    return found
