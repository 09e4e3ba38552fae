"""The fastest training layout of a number of GPUs, by branch and bound: TP -> EP -> PP -> CP and DP -> recompute ->
interleaving and micro-batch.

A node fixes the first degrees of a layout. Its bound is a time that no leaf below it is under, and the search takes
nodes in ascending order of their bounds, so that the first leaf that it takes is optimal: every other leaf is, or lies
below, a node with no smaller bound. What is still waiting then is pruned, unseen.

Why the bounds hold. With `G = tp pp cp dp` GPUs, `B >= total / dp` tokens on the busiest replica, `L` layers:

- Passes: a leaf has at least those of the space's leanest recompute setting, and every term grows with them.
- Compute and memory traffic: `F(B) / (tp pp cp)`, F linear in tokens and in squares, both at least their even share:
  `>= F(total) / G`.
- Layer tokens of a rank, `B L / (pp cp) >= total L tp / G`: known as soon as `tp` is. Traffic of tensor parallelism and
  of experts grows with them; their latencies, at least none, are left out.
- Experts: what leaves a node is least for one of the replica sizes `tp`, `2 tp` ... of a node, or a larger one, which
  is as a whole node.
- Bubble: `(pp - 1) / (vpp m)` with the most chunks, `L / pp`, and the most micro-batches, those of the smallest
  micro-batch and the fewest replicas, rounded up to a multiple of `pp`; the longest sequence only makes it larger, by
  a share that depends on `dp` alone.
- Stage traffic grows with `vpp` and `m`, both at least 1; gradients and optimizer depend on tp, ep, pp, cp, dp only.
- Memory grows with the micro-batch, with `vpp` and without recompute: where the leanest does not fit, none does.

Bounds are shrunk by `ROUNDING`, since sums in another order may differ in the last bits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import ceil

import msgspec

from libra.core.hardware import BYTES_BF16, Cluster, Model
from libra.core.plan import TrainLayout
from libra.cost.communication import gpus_on_network, gradient_sync_s, network_bytes_s
from libra.cost.memory import WEIGHT_AND_GRADIENT_BYTES, train_fits, train_params_per_gpu, usable_bytes
from libra.cost.rates import Rates
from libra.cost.training import (
    TrainLoad,
    TrainTime,
    forward_flops,
    idle_ratio,
    num_micro_batches,
    num_passes,
    optimizer_s,
    pipeline_s,
    stage_time,
    stream_s,
    tensor_s,
    train_efficiency,
    train_time,
)
from libra.planning.topology import RUNNABLE, Leaf, Space, divisors, train_tensor_sizes

ROUNDING = 1e-9
LEAN_SHARE = 0.005
"""A larger micro-batch saves launches and little else; less than this is not worth its memory (assumed)."""

Node = tuple[int, ...]
"""What a node fixes, in the order of the tree: tp, ep, pp, cp, whether activations are kept (1) or recomputed (0); a
leaf's go on with vpp and the micro-batch in tokens."""
_Entry = tuple[float, bool, Node, TrainTime | None]


