"""From one placement to another: what stops, what starts, in an order in which no GPU has two tenants at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from libra.planning.placement import TRAINING, GpuId, Placement, Seat, Tenant

_Seats = dict[Tenant, tuple[Seat, ...]]


class Step(msgspec.Struct, frozen=True):
    """One tenant stops or starts on all of its GPUs."""

    action: Literal["stop", "start"]
    tenant: Tenant
    gpus: tuple[GpuId, ...]


class Transfer(msgspec.Struct, frozen=True):
    """`num_changed` GPUs start something anew: training where it was not, or an instance of another id or size."""

    steps: tuple[Step, ...]
    num_changed: int


def transfer(current: Placement, target: Placement) -> Transfer:
    """Steps from `current` to `target`. Each start comes as soon as its GPUs are free, so that little is down at once;
    where everyone waits for another, the tenants in the first one's way stop first."""
    before = {use for seat in current.seats for use in _uses(seat)}
    changed = {gpu for seat in target.seats for gpu, *use in _uses(seat) if (gpu, *use) not in before}
    return Transfer(tuple(_steps(_by_tenant(current), _by_tenant(target))), len(changed))


def _uses(seat: Seat) -> Iterator[tuple[GpuId, Tenant, tuple[int, ...]]]:
    """Each GPU with its tenant; an instance is another one with other GPUs, training goes on where it was."""
    for gpu in seat.ids:
        yield gpu, seat.tenant, () if seat.tenant == TRAINING else seat.gpus


def _by_tenant(placement: Placement) -> _Seats:
    found: _Seats = {}
    for seat in placement.seats:
        found[seat.tenant] = (*found.get(seat.tenant, ()), seat)
    return found


def _gpus(seats: tuple[Seat, ...]) -> tuple[GpuId, ...]:
    return tuple(sorted(gpu for seat in seats for gpu in seat.ids))


def _steps(old: _Seats, new: _Seats) -> Iterator[Step]:
    running = dict(old)
    for tenant in old:
        if tenant not in new:
            yield _stop(running, tenant)
    waiting = {tenant: seats for tenant, seats in sorted(new.items()) if old.get(tenant) != seats}
    while waiting:
        in_the_way = {tenant: _blocking(running, waiting, tenant) for tenant in waiting}
        tenant = min(waiting, key=lambda each: (len(in_the_way[each]), each))
        for other in (*in_the_way[tenant], tenant):
            if other in running:
                yield _stop(running, other)
        running[tenant] = waiting.pop(tenant)
        yield Step("start", tenant, _gpus(running[tenant]))


def _stop(running: _Seats, tenant: Tenant) -> Step:
    return Step("stop", tenant, _gpus(running.pop(tenant)))


def _blocking(running: _Seats, waiting: _Seats, tenant: Tenant) -> tuple[Tenant, ...]:
    """Others that still run on GPUs that `tenant` waits for and have to leave them; who stays there shares them."""
    wanted = set(_gpus(waiting[tenant]))
    return tuple(
        other
        for other in sorted(running)
        if other != tenant and other in waiting and wanted & set(_gpus(running[other]))
    )
