"""Training time of one step for a layout: FLOPs at an efficiency, recompute, pipeline bubble, and communication by
link; never above the peak of the hardware (the paper's cost evaluator)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from libra.core.hardware import BYTES_BF16, Cluster, Model
from libra.core.plan import TrainLayout
from libra.cost.communication import (
    GB,
    LINK_EFFICIENCY,
    all_reduce_s,
    all_to_all_s,
    gradient_sync_s,
    link_bytes_s,
    network_bytes_s,
)
from libra.cost.rates import Rates
from libra.cost.requests import Batches

OPTIMIZER_TRAFFIC_BYTES = 30
"""Adam reads and writes three FP32 states (24), reads a gradient (4) and writes a BF16 weight (2)."""
OPTIMIZER_BANDWIDTH = 0.7
"""Share of peak memory bandwidth of a streaming kernel (assumed)."""


@dataclass(frozen=True)
class TrainLoad:
    """One step's sequences: `num` of them, their tokens, the sum of squared lengths, the longest one."""

    num: float
    total_tok: float
    square_tok: float
    longest_tok: float
    ranked_tok: tuple[float, ...] = ()
    """Expected lengths of the longest sequences, longest first, as far as they are known one by one."""

    def at(self, rank: int) -> float:
        """Length of the sequence of that rank, from 0; 0 beyond what is known."""
        return self.ranked_tok[rank] if 0 <= rank < len(self.ranked_tok) else 0.0

    def busiest_tok(self, dp: int) -> float:
        """Least tokens of the busiest of `dp` ranks: the even share, the longest sequence, or the two or three that
        must meet on a rank because one more is as long than there are ranks (the bounds of P||Cmax; longest-first
        balancing, which trainers use, comes close to them)."""
        pair, triple = self.at(dp - 1) + self.at(dp), sum(self.at(2 * dp - i) for i in range(3))
        return max(self.total_tok / dp, self.longest_tok, pair, triple if dp > 1 else 0.0)


@dataclass(frozen=True)
class TrainTime:
    """Seconds of a step: `work_s` grows with the tokens, `constant_s` (gradients, optimizer) does not.

    `floor_s` is the same FLOPs at peak, below which no correction may bring it. `bubble` is the pipeline's idle share,
    `comm_ratio` tensor-parallel communication over compute.
    """

    work_s: float
    constant_s: float
    floor_s: float
    bubble: float
    comm_ratio: float

    @property
    def total_s(self) -> float:
        return self.work_s + self.constant_s


def train_load(batches: Batches) -> TrainLoad:
    """The mean batch as training sees it; its longest sequence is the mean of the batches' longest."""
    requests, num = batches.requests, batches.num
    longest_tok = requests.total_tok[batches.largest(requests.total_tok)]
    return TrainLoad(
        requests.batch / num,
        requests.sum("total_tok") / num,
        requests.sum("square_tok") / num,
        float(longest_tok.mean()),
        _ranked_tok(batches),
    )


def _ranked_tok(batches: Batches) -> tuple[float, ...]:
    """Mean over batches of each batch's sequences in falling order, down to the first point that holds several."""
    requests, num = batches.requests, batches.num
    alone = requests.weight.reshape(num, -1)[0][::-1] == 1.0
    singles = len(alone) if alone.all() else int(alone.argmin())
    return tuple(requests.total_tok.reshape(num, -1).mean(axis=0)[::-1][:singles].tolist())


def forward_flops(model: Model, num_tok: float, square_tok: float) -> float:
    """One forward pass; attention is causal, so half of the squared length. The input embedding is a look-up."""
    embedding = 0 if model.tied_embeddings else model.vocab * model.hidden
    linear = 2 * (model.num_active_params - embedding) * num_tok
    return linear + 2 * model.num_layers * model.num_heads * model.head_dim * square_tok


def forward_stream_bytes(model: Model, num_tok: float) -> float:
    """Bytes that the kernels between the products read and write in one forward pass, counted: two norms (read, write)
    and two residuals (two reads, write) of the hidden state, rotary on queries and keys, the gated activation (two
    reads, write), and with experts the tokens' way to them and back."""
    rotary = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim
    copies = max(1, model.experts_per_tok)
    sent = 4 * copies * model.hidden if model.is_moe else 0
    return BYTES_BF16 * model.num_layers * num_tok * (10 * model.hidden + rotary + 3 * model.ffn * copies + sent)


def train_efficiency(model: Model, rates: Rates) -> float:
    """Share of peak FLOP/s in training."""
    return rates.moe_train if model.is_moe else rates.train


