"""Training time of one step for a layout: FLOPs at an efficiency, recompute, pipeline bubble, and communication by
link; never above the peak of the hardware (the paper's cost evaluator)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from libra.core.hardware import BYTES_BF16, Cluster, Model
from libra.core.plan import TrainLayout
from libra.cost.communication import (
    COLLECTIVE_LATENCY_S,
    GB,
    LINK_EFFICIENCY,
    all_reduce_s,
    all_to_all_s,
    gradient_sync_s,
    link_bytes_s,
    network_bytes_s,
    ring_s,
)
from libra.cost.memory import kv_bytes_per_tok_per_gpu
from libra.cost.rates import Rates
from libra.cost.requests import Batches

OPTIMIZER_TRAFFIC_BYTES = 30
"""Adam reads and writes three FP32 states (24), reads a gradient (4) and writes a BF16 weight (2)."""
OPTIMIZER_BANDWIDTH = 0.7
"""Share of peak memory bandwidth of a streaming kernel (assumed)."""
NUM_SENDS = 3
"""Times that hidden states cross a stage boundary: forward, backward, old log-probabilities."""


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
    """Packed micro-batches of one replica; at least one, at most its sequences.

    Interleaving wants a multiple of `pp` (Megatron's schedule); 0 where there are too few sequences for that.
    """
    packed = ceil(load.total_tok / (dp * layout.micro_batch_tok))
    most = max(1, ceil(load.num / dp))
    num = max(1, min(packed, most))
    if layout.vpp == 1:
        return num
    rounded = ceil(num / layout.pp) * layout.pp
    return rounded if rounded <= most else most // layout.pp * layout.pp


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
    passes, num_micro = num_passes(layout), max(1, num_micro_batches(load, layout, dp))
    stage = stage_time(cluster, model, layout, load, dp, passes, num_micro, rates)
    idle = idle_ratio(layout.pp, layout.vpp, num_micro, stage.longest_share)
    work_s = stage.total_s * (1 + idle) + pipeline_s(cluster, model, layout, stage.tok, num_micro, rates)
    constant_s = gradient_sync_s(cluster, model, layout, dp, rates) + optimizer_s(cluster, model, layout.num_gpus)
    constant_s += rates.train_fixed_s
    return TrainTime(work_s, constant_s, stage.floor_s, idle / (1 + idle), stage.tensor_s / stage.compute_s)


def idle_ratio(pp: int, vpp: int, num_micro: int, longest_share: float = 0.0) -> float:
    """Bubble over work, `(pp - 1) / (vpp m)`: fill and drain of 1F1B, cut by interleaving (arXiv 2104.04473, 2.2).

    That is for equal micro-batches. A stage waits `pp - 1` times for the widest one, which holds at least the longest
    sequence, `longest_share` of the work.
    """
    return (pp - 1) / vpp * max(1 / num_micro, longest_share)


@dataclass(frozen=True)
class StageTime:
    """Seconds of one pipeline stage of the busiest replica, bubble apart; `tok` tokens pass it, `floor_s` at peak.

    `longest_flop_share` and `longest_tok_share` are the longest sequence's parts.
    """

    tok: float
    longest_flop_share: float
    longest_tok_share: float
    floor_s: float
    compute_s: float
    tensor_s: float
    other_s: float

    @property
    def total_s(self) -> float:
        return self.compute_s + self.tensor_s + self.other_s

    @property
    def longest_share(self) -> float:
        """The longest sequence's part of the time: traffic goes by tokens, compute by squares too."""
        traffic_s = self.tensor_s + self.other_s
        return (self.longest_flop_share * self.compute_s + self.longest_tok_share * traffic_s) / self.total_s


def stage_time(
    cluster: Cluster,
    model: Model,
    layout: TrainLayout,
    load: TrainLoad,
    dp: int,
    passes: int,
    num_micro: int,
    rates: Rates,
) -> StageTime:
    """`passes` forward equivalents over `num_micro` micro-batches; grows with either. Nothing is overlapped."""
    tok = load.busiest_tok(dp)
    square = max(load.square_tok / dp, load.longest_tok**2)
    forward = forward_flops(model, tok, square)
    flops = passes * forward
    peak = cluster.gpu.peak_tflops * 1e12 * layout.replica_gpus
    layer_tok = tok * model.num_layers / (layout.pp * layout.cp)
    calls = num_micro * model.num_layers / layout.pp
    return StageTime(
        tok,
        forward_flops(model, load.longest_tok, load.longest_tok**2) / forward,
        load.longest_tok / tok,
        flops / peak,
        flops / (peak * train_efficiency(model, rates)),
        tensor_s(cluster, model, layout.tp, passes, layer_tok, calls, rates),
        stream_s(cluster, model, passes * tok, layout.replica_gpus, rates)
        + expert_s(cluster, model, layout, passes, layer_tok, calls, rates)
        + context_s(cluster, model, layout, passes, layer_tok, calls, rates),
    )


def stream_s(cluster: Cluster, model: Model, tok: float, num_gpus: int, rates: Rates) -> float:
    """What the kernels between the products take for `tok` tokens on `num_gpus`."""
    return forward_stream_bytes(model, tok) / (cluster.gpu.memory_gb_s * GB * rates.train_memory * num_gpus)


def tensor_s(
    cluster: Cluster, model: Model, tp: int, passes: int, layer_tok: float, calls: float, rates: Rates
) -> float:
    """Two all-reduces a layer and pass (a reduce-scatter and an all-gather with sequence parallelism cost the same).

    `layer_tok` are tokens times layers of one rank, before `tp`; `calls` layers times micro-batches. Backward is two
    forward equivalents but communicates once.
    """
    num = 2 * (passes - 1)
    seconds = float(all_reduce_s(num * layer_tok * model.hidden * BYTES_BF16, tp, cluster, num * calls))
    return seconds * LINK_EFFICIENCY / rates.train_link


def expert_s(
    cluster: Cluster, model: Model, layout: TrainLayout, passes: int, layer_tok: float, calls: float, rates: Rates
) -> float:
    """Dispatch and combine of each MoE layer and pass."""
    if not model.is_moe:
        return 0.0
    num = 2 * (passes - 1)
    rank_bytes = num * layer_tok / layout.tp * model.hidden * BYTES_BF16 * model.experts_per_tok
    return all_to_all_s(rank_bytes, layout.ep, layout.replica_gpus, cluster, rates, num * calls)


def context_s(
    cluster: Cluster, model: Model, layout: TrainLayout, passes: int, layer_tok: float, calls: float, rates: Rates
) -> float:
    """Ring attention (arXiv 2310.01889): keys and values go around once a pass, in backward with their gradients too,
    so that it counts as the two passes it is."""
    layer_bytes = kv_bytes_per_tok_per_gpu(model, layout.tp) / model.num_layers
    return ring_s(passes * layer_tok * layer_bytes, layout.cp, layout.tp, cluster, rates, passes * calls)


def pipeline_s(cluster: Cluster, model: Model, layout: TrainLayout, tok: float, num_micro: int, rates: Rates) -> float:
    """Hidden states between stages, in a node when the replica fits one: forward, backward and log-probabilities.

    Recompute sends nothing again; each of `vpp` chunks sends its own (arXiv 2104.04473, 2.2).
    """
    if layout.pp == 1:
        return 0.0
    in_node = layout.replica_gpus <= cluster.gpus_per_node
    rate = link_bytes_s(cluster) if in_node else network_bytes_s(cluster, rates) / cluster.gpus_per_node
    sends = NUM_SENDS * layout.vpp
    rank_bytes = tok * model.hidden * BYTES_BF16 / (layout.tp * layout.cp)
    return sends * (num_micro * COLLECTIVE_LATENCY_S + rank_bytes / rate)


def optimizer_s(cluster: Cluster, model: Model, num_gpus: int) -> float:
    """Adam's update, sharded over all ranks."""
    traffic_bytes = OPTIMIZER_TRAFFIC_BYTES * model.num_params / num_gpus
    return traffic_bytes / (cluster.gpu.memory_gb_s * GB * OPTIMIZER_BANDWIDTH)
