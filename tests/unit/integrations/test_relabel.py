"""A new plan reaches engines that cannot change: only by buckets and bounds."""

from __future__ import annotations

import msgspec

from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.integrations.relabel import relabelled

PRESENT = Plan(TrainLayout(1, 1), (InstanceSpec(0, 1), InstanceSpec(1, 2, 1), InstanceSpec(2, 1)), (100, 1024))


def test_engines_keep_their_numbers_and_take_new_buckets() -> None:
    wanted = Plan(
        TrainLayout(1, 1), (InstanceSpec(7, 2, 2), InstanceSpec(8, 1, 0), InstanceSpec(9, 1, 1)), (50, 100, 1024)
    )
    found = relabelled(PRESENT, wanted)
    assert found is not None
    assert [(each.id, each.tp, each.bucket) for each in found.instances] == [(0, 1, 0), (1, 2, 2), (2, 1, 1)]
    assert found.bounds_tok == (50, 100, 1024)


def test_other_sizes_or_another_trainer_cannot_be_reached() -> None:
    assert relabelled(PRESENT, msgspec.structs.replace(PRESENT, instances=PRESENT.instances[:2])) is None
    assert relabelled(PRESENT, msgspec.structs.replace(PRESENT, train=TrainLayout(2, 1))) is None
