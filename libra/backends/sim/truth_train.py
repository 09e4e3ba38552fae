"""Training: packed micro-batches over data-parallel ranks, bubble, gradients, optimizer, old log-probs, memory.

A step is as slow as its slowest rank; a rank's micro-batches follow one another, and gradients meet once at the end
(Megatron, 1F1B). Attention is quadratic in each packed sequence, never in the micro-batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from libra.backends.sim.constants import Constants
from libra.backends.sim.truth_network import Network, hidden_bytes
from libra.backends.sim.truth_ops import Kernels, sequence_tile_area
from libra.backends.sim.truth_pipeline import one_f_one_b_s
from libra.core.errors import CapacityError
from libra.core.hardware import BYTES_BF16, Cluster, Model
from libra.core.plan import TrainLayout

GIB = 2**30
"""A data sheet's 80 GB of HBM are 80 GiB."""


@dataclass(frozen=True)
class TrainTime:
    """Seconds of one training step on the slowest rank; the parts add up to `total_s`.

    `busy_share` is the mean rank's kernel time over the step, log-probs included.
    """

    total_s: float
    compute_s: float
    comm_s: float
    bubble_s: float
    optimizer_s: float
    logprob_s: float
    fixed_s: float
    busy_share: float


@dataclass(frozen=True)
class _Pass:
    """One micro-batch on one stage: kernels and exposed communication, forward and (with recompute) backward."""

    forward_s: float
    forward_comm_s: float
    backward_s: float
    backward_comm_s: float
    head_s: float

    @property
    def both_s(self) -> float:
        return self.forward_s + self.forward_comm_s + self.backward_s + self.backward_comm_s


