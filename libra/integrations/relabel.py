"""A new plan for engines that cannot change: the same sizes, other buckets and bounds."""

from __future__ import annotations

import msgspec

from libra.core.plan import Plan


def relabelled(present: Plan, wanted: Plan) -> Plan | None:
    """`present` with the buckets and bounds of `wanted`; None where sizes or the training job differ.

    An engine keeps its number; engines of one size take the buckets of `wanted` in ascending order of both.
    """
    same = sorted(each.tp for each in present.instances) == sorted(each.tp for each in wanted.instances)
    if not same or present.train != wanted.train or wanted.hybrid_training != present.hybrid_training:
        return None
    engines = sorted(present.instances, key=lambda each: (each.tp, each.bucket, each.id))
    labels = sorted(wanted.instances, key=lambda each: (each.tp, each.bucket, each.id))
    renamed = {old.id: new.bucket for old, new in zip(engines, labels, strict=True)}
    instances = tuple(msgspec.structs.replace(each, bucket=renamed[each.id]) for each in present.instances)
    return msgspec.structs.replace(
        present, instances=instances, bounds_tok=wanted.bounds_tok, expected=wanted.expected, note=wanted.note
    )
