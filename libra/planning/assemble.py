"""From counts to a plan: instance ids that survive replanning, and which instances belong to the hybrid pool."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, count

import msgspec

from libra.core.plan import Allocation, InstanceSpec
from libra.planning.layout import RolloutLayout


def name_instances(layout: RolloutLayout, allocation: Allocation | None) -> tuple[InstanceSpec, ...]:
    """Instances in ascending order of bucket.

    An instance that is there keeps its id where its size is still wanted, in the same bucket if possible, so it need
    not restart; a new id was never used by what is there.
    """
    there = allocation.instances if allocation else ()
    free = sorted((i for i in there if i.state != "down"), key=lambda i: i.id)
    fresh = count(max((i.id for i in there), default=-1) + 1)
    edges = layout.edges
    wanted = [(edges.index(pool.high), pool.tp) for pool in layout.pools for _ in range(pool.count)]
    kept: dict[int, int] = {}
    for same_bucket in (True, False):
        for at, (bucket, tp) in enumerate(wanted):
            if at in kept:
                continue
            found = next((i for i in free if i.tp == tp and (i.bucket == bucket or not same_bucket)), None)
            if found is not None:
                free.remove(found)
                kept[at] = found.id
    return tuple(
        InstanceSpec(kept[at] if at in kept else next(fresh), tp, bucket) for at, (bucket, tp) in enumerate(wanted)
    )


def mark_hybrids(instances: Sequence[InstanceSpec], replica_gpus: int, num_replicas: int) -> tuple[InstanceSpec, ...]:
    """Mark whole instances that add up to `replica_gpus` for each hybrid replica, shortest buckets first.

    The largest instance of the last bucket is never marked: something must serve the longest requests. May mark fewer
    replicas than asked for; look at the result.
    """
    last = max(i.bucket for i in instances)
    keep = max((i for i in instances if i.bucket == last), key=lambda i: (i.tp, -i.id)).id
    free = [i for i in instances if i.id != keep and i.tp <= replica_gpus]
    owner: dict[int, int] = {}
    for hybrid in range(num_replicas):
        group = _group_of(free, replica_gpus)
        if not group:
            break
        owner.update({i: hybrid for i in group})
        free = [i for i in free if i.id not in group]
    return tuple(msgspec.structs.replace(i, hybrid=owner.get(i.id)) for i in instances)


def _group_of(free: Sequence[InstanceSpec], num_gpus: int) -> set[int]:
    """Ids of instances of exactly `num_gpus`, out of the shortest prefix of `free` that has such a group."""
    sizes = accumulate(i.tp for i in free)
    for end in (at for at, held in enumerate(sizes, 1) if held >= num_gpus):
        left, group = num_gpus, set()
        # Sizes are powers of two: taking the largest first finds a group whenever there is one.
        for i in sorted(free[:end], key=lambda i: (-i.tp, i.bucket, i.id)):
            if i.tp <= left:
                left -= i.tp
                group.add(i.id)
        if left == 0:
            return group
    return set()
