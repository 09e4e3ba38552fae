"""Training layouts for a number of GPUs: what divides and fits, and the paper's decision tree TP -> EP -> PP -> DP.

A leaf fits memory, divides what it must divide, and keeps tensor parallelism inside a node. `leaves` is the article's
tree: its thresholds on the pipeline bubble and on communication prune leaves, but never the last ones that fit, and may
prune the fastest. `libra.planning.tree` finds the fastest of a whole `Space`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from libra.core.errors import CapacityError
from libra.core.hardware import Cluster, Model
from libra.core.plan import TrainLayout
from libra.cost.memory import train_bytes_per_gpu, train_fits, usable_bytes
from libra.cost.rates import Rates
from libra.cost.training import TrainLoad, TrainTime, train_time

TENSOR_SIZES = (1, 2, 4, 8)
"""Tensor-parallel sizes that the paper searches, training and rollout alike."""
GB = 1e9


class Limits(msgspec.Struct, frozen=True):
    """Pruning thresholds; the articles give none, these are the defaults of the authors' later code."""

    max_bubble: float = 0.30
    max_comm_ratio: float = 0.50
    max_pp: int = 8


class Leaf(msgspec.Struct, frozen=True):
    """A layout and what it takes."""

    layout: TrainLayout
    time: TrainTime


def tensor_sizes(cluster: Cluster) -> tuple[int, ...]:
    """Sizes that divide a node. They divide one another too, so any mix that fits in number also packs into nodes."""
    return tuple(tp for tp in TENSOR_SIZES if cluster.gpus_per_node % tp == 0)


def packs_into_nodes(cluster: Cluster, sizes: list[int]) -> bool:
    """Whether tensor-parallel groups of these sizes have room with none split over two nodes (largest first)."""
    free = [cluster.gpus_per_node] * cluster.num_nodes
    for size in sorted(sizes, reverse=True):
        node = next((i for i, room in enumerate(free) if room >= size), None)
        if node is None:
            return False
        free[node] -= size
    return True


class Space(msgspec.Struct, frozen=True):
    """What a search may choose beside the degrees of tensor, expert, pipeline and data parallelism.

    `micro_batches` are in longest contexts: a micro-batch must hold any sequence.
    """

    context_sizes: tuple[int, ...] = (1, 2, 4, 8)
    interleaved: bool = True
    recompute: tuple[bool, ...] = (True, False)
    micro_batches: tuple[int, ...] = (1, 2, 4)


RUNNABLE = Space(context_sizes=(1,), interleaved=False, recompute=(True,), micro_batches=(1,))
"""What simulator and live trainer both carry out, and measured runs back. verl's trainer keeps its own recompute and
micro-batch; the simulator does not hold interleaving to a multiple of `pp` micro-batches; no run with a context ring is
among those that it was calibrated on, and the baselines know none."""


def divisors(number: int) -> tuple[int, ...]:
    """Ascending."""
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def train_tensor_sizes(cluster: Cluster, model: Model) -> tuple[int, ...]:
    """Sizes that divide a node and the heads; keys and values are split too, or each head is held by several ranks
    (Megatron wants a multiple or a divisor of their number)."""
    kv = model.num_kv_heads
    return tuple(tp for tp in tensor_sizes(cluster) if model.num_heads % tp == 0 and (kv % tp == 0 or tp % kv == 0))


def expert_sizes(model: Model, dp: int) -> Iterator[int]:
    """Expert-parallel sizes inside `dp` replicas; 1 for a dense model."""
    yield 1
    ep = 2
    while model.is_moe and ep <= dp:
        if dp % ep == 0 and model.num_experts % ep == 0:
            yield ep
        ep *= 2


def layouts(
    cluster: Cluster, model: Model, num_gpus: int, max_context_tok: int, *, limits: Limits | None = None
) -> Iterator[TrainLayout]:
    """Every layout of exactly `num_gpus` GPUs that divides; memory is not looked at.

    A micro-batch must hold the longest sequence.
    """
    limits = limits or Limits()
    for tp in train_tensor_sizes(cluster, model):
        for pp in range(1, limits.max_pp + 1):
            if num_gpus % (tp * pp) or model.num_layers % pp:
                continue
            dp = num_gpus // (tp * pp)
            for ep in expert_sizes(model, dp):
                yield TrainLayout(tp=tp, dp=dp, pp=pp, ep=ep, micro_batch_tok=max_context_tok)


def leaves(
    cluster: Cluster,
    model: Model,
    num_gpus: int,
    load: TrainLoad,
    max_context_tok: int,
    *,
    limits: Limits | None = None,
    rates: Rates | None = None,
) -> tuple[Leaf, ...]:
    """Layouts of `num_gpus` GPUs that fit memory, fastest first; empty when there is none.

    Layouts with more replicas than trajectories, which leave some idle, are taken only when there is no other.
    """
    limits = limits or Limits()
    fitting = [
        Leaf(layout, train_time(cluster, model, layout, load, rates=rates))
        for layout in layouts(cluster, model, num_gpus, max_context_tok, limits=limits)
        if train_fits(cluster.gpu, model, layout)
    ]
    busy = [x for x in fitting if x.layout.dp <= round(load.num)] or fitting
    kept = [x for x in busy if x.time.bubble <= limits.max_bubble and x.time.comm_ratio <= limits.max_comm_ratio]
    return tuple(sorted(kept or busy, key=lambda leaf: leaf.time.total_s))


def no_layout(
    cluster: Cluster, model: Model, num_gpus: int, max_context_tok: int, cp_sizes: tuple[int, ...] = (1,)
) -> CapacityError:
    """The error of a model that no layout of `num_gpus` trains: what it needs, and what would fit."""

    def least_bytes(count: int) -> float:
        found = (
            msgspec.structs.replace(each, cp=cp, dp=each.dp // cp)
            for cp in cp_sizes
            for each in layouts(cluster, model, count, max_context_tok)
            if each.dp % (cp * each.ep) == 0
        )
        return min((train_bytes_per_gpu(model, layout) for layout in found), default=float("inf"))

    limit = usable_bytes(cluster.gpu)
    enough = [n for n in range(1, cluster.num_gpus + 1) if least_bytes(n) <= limit]
    more = next((n for n in enough if n > num_gpus), enough[-1] if enough else 0)
    mend = (
        f"give training {more} of the cluster's GPUs{' (a colocated pipeline does)' * (more == cluster.num_gpus)}"
        if enough
        else f"take a larger cluster than {cluster.name}, a smaller model or a shorter context"
    )
    return CapacityError(
        f"no training layout of {model.name} on {num_gpus} GPUs fits: the leanest needs "
        f"{least_bytes(num_gpus) / GB:.1f} GB a GPU, {limit / GB:.1f} GB of {cluster.gpu.name} are usable",
        where="planner",
        mend=mend,
    )
