"""What fits: bytes per GPU of an engine and of a training rank, and the KV cache of an instance in tokens.

Everything here is per GPU unless its name says instance, so that no whole-instance figure meets a per-GPU one.
"""

from __future__ import annotations

from libra.core.hardware import BYTES_BF16, Gpu, Model
from libra.core.plan import TrainLayout

GB = 1e9
GIB = 2**30
"""Unit of a data sheet's memory: an A100 of "80 GB" has 81,920 MiB by nvidia-smi."""
USABLE_SHARE = 0.9
"""Share of the memory that an engine or trainer may fill: vLLM's own default; the rest is context and fragments."""
ENGINE_RESERVE_BYTES = 2 * GB
"""Activations and graphs of an engine, a round figure for batches of some thousand tokens (assumed)."""
WEIGHT_AND_GRADIENT_BYTES = 2 + 4
"""BF16 weights and FP32 accumulated gradients (Megatron's default)."""
OPTIMIZER_BYTES = 12
"""FP32 master weights and Adam's two moments, sharded over data parallelism."""
LOGIT_BYTES = 4 + 4
"""FP32 logits of a token's vocabulary entry and their gradient."""


def usable_bytes(gpu: Gpu) -> float:
    """Bytes of one GPU that a plan may count on."""
    return gpu.memory_gb * GIB * USABLE_SHARE


def kv_bytes_per_tok_per_gpu(model: Model, tp: int) -> float:
    """Keys and values of one token on one GPU; heads are replicated once `tp` exceeds their number."""
    return model.kv_bytes_per_tok / min(tp, model.num_kv_heads)


def kv_capacity_tok(gpu: Gpu, model: Model, tp: int) -> int:
    """Tokens that the KV cache of one *instance* holds; 0 when the weights do not fit."""
    free = usable_bytes(gpu) - ENGINE_RESERVE_BYTES - model.weight_bytes / tp
    return max(0, int(free / kv_bytes_per_tok_per_gpu(model, tp)))


def engine_bytes_per_gpu(gpu: Gpu, model: Model, tp: int, context_tok: int) -> float:
    """Least bytes on one GPU for an engine that can serve one sequence of `context_tok`."""
    return model.weight_bytes / tp + ENGINE_RESERVE_BYTES + context_tok * kv_bytes_per_tok_per_gpu(model, tp)


def expert_params_per_gpu(model: Model, layout: TrainLayout) -> float:
    """Expert weights on one training rank; 0 for a dense model."""
    return model.num_layers * model.num_experts * model.expert_params / (layout.ep * layout.tp * layout.pp)


def train_params_per_gpu(model: Model, layout: TrainLayout) -> float:
    """Weights on one training rank: experts are split over `ep` beside `tp` and `pp`."""
    experts = expert_params_per_gpu(model, layout)
    return model.num_params / (layout.tp * layout.pp) - experts * (layout.ep - 1)


def activation_bytes_per_gpu(model: Model, layout: TrainLayout) -> float:
    """Activations of the micro-batches in flight on the first stage, with sequence parallelism over `tp`.

    A layer keeps its input only (full recompute) or everything but attention scores (arXiv 2205.05198, with
    FlashAttention). `in_flight_layers` says for how many. One layer's working set and the logits come on top.
    """
    tok = layout.micro_batch_tok / layout.cp
    heads = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    ffn = 3 * model.ffn * max(1, model.experts_per_tok)
    layer_bytes = BYTES_BF16 * (4 * model.hidden + heads + ffn)
    kept_bytes = BYTES_BF16 * model.hidden if layout.recompute else layer_bytes
    logits = LOGIT_BYTES * model.vocab
    return tok * (in_flight_layers(model, layout) * kept_bytes + layer_bytes + logits) / layout.tp


def in_flight_layers(model: Model, layout: TrainLayout) -> float:
    """Layers whose activations of a micro-batch the first stage holds: all of the model's with 1F1B, where `pp`
    micro-batches are under way in `1 / pp` of them; interleaving adds `(pp - 1) / (pp vpp)` (arXiv 2205.05198)."""
    if layout.vpp == 1:
        return model.num_layers
    return model.num_layers * (1 + (layout.pp - 1) / (layout.pp * layout.vpp))


def train_bytes_per_gpu(model: Model, layout: TrainLayout) -> float:
    """Peak bytes of one training rank: weights, gradients, sharded optimizer, activations.

    The optimizer is sharded over all ranks with the same weights, `dp cp` of them. Only `dp cp / ep` hold the same
    experts, so their state is sharded that much less.
    """
    params, experts = train_params_per_gpu(model, layout), expert_params_per_gpu(model, layout)
    optimizer = OPTIMIZER_BYTES * (params - experts + experts * layout.ep) / (layout.dp * layout.cp)
    return params * WEIGHT_AND_GRADIENT_BYTES + optimizer + activation_bytes_per_gpu(model, layout)


def train_fits(gpu: Gpu, model: Model, layout: TrainLayout) -> bool:
    return train_bytes_per_gpu(model, layout) <= usable_bytes(gpu)


def engine_fits(gpu: Gpu, model: Model, tp: int, context_tok: int) -> bool:
    """Whether an instance of `tp` holds the weights and at least one sequence of the full length."""
    return engine_bytes_per_gpu(gpu, model, tp, context_tok) <= usable_bytes(gpu)
