from __future__ import annotations

import numpy as np

from libra.core.plan import Allocation, InstanceSpec, InstanceStatus, TrainLayout
from libra.core.policy import Finished
from libra.cost.requests import compress
from libra.planning.assemble import mark_hybrids, name_instances
from libra.planning.intervals import Interval
from libra.planning.layout import (
    Bucket,
    Pool,
    RolloutLayout,
    ascending,
    bounds_tok,
    coarsen,
    merge,
    of_instances,
    of_pools,
)

REQUESTS = compress([Finished(0, tok, 0, 1, 0.0) for tok in (100, 200, 400, 800, 1600, 3200)], 6)


def test_neighbours_of_one_size_share_a_bucket() -> None:
    layout = merge([Interval(1, 0, 2), Interval(1, 2, 3), Interval(4, 3, 6)])
    assert layout.pools == (Pool(1, 2, 0, 3), Pool(4, 1, 3, 6))
    assert bounds_tok(layout, REQUESTS, 8000) == (400, 8000)
    assert layout.num_gpus == 6
    assert not layout.is_homogeneous


def test_one_bucket_is_bounded_by_the_context() -> None:
    assert bounds_tok(merge([Interval(2, 0, 6)]), REQUESTS, 8000) == (8000,)


def test_bounds_ascend_even_when_lengths_are_equal() -> None:
    assert ascending([40960, 40960], 40960) == (40958, 40959, 40960)
    assert ascending([5, 5, 7], 10) == (5, 6, 7, 10)


def test_buckets_too_close_to_tell_apart_are_joined() -> None:
    close = compress([Finished(0, tok, 0, 1, 0.0) for tok in (1000, 1100, 1200, 4000)], 4)
    layout = merge([Interval(1, 0, 1), Interval(2, 1, 3), Interval(4, 3, 4)])
    joined = coarsen(layout, close, 8000)
    assert joined.pools == (Pool(1, 1, 0, 3), Pool(2, 1, 0, 3), Pool(4, 1, 3, 4))
    assert joined.edges == (3, 4)
    assert coarsen(layout, close, 1201).edges == (4,)


def test_named_instances_give_back_their_buckets() -> None:
    layout = RolloutLayout((Pool(1, 2, 0, 3), Pool(4, 1, 3, 6)))
    instances = name_instances(layout, None)
    assert instances == (InstanceSpec(0, 1, 0), InstanceSpec(1, 1, 0), InstanceSpec(2, 4, 1))
    buckets = (Bucket(0.0, 400.0, ((1, 2),)), Bucket(400.0, np.inf, ((4, 1),)))
    assert of_instances(instances, (400, 8000)) == buckets
    assert of_pools(layout, REQUESTS) == buckets


def test_pools_that_share_a_bucket_and_empty_ones() -> None:
    layout = RolloutLayout((Pool(1, 2, 0, 6), Pool(2, 1, 0, 6), Pool(8, 1, 6, 6)))
    assert of_pools(layout, REQUESTS) == (Bucket(0.0, np.inf, ((1, 2), (2, 1))),)


def test_a_bucket_without_instances_falls_to_the_next_one_up() -> None:
    left = [InstanceSpec(2, 4, 1)]
    assert of_instances(left, (400, 8000)) == (Bucket(0.0, np.inf, ((4, 1),)),)
    low = [InstanceSpec(0, 1, 0)]
    assert of_instances(low, (400, 8000)) == (Bucket(0.0, np.inf, ((1, 1),)),)


def status(id_: int, tp: int, bucket: int = 0) -> InstanceStatus:
    return InstanceStatus(id_, tp, bucket, "up")


def test_unchanged_instances_keep_their_ids() -> None:
    there = Allocation(TrainLayout(tp=4, dp=2), 2, (status(0, 1), status(5, 1), status(7, 4, 1)), (400, 8000))
    wanted = RolloutLayout((Pool(1, 1, 0, 3), Pool(4, 2, 3, 6)))
    named = name_instances(wanted, there)
    assert named == (InstanceSpec(0, 1, 0), InstanceSpec(7, 4, 1), InstanceSpec(8, 4, 1))


def test_an_instance_that_is_down_gives_its_id_to_nobody() -> None:
    there = Allocation(TrainLayout(tp=4, dp=2), 2, (InstanceStatus(3, 4, 0, "down"),), (8000,))
    assert name_instances(RolloutLayout((Pool(4, 1, 0, 6),)), there) == (InstanceSpec(4, 4, 0),)


def test_hybrid_replicas_are_whole_instances_of_exactly_one_replica() -> None:
    instances = tuple(InstanceSpec(i, tp, b) for i, (tp, b) in enumerate([(1, 0), (1, 0), (2, 1), (4, 2), (4, 2)]))
    marked = mark_hybrids(instances, 4, 2)
    for hybrid in (0, 1):
        assert sum(i.tp for i in marked if i.hybrid == hybrid) == 4
    assert [i.id for i in marked if i.hybrid is None] == [3]


def test_as_many_hybrid_replicas_as_there_is_room_for() -> None:
    instances = tuple(InstanceSpec(i, 8) for i in range(3))
    assert {i.hybrid for i in mark_hybrids(instances, 8, 5)} == {None, 0, 1}
    assert {i.hybrid for i in mark_hybrids(instances, 4, 1)} == {None}
    assert np.all([i.tp == 8 for i in mark_hybrids(instances, 4, 1)])