def least_train_s(cluster: Cluster, model: Model, load: TrainLoad, num_gpus: int, rates: Rates) -> float:
    """Seconds that no layout of `num_gpus` is below: the compute alone, without recompute, evenly spread."""
    flops = num_passes(TrainLayout(1, 1, recompute=False)) * forward_flops(model, load.total_tok, load.square_tok)
    compute_s = flops / (num_gpus * cluster.gpu.peak_tflops * 1e12 * train_efficiency(model, rates))
    return compute_s + rates.train_fixed_s


def num_passes(layout: TrainLayout) -> int:
    """Forward equivalents of a GRPO update: forward, backward (two), old log-probabilities, recompute."""
    return 4 + (1 if layout.recompute else 0)


def num_micro_batches(load: TrainLoad, layout: TrainLayout, dp: int) -> int:
    """Packed micro-batches of one replica; at least one, at most its sequences."""
    packed = ceil(load.total_tok / (dp * layout.micro_batch_tok))
    return max(1, min(packed, ceil(load.num / dp)))


def train_time(
    cluster: Cluster,
    model: Model,
    layout: TrainLayout,
    load: TrainLoad,
    dp: int | None = None,
    rates: Rates | None = None,
) -> TrainTime:
    """Step time of `layout`; `dp` counts joined hybrid replicas too (default: the layout's own)."""
    dp, rates = dp or layout.dp, rates or Rates()
    tok = load.busiest_tok(dp)
    square = max(load.square_tok / dp, load.longest_tok**2)
    flops = num_passes(layout) * forward_flops(model, tok, square)
    peak = cluster.gpu.peak_tflops * 1e12 * layout.replica_gpus
    compute_s = flops / (peak * train_efficiency(model, rates))
    stream_s = num_passes(layout) * forward_stream_bytes(model, tok)
    stream_s /= cluster.gpu.memory_gb_s * GB * rates.train_memory * layout.replica_gpus
    tensor_s = _tensor_s(cluster, model, layout, tok) * LINK_EFFICIENCY / rates.train_link
    stage_s = compute_s + stream_s + tensor_s + _expert_s(cluster, model, layout, tok)
    num_micro = num_micro_batches(load, layout, dp)
    bubble = (layout.pp - 1) / (layout.pp - 1 + num_micro)
    work_s = stage_s / (1 - bubble) + _pipeline_s(cluster, model, layout, tok)
    optimizer_s = OPTIMIZER_TRAFFIC_BYTES * model.num_params / layout.num_gpus
    optimizer_s /= cluster.gpu.memory_gb_s * GB * OPTIMIZER_BANDWIDTH
    constant_s = gradient_sync_s(cluster, model, layout, dp) + optimizer_s + rates.train_fixed_s
    return TrainTime(work_s, constant_s, flops / peak, bubble, tensor_s / compute_s)


def _tensor_s(cluster: Cluster, model: Model, layout: TrainLayout, tok: float) -> float:
    """Two all-reduces a layer and pass (a reduce-scatter and an all-gather with sequence parallelism cost the same)."""
    tok_bytes = tok / layout.cp * model.hidden * BYTES_BF16
    # Backward is two forward equivalents but communicates once.
    num = 2 * (num_passes(layout) - 1) * model.num_layers / layout.pp
    return float(num * all_reduce_s(tok_bytes, layout.tp, cluster))


def _expert_s(cluster: Cluster, model: Model, layout: TrainLayout, tok: float) -> float:
    """Dispatch and combine of each MoE layer and pass."""
    if not model.is_moe:
        return 0.0
    rank_bytes = tok / layout.tp * model.hidden * BYTES_BF16 * model.experts_per_tok
    ranks_per_node = max(1, cluster.gpus_per_node // (layout.tp * layout.pp * layout.cp))
    num = 2 * (num_passes(layout) - 1) * model.num_layers / layout.pp
    return num * all_to_all_s(rank_bytes, layout.ep, ranks_per_node, cluster)


def _pipeline_s(cluster: Cluster, model: Model, layout: TrainLayout, tok: float) -> float:
    """Activations between stages, in a node when the replica fits one."""
    if layout.pp == 1:
        return 0.0
    in_node = layout.replica_gpus <= cluster.gpus_per_node
    rate = link_bytes_s(cluster) if in_node else network_bytes_s(cluster) / cluster.gpus_per_node
    return (num_passes(layout) - 1) * tok * model.hidden * BYTES_BF16 / layout.tp / rate
