"""Branch and bound finds the fastest training layout: held to a plain enumeration, and bound by bound."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from libra.core.hardware import Cluster, Gpu, Model
from libra.core.plan import TrainLayout
from libra.cost.memory import train_fits
from libra.cost.training import TrainLoad, TrainTime, num_micro_batches, train_time
from libra.planning.topology import TENSOR_SIZES, Space
from libra.planning.tree import LEAN_SHARE, Tree, fastest, replica_sizes

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Nodes of 1 to 12 GPUs, or a prime number in all; slow and fast links, little and much memory."""
    nodes, per_node = draw(st.one_of(
        st.tuples(st.integers(1, 4), st.integers(1, 12)),
        st.tuples(st.integers(1, 6), st.sampled_from((4, 8))),
        st.tuples(st.sampled_from(PRIMES), st.just(1)),
        st.tuples(st.just(1), st.sampled_from(PRIMES)),
    ))  # fmt: skip
    tflops, memory_gb = draw(st.floats(10, 1000)), draw(st.floats(4, 300))
    gpu = Gpu("any", tflops, memory_gb, draw(st.floats(200, 4000)), draw(st.floats(5, 500)))
    return Cluster("any", nodes, per_node, gpu, "any", draw(st.floats(1, 200)))


@st.composite
def models(draw: st.DrawFn) -> Model:
    heads = draw(st.sampled_from((2, 4, 6, 8, 12)))
    kv = draw(st.sampled_from([n for n in (1, 2, 4, 8, 12) if heads % n == 0]))
    experts = draw(st.sampled_from((0, 0, 4, 6, 8, 12)))
    return Model(
        "any", draw(st.sampled_from((1, 4, 6, 7, 8, 12))), draw(st.sampled_from((256, 1024, 4096))), heads, kv, 128,
        draw(st.sampled_from((512, 4096))), draw(st.sampled_from((1000, 100_000))), 1 << 20,
        num_experts=experts, experts_per_tok=min(experts, 2),
    )  # fmt: skip


@st.composite
def loads(draw: st.DrawFn) -> TrainLoad:
    num, mean = draw(st.integers(1, 200)), draw(st.floats(50, 20_000))
    longest = mean * draw(st.floats(1, 20))
    return TrainLoad(num, num * mean, num * mean**2 * draw(st.floats(1, 5)), min(longest, num * mean))


spaces = st.builds(
    Space,
    context_sizes=st.sampled_from(((1,), (1, 2, 4, 8), (1, 3), (2, 4))),
    interleaved=st.booleans(),
    recompute=st.sampled_from(((True,), (False,), (True, False))),
    micro_batches=st.sampled_from(((1,), (1, 2, 4), (3,))),
)