@dataclass(frozen=True)
class Tree:
    """Layouts of exactly `num_gpus` with at most `max_dp` replicas; of `replica_gpus` each, if given."""

    cluster: Cluster
    model: Model
    num_gpus: int
    load: TrainLoad
    max_context_tok: int
    space: Space = RUNNABLE
    max_dp: int | None = None
    replica_gpus: int | None = None
    split_experts: bool = True
    rates: Rates = field(default_factory=Rates)

    def ascending(self) -> Iterator[Leaf]:
        """Every leaf that fits memory, fastest first; only as much of the tree is looked at as that takes."""
        heap: list[_Entry] = [(0.0, False, (), None)]
        while heap:
            _, is_leaf, node, time = heapq.heappop(heap)
            if is_leaf:
                assert time is not None
                yield Leaf(self.layout(node), time)
            else:
                for entry in self._leaves(node) if len(node) == 5 else self._children(node):
                    heapq.heappush(heap, entry)

    def layout(self, node: Node) -> TrainLayout:
        """The layout of a leaf; of a node with four degrees or five, the one below it that needs the least memory."""
        tp, ep, pp, cp, kept, vpp, micro_batch_tok = node + self._leanest[len(node) - 4 :] if len(node) < 7 else node
        dp = self.num_gpus // (tp * pp * cp)
        return TrainLayout(tp, dp, pp, cp, ep, micro_batch_tok, not kept, vpp)

    # -- the tree --------------------------------------------------------------------------------------------------

    def degrees(self, node: Node) -> Iterator[int]:
        """What may come next: a degree divides the GPUs that are left, and what it splits."""
        if len(node) == 4:
            yield from (int(not recompute) for recompute in self.space.recompute)
            return
        left = self.num_gpus
        for degree in node:
            left //= degree
        for degree in self._choices[len(node)]:
            if (
                left % degree == 0
                and self._may_be_whole(node, degree)
                and (len(node) < 3 or self._is_whole(node, degree))
            ):
                yield degree

    def _may_be_whole(self, node: Node, degree: int) -> bool:
        """Whether a replica of the wanted size can have `degree` next: `tp pp cp` is that size, so each degree divides
        what is left of it, and `pp` leaves a context degree that there is. What fails has no whole leaf below it."""
        if self.replica_gpus is None or len(node) in (1, 3):
            return True
        rest, left = divmod(self.replica_gpus, degree * (node[0] if node else 1))
        return left == 0 and (not node or rest in self._choices[3])

    @cached_property
    def _choices(self) -> tuple[tuple[int, ...], ...]:
        """Degrees of each level before the GPUs are counted; sequences are cut into `2 cp` parts (zigzag ring)."""
        model = self.model
        experts = divisors(model.num_experts) if model.is_moe and self.split_experts else (1,)
        rings = tuple(cp for cp in self.space.context_sizes if cp == 1 or self.max_context_tok % (2 * cp) == 0)
        return train_tensor_sizes(self.cluster, model), experts, divisors(model.num_layers), rings

    def _is_whole(self, node: Node, cp: int) -> bool:
        """Whether replicas have the size that is wanted, and are no more than allowed."""
        tp, _, pp = node
        size = tp * pp * cp
        return self.replica_gpus in (None, size) and (self.max_dp is None or self.num_gpus // size <= self.max_dp)

    def _children(self, node: Node) -> Iterator[_Entry]:
        for degree in self.degrees(node):
            child = (*node, degree)
            if len(child) < 3 or self._may_fit(child):
                yield self.bound_s(child) * (1 - ROUNDING), False, child, None

    def _leaves(self, node: Node) -> Iterator[_Entry]:
        """Schedules of one shape: chunks and micro-batch."""
        pp = node[2]
        for vpp in divisors(self.model.num_layers // pp) if pp > 1 and self.space.interleaved else (1,):
            for multiple in self.space.micro_batches:
                leaf = (*node, vpp, multiple * self.max_context_tok)
                layout = self.layout(leaf)
                if train_fits(self.cluster.gpu, self.model, layout) and self.has_micro_batches(layout):
                    time = train_time(self.cluster, self.model, layout, self.load, rates=self.rates)
                    yield time.total_s, True, leaf, time

    def has_micro_batches(self, layout: TrainLayout) -> bool:
        return layout.vpp == 1 or num_micro_batches(self.load, layout, layout.dp) > 0

    # -- bounds ----------------------------------------------------------------------------------------------------

    @cached_property
    def _leanest(self) -> tuple[int, int, int]:
        """Schedule that needs the least memory: recompute where allowed, one chunk, the smallest micro-batch."""
        return int(True not in self.space.recompute), 1, min(self.space.micro_batches) * self.max_context_tok

    @cached_property
    def _passes(self) -> int:
        return min(num_passes(TrainLayout(1, 1, recompute=each)) for each in self.space.recompute)

    @cached_property
    def _even_s(self) -> float:
        """Compute and memory traffic if all GPUs had the same share."""
        flops = self._passes * forward_flops(self.model, self.load.total_tok, self.load.square_tok)
        rate = self.num_gpus * self.cluster.gpu.peak_tflops * 1e12 * train_efficiency(self.model, self.rates)
        tok = self._passes * self.load.total_tok
        return flops / rate + stream_s(self.cluster, self.model, tok, self.num_gpus, self.rates)

    @cached_property
    def _constant_s(self) -> float:
        return optimizer_s(self.cluster, self.model, self.num_gpus) + self.rates.train_fixed_s

    def bound_s(self, node: Node) -> float:
        """Seconds that no leaf below a node is under (the module says why)."""
        if len(node) >= 4:
            return self._shape_bound_s(node)
        tp = node[0]
        layer_tok = self.load.total_tok * self.model.num_layers * tp / self.num_gpus
        stage_s = self._even_s + tensor_s(self.cluster, self.model, tp, self._passes, layer_tok, 0, self.rates)
        if len(node) > 1:
            stage_s += self._leaving_s(tp, node[1], layer_tok)
        if len(node) > 2:
            stage_s *= 1 + self._least_idle(node[2], self.num_gpus / (tp * node[2] * max(self.space.context_sizes)))
        return stage_s + self._constant_s

    def _leaving_s(self, tp: int, ep: int, layer_tok: float) -> float:
        """Experts' traffic over a node's network, with as much of it inside as replicas of any size can have."""
        num = self.cluster.gpus_per_node
        leaving = min(
            (ep - min(ep, max(1, num // replica))) * gpus_on_network(self.cluster, replica)
            for replica in range(tp, num + tp, tp)
        )
        tok = 2 * (self._passes - 1) * layer_tok * self.model.experts_per_tok / (tp * ep)
        return leaving * tok * self.model.hidden * BYTES_BF16 / network_bytes_s(self.cluster, self.rates)

    def _least_idle(self, pp: int, dp: float, longest_share: float = 0.0) -> float:
        """Bubble over work with the most chunks and micro-batches of `dp` replicas or more."""
        packed = min(ceil(self.load.total_tok / (dp * self._leanest[2])), ceil(self.load.num / dp))
        chunks = self.model.num_layers // pp if self.space.interleaved else 1
        return idle_ratio(pp, chunks, ceil(max(1, packed) / pp) * pp, longest_share)

    def _shape_bound_s(self, node: Node) -> float:
        layout = self.layout(node)
        passes = self._passes if len(node) == 4 else num_passes(layout)
        stage = stage_time(self.cluster, self.model, layout, self.load, layout.dp, passes, 0, self.rates)
        work_s = stage.total_s * (1 + self._least_idle(layout.pp, layout.dp, stage.longest_share))
        sends_s = pipeline_s(self.cluster, self.model, layout, stage.tok, 1, self.rates)
        sync_s = gradient_sync_s(self.cluster, self.model, layout, layout.dp, self.rates)
        return work_s + sends_s + sync_s + self._constant_s

    def _may_fit(self, node: Node) -> bool:
        """Weights and gradients of three degrees, which neither `cp` nor `dp` split; the leanest leaf of more."""
        if len(node) >= 4:
            return train_fits(self.cluster.gpu, self.model, self.layout(node))
        tp, ep, pp = node
        params = train_params_per_gpu(self.model, TrainLayout(tp, 1, pp, ep=ep))
        return params * WEIGHT_AND_GRADIENT_BYTES <= usable_bytes(self.cluster.gpu)


def replica_sizes(cluster: Cluster, model: Model, space: Space) -> tuple[int, ...]:
    """GPUs of every replica that has tensor, pipeline and context degrees, ascending; a split has those that divide it,
    if they fit."""
    degrees = product(train_tensor_sizes(cluster, model), divisors(model.num_layers), space.context_sizes)
    return tuple(sorted({tp * pp * cp for tp, pp, cp in degrees}))


def fastest(
    cluster: Cluster,
    model: Model,
    num_gpus: int,
    load: TrainLoad,
    max_context_tok: int,
    space: Space = RUNNABLE,
    *,
    replica_gpus: int | None = None,
    split_experts: bool = True,
    rates: Rates | None = None,
) -> Leaf | None:
    """The fastest leaf; None when nothing fits. Of its micro-batches the smallest that costs less than `LEAN_SHARE`.

    Layouts with more replicas than trajectories, which leave some idle, are taken only when there is no other.
    """
    for max_dp in (max(1, round(load.num)), None):
        tree = Tree(
            cluster, model, num_gpus, load, max_context_tok, space, max_dp, replica_gpus, split_experts,
            rates or Rates(),
        )  # fmt: skip
        found = next(tree.ascending(), None)
        if found is not None:
            return _leaner(tree, found)
    return None


def _leaner(tree: Tree, found: Leaf) -> Leaf:
    for multiple in sorted(tree.space.micro_batches):
        layout = msgspec.structs.replace(found.layout, micro_batch_tok=multiple * tree.max_context_tok)
        time = train_time(tree.cluster, tree.model, layout, tree.load, rates=tree.rates)
        if tree.has_micro_batches(layout) and time.total_s <= found.time.total_s * (1 + LEAN_SHARE):
            return Leaf(layout, time)
    return found