class TrainModel:
    """Times and memory of training `model` on `cluster`."""

    def __init__(
        self, cluster: Cluster, model: Model, constants: Constants, kernels: Kernels, network: Network
    ) -> None:
        self.cluster, self.model, self._c = cluster, model, constants
        self._kernels, self._network = kernels, network

    # -- memory ----------------------------------------------------------------------------------------------------

    def rank_bytes(self, layout: TrainLayout) -> float:
        """Peak bytes on one GPU: BF16 weights, FP32 gradients, sharded Adam state, activations and BF16 logits.

        Activations assume sequence parallelism and `pp` micro-batches in flight. With recompute a layer keeps its
        input only. Logits are kept once, in BF16 (fused cross-entropy).
        """
        model, c = self.model, self._c
        params, owned = self._rank_params(layout)
        state = params * (BYTES_BF16 + c.gradient_bytes) + owned * (c.state_bytes - BYTES_BF16)
        heads = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim
        layer = 4 * model.hidden + heads + 3 * model.ffn * max(1, model.experts_per_tok)
        kept = model.num_layers * (model.hidden if layout.recompute else layer)
        return state + layout.micro_batch_tok / layout.cp * BYTES_BF16 * (kept + layer + model.vocab) / layout.tp

    def check_fits(self, layout: TrainLayout) -> None:
        """Raises `CapacityError` when a layout cannot be built or does not fit into memory."""
        self._check_shape(layout)
        room = self.cluster.gpu.memory_gb * GIB * self._c.train_memory_share
        needed = self.rank_bytes(layout)
        if needed > room:
            raise CapacityError(
                f"training {self.model.name} needs {needed / GIB:.0f} GiB on each GPU of {room / GIB:.0f}",
                where="train",
                value=f"tp {layout.tp} dp {layout.dp} pp {layout.pp} cp {layout.cp} ep {layout.ep}",
                mend="raise tp, pp or dp, lower micro_batch_tok, or turn recompute on",
            )

    def _check_shape(self, layout: TrainLayout) -> None:
        model, per_node = self.model, self.cluster.gpus_per_node
        problems = (
            (layout.tp > per_node, f"tensor parallelism stays inside a node of {per_node} GPUs", layout.tp),
            (model.num_heads % layout.tp, f"tp does not divide the {model.num_heads} attention heads", layout.tp),
            (layout.pp > model.num_layers, f"more stages than the {model.num_layers} layers", layout.pp),
            (
                layout.vpp > 1 and (layout.pp == 1 or model.num_layers % (layout.pp * layout.vpp)),
                f"stages of the {model.num_layers} layers cannot be cut into that many chunks",
                layout.vpp,
            ),
            (layout.dp % layout.ep, "ep does not divide dp (experts live inside data parallelism)", layout.ep),
            (layout.ep > max(1, model.num_experts), f"more ranks than the {model.num_experts} experts", layout.ep),
            (layout.num_gpus > self.cluster.num_gpus, f"the cluster has {self.cluster.num_gpus} GPUs", layout.num_gpus),
        )
        for wrong, text, value in problems:
            if wrong:
                raise CapacityError(text, where="train", value=value)

    def _rank_params(self, layout: TrainLayout) -> tuple[float, float]:
        """Weights on one rank, and the part whose optimizer state it owns."""
        model = self.model
        experts = model.num_layers * model.num_experts * model.expert_params
        model_ranks = layout.tp * layout.pp
        held = (model.num_params - experts * (1.0 - 1.0 / layout.ep)) / model_ranks
        return held, model.num_params / (model_ranks * layout.dp * layout.cp)

    # -- time ------------------------------------------------------------------------------------------------------

    def step_s(self, layout: TrainLayout, lengths_tok: Sequence[int], *, logprobs: bool = True) -> TrainTime:
        """One optimizer step over sequences of these total lengths. `logprobs` adds the pass for old log-probs."""
        assert lengths_tok, "a step trains something"
        passes: dict[tuple[int, ...], _Pass] = {}
        ranks: list[list[_Pass]] = []
        for rank in balance(lengths_tok, layout.dp):
            micro_batches = pack(rank, layout.micro_batch_tok)
            for members in micro_batches:
                passes.setdefault(members, self._pass(layout, members))
            ranks.append([passes[members] for members in micro_batches])
        slowest = max(ranks, key=lambda rank: sum(p.both_s + p.head_s for p in rank))
        widest = max(slowest, key=lambda p: p.both_s)
        compute_s = sum(p.forward_s + p.backward_s + p.head_s for p in slowest)
        send_s = self._stage_send_s(layout, widest, lengths_tok)
        bubble_s = self._bubble_s(layout, slowest) + 2 * send_s
        comm_s = sum(p.forward_comm_s + p.backward_comm_s for p in slowest) + self._gradient_s(layout, slowest[-1])
        optimizer_s = self._optimizer_s(layout)
        logprob_s = self._logprob_s(layout, slowest) + send_s if logprobs else 0.0
        fixed_s = self._c.train_fixed_s
        total_s = compute_s + comm_s + bubble_s + optimizer_s + logprob_s + fixed_s
        extra = 1 if logprobs else 0
        busy_s = sum(
            (1 + extra) * p.forward_s + p.backward_s + (1 + extra / 3) * p.head_s for rank in ranks for p in rank
        )
        busy_share = busy_s / layout.dp / total_s
        return TrainTime(total_s, compute_s, comm_s, bubble_s, optimizer_s, logprob_s, fixed_s, busy_share)

    @staticmethod
    def _bubble_s(layout: TrainLayout, passes: Sequence[_Pass]) -> float:
        """Idle time of a stage; interleaved chunks divide it (Megatron-LM, arXiv 2104.04473)."""
        if layout.pp == 1:
            return 0.0
        times = [(p.forward_s + p.forward_comm_s, p.backward_s + p.backward_comm_s) for p in passes]
        return (one_f_one_b_s(times, layout.pp) - sum(map(sum, times))) / layout.vpp

    def _pass(self, layout: TrainLayout, members: tuple[int, ...]) -> _Pass:
        """One packed micro-batch. Backward: two products for each forward one, 2.5 attentions, the same exchanges."""
        c, model, kernels = self._c, self.model, self._kernels
        layers = model.num_layers / layout.pp
        tok = sum(members) / layout.cp
        area = sum(2.0 * length * length for length in members) / layout.cp
        linear_s = c.train_gemm_factor * kernels.linear_s(tok, layout.tp, layout.ep)
        elementwise_s = c.train_elementwise_factor * kernels.elementwise_s(tok, layout.tp)
        tiles = sum(map(sequence_tile_area, members)) / layout.cp
        attention_s = kernels.prefill_attention_s(tiles, max(members) / layout.cp, tok, layout.tp)
        forward_s = layers * (linear_s + attention_s + elementwise_s)
        backward_attention_s = c.backward_attention_factor * kernels.attention_s(
            area, layout.tp, c.backward_compute_share
        )
        backward_s = layers * (2.0 * (linear_s + elementwise_s) + backward_attention_s)
        comm_s = layers * self._layer_comm_s(layout, tok)
        again_s, again_comm_s = (forward_s, comm_s) if layout.recompute else (0.0, 0.0)
        head_s = 3.0 * kernels.head_s(tok, layout.tp)
        return _Pass(forward_s, comm_s, backward_s + again_s, comm_s + again_comm_s, head_s)

    def _layer_comm_s(self, layout: TrainLayout, tok: float) -> float:
        """Exposed exchanges of one layer forward: two all-reduces over tp, keys and values over cp, tokens over ep."""
        model, network = self.model, self._network
        seconds = 2.0 * network.nccl_all_reduce_s(hidden_bytes(model, tok), layout.tp)
        if layout.cp > 1:
            kv_bytes = model.kv_bytes_per_tok / model.num_layers * tok * (layout.cp - 1) / layout.tp
            seconds += kv_bytes / network.rank_bytes_per_s(layout.cp, layout.tp)
        if layout.ep > 1:
            away = (layout.ep - 1) / layout.ep
            copies = 2.0 * model.experts_per_tok * hidden_bytes(model, tok) * away / layout.tp
            seconds += copies / network.rank_bytes_per_s(layout.ep, layout.replica_gpus)
        return seconds

    def _stage_send_s(self, layout: TrainLayout, widest: _Pass, lengths_tok: Sequence[int]) -> float:
        """Hidden states over the stage boundaries, exposed while the pipeline fills; zero without a pipeline."""
        if layout.pp == 1 or not widest.both_s:
            return 0.0
        tok = max(layout.micro_batch_tok, max(lengths_tok)) / layout.cp
        message = hidden_bytes(self.model, tok) / layout.tp
        return (layout.pp - 1) * message / self._network.rank_bytes_per_s(layout.pp, layout.tp * layout.cp)

    def _gradient_s(self, layout: TrainLayout, last: _Pass) -> float:
        """What of the gradients' and weights' traffic does not hide behind the last micro-batch."""
        c = self._c
        params, _ = self._rank_params(layout)
        traffic_s = self._network.gradient_s(params * c.gradient_bytes, params * BYTES_BF16, layout)
        return max(c.gradient_exposed_share * traffic_s, traffic_s - c.gradient_overlap_share * last.both_s)

    def _optimizer_s(self, layout: TrainLayout) -> float:
        c = self._c
        _, owned = self._rank_params(layout)
        return c.optimizer_traffic_bytes * owned / (c.optimizer_memory_share * self._kernels.memory)

    def _logprob_s(self, layout: TrainLayout, passes: Sequence[_Pass]) -> float:
        """A forward pass over the same micro-batches, head included."""
        forwards = [p.forward_s + p.forward_comm_s for p in passes]
        return sum(forwards) + sum(p.head_s for p in passes) / 3.0 + (layout.pp - 1) * max(forwards)


def balance(lengths_tok: Sequence[int], dp: int) -> list[list[int]]:
    """Sequences to ranks, longest first to the rank with the fewest tokens."""
    ranks: list[list[int]] = [[] for _ in range(dp)]
    heap = [(0, rank) for rank in range(dp)]
    for length in sorted(lengths_tok, reverse=True):
        load, rank = heapq.heappop(heap)
        ranks[rank].append(length)
        heapq.heappush(heap, (load + length, rank))
    return ranks


def pack(lengths_tok: Sequence[int], budget_tok: int) -> list[tuple[int, ...]]:
    """First fit, longest first, into micro-batches of `budget_tok`; a longer sequence gets one of its own."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for length in sorted(lengths_tok, reverse=True):
        for index, room in enumerate(rooms):
            if length <= room:
                bins[index].append(length)
                rooms[index] -= length
                break
        else:
            bins.append([length])
            rooms.append(budget_tok - length)
    return [tuple(members) for members in bins]