def every_layout(cluster: Cluster, model: Model, num_gpus: int, context: int, space: Space) -> Iterator[TrainLayout]:
    """Each degree from 1 to the number of GPUs, and what may not be left out again."""
    degrees = [n for n in range(1, num_gpus + 1) if num_gpus % n == 0]
    splits = product(TENSOR_SIZES, degrees, space.context_sizes, range(1, num_gpus + 1))
    for tp, pp, cp, ep in splits:
        if num_gpus % (tp * pp * cp) or (num_gpus // (tp * pp * cp)) % ep:
            continue
        if cluster.gpus_per_node % tp or model.num_heads % tp or (model.num_kv_heads % tp and tp % model.num_kv_heads):
            continue
        if model.num_layers % pp or (max(1, model.num_experts) % ep) or (cp > 1 and context % (2 * cp)):
            continue
        for vpp, multiple, recompute in product(range(1, model.num_layers + 1), space.micro_batches, space.recompute):
            chunked = pp > 1 and space.interleaved and model.num_layers % (pp * vpp) == 0
            if vpp == 1 or chunked:
                yield TrainLayout(tp, num_gpus // (tp * pp * cp), pp, cp, ep, multiple * context, recompute, vpp)


def exhaustive(
    cluster: Cluster, model: Model, num_gpus: int, load: TrainLoad, context: int, space: Space
) -> dict[TrainLayout, TrainTime]:
    fitting = [
        layout
        for layout in every_layout(cluster, model, num_gpus, context, space)
        if train_fits(cluster.gpu, model, layout)
        and (layout.vpp == 1 or num_micro_batches(load, layout, layout.dp) > 0)
    ]
    busy = [layout for layout in fitting if layout.dp <= max(1, round(load.num))] or fitting
    return {layout: train_time(cluster, model, layout, load) for layout in busy}


@settings(max_examples=500, deadline=None)
@given(st.data(), clusters(), models(), loads(), spaces, st.sampled_from((64, 4096, 40_960, 30)))
def test_the_search_finds_the_exhaustive_optimum(
    data: st.DataObject, cluster: Cluster, model: Model, load: TrainLoad, space: Space, context: int
) -> None:
    num_gpus = data.draw(st.one_of(st.just(cluster.num_gpus), st.integers(1, cluster.num_gpus)))
    times = exhaustive(cluster, model, num_gpus, load, context, space)
    found = fastest(cluster, model, num_gpus, load, context, space)
    if not times:
        assert found is None
        return
    best_s = min(time.total_s for time in times.values())
    tree = Tree(cluster, model, num_gpus, load, context, space, max(layout.dp for layout in times))
    assert next(tree.ascending()).time.total_s == best_s
    assert found is not None
    assert found.time == times[found.layout]
    assert found.time.total_s <= best_s * (1 + LEAN_SHARE)


@settings(max_examples=200, deadline=None)
@given(st.data(), clusters(), models(), loads(), spaces, st.sampled_from((64, 4096, 40_960)))
def test_no_leaf_is_under_the_bound_of_a_node_above_it(
    data: st.DataObject, cluster: Cluster, model: Model, load: TrainLoad, space: Space, context: int
) -> None:
    """Every leaf of the enumeration against the five nodes on its path."""
    num_gpus = data.draw(st.integers(1, cluster.num_gpus))
    tree = Tree(cluster, model, num_gpus, load, context, space)
    times = exhaustive(cluster, model, num_gpus, load, context, space)
    assume(times)
    for layout, time in times.items():
        path = (layout.tp, layout.ep, layout.pp, layout.cp, int(not layout.recompute))
        bounds = [tree.bound_s(path[:depth]) for depth in (1, 2, 3, 4, 5)]
        assert max(bounds) <= time.total_s * (1 + 1e-9), (layout, bounds)


@settings(max_examples=100, deadline=None)
@given(st.data(), clusters(), models(), loads())
def test_all_leaves_come_in_ascending_order(
    data: st.DataObject, cluster: Cluster, model: Model, load: TrainLoad
) -> None:
    num_gpus = data.draw(st.integers(1, cluster.num_gpus))
    times = exhaustive(cluster, model, num_gpus, load, 4096, Space())
    most = max((layout.dp for layout in times), default=1)
    seen = list(Tree(cluster, model, num_gpus, load, 4096, Space(), most).ascending())
    assert {leaf.layout for leaf in seen} == set(times)
    assert [leaf.time.total_s for leaf in seen] == sorted(time.total_s for time in times.values())


@settings(max_examples=200, deadline=None)
@given(st.data(), clusters(), models(), loads(), spaces, st.sampled_from((64, 4096, 30)))
def test_a_search_for_one_replica_size_is_the_best_of_that_size(
    data: st.DataObject, cluster: Cluster, model: Model, load: TrainLoad, space: Space, context: int
) -> None:
    """Also of sizes that no degrees multiply to; every size that has a leaf is among `replica_sizes`."""
    num_gpus = data.draw(st.integers(1, cluster.num_gpus))
    times = exhaustive(cluster, model, num_gpus, load, context, space)
    size = data.draw(st.sampled_from([n for n in range(1, num_gpus + 1) if num_gpus % n == 0]))
    there = [time.total_s for layout, time in times.items() if layout.replica_gpus == size]
    most = max((layout.dp for layout in times), default=1)
    found = next(Tree(cluster, model, num_gpus, load, context, space, most, replica_gpus=size).ascending(), None)
    assert (found.time.total_s if found else None) == min(there, default=None)
    assert {layout.replica_gpus for layout in times} <= set(replica_sizes(cluster, model, space))
