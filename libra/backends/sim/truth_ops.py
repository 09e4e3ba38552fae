"""Kernel times of one GPU: GEMM, grouped MoE, elementwise and attention, as smooth roofs fitted to A100 tables.

The formulas take peak and bandwidth from the cluster's data sheet, so a GPU without a table
of its own (gpus/) keeps A100's efficiencies, and a run on it says so (range.py).
"""

from __future__ import annotations

import math

from libra.backends.sim.constants import Constants
from libra.core.hardware import BYTES_BF16, Gpu, Model

PAGED_TILE_TOK = (64, 128)
"""Rows of queries and keys of a tile where the KV cache is paged (FlashAttention 2's split-KV kernel, which vLLM always
takes). Rows are computed in whole tiles, whatever part of them is used."""
PLAIN_TILE_TOK = (128, 64)
"""The same where keys lie in one piece: training, heads of 128."""


def tile_area(context_tok: int, chunk_tok: int) -> int:
    """FLOP per element of a chunk's heads after a paged context: 4 for each query row and key of the tiles it touches.

    Every second row of tiles ends in the same tile of keys as the one before it.
    """
    full = (chunk_tok - 1) // 64
    odd, even = (full + 1) // 2, full // 2
    first_tok, second_tok = -(-(context_tok + 64) // 128) * 128, -(-(context_tok + 128) // 128) * 128
    keys = odd * first_tok + 64 * odd * (odd - 1) + even * second_tok + 64 * even * (even - 1)
    return 4 * 64 * (keys - (-(context_tok + chunk_tok) // 128) * 128)


def sequence_tile_area(length_tok: int) -> int:
    """The same for a whole sequence in one piece."""
    rows = -(-length_tok // 128)
    return 4 * 128 * (64 * rows * (rows - 1) - (-length_tok // 64) * 64)


def chunk_attention_s(compute_s: float, serial_s: float, memory_s: float) -> float:
    """Smooth maximum of what bounds the attention of a step that prefills."""
    return math.sqrt(compute_s * compute_s + serial_s * serial_s + memory_s * memory_s)


class Kernels:
    """Times of one layer or of the head on one rank of a tensor-parallel group; `m` counts tokens in the batch."""

    def __init__(self, gpu: Gpu, model: Model, constants: Constants) -> None:
        self.model, self._c = model, constants
        self.peak = gpu.peak_tflops * 1e12
        self.memory = gpu.memory_gb_s * 1e9

    def gemm_s(self, m: float, n: float, k: float) -> float:
        """BF16 product of (m, k) and (k, n): overhead plus the smooth maximum of compute and memory time."""
        c = self._c
        compute_s = 2.0 * m * n * k / (c.gemm_compute_share * self.peak)
        memory_s = BYTES_BF16 * (m * k + k * n + m * n) / (c.gemm_memory_share * self.memory)
        return c.gemm_overhead_s + (compute_s**c.gemm_power + memory_s**c.gemm_power) ** (1.0 / c.gemm_power)

    def linear_s(self, m: float, tp: int, ep: int = 1) -> float:
        """All matrix products of one layer, attention projections and feed-forward; KV heads are replicated past tp."""
        model = self.model
        heads = model.num_heads / tp
        kv_heads = max(1.0, model.num_kv_heads / tp)
        attention_s = self.gemm_s(m, (heads + 2 * kv_heads) * model.head_dim, model.hidden)
        attention_s += self.gemm_s(m, model.hidden, heads * model.head_dim)
        if model.is_moe:
            return attention_s + self.gemm_s(m, model.num_experts, model.hidden) + self.moe_s(m, tp, ep)
        up_s = self.gemm_s(m, 2 * model.ffn / tp, model.hidden)
        return attention_s + up_s + self.gemm_s(m, model.hidden, model.ffn / tp)

    def moe_s(self, m: float, tp: int, ep: int = 1) -> float:
        """Grouped feed-forward of one layer: reads the experts that are hit, computes `experts_per_tok` a token.

        With `ep` a rank holds 1/ep of the experts and receives as many token copies as it sends (balanced routing).
        """
        c, model = self._c, self.model
        drawn = (m * ep) ** c.moe_hit_power
        num_hit = model.num_experts * (1.0 - (1.0 - model.experts_per_tok / model.num_experts) ** drawn) / ep
        memory_s = num_hit * BYTES_BF16 * model.expert_params / tp / (c.moe_memory_share * self.memory)
        flops = 2.0 * m * model.experts_per_tok * model.expert_params / tp
        compute_s = flops / (c.moe_compute_share * self.peak)
        return c.moe_overhead_s + (memory_s**c.moe_power + compute_s**c.moe_power) ** (1.0 / c.moe_power)

    def elementwise_s(self, m: float, tp: int) -> float:
        """Norms, rotary, residual and activation of one layer; a grouped MoE kernel includes its activation."""
        c, model = self._c, self.model
        ffn = 0 if model.is_moe else model.ffn
        num_bytes = m * (10 * model.hidden + 3 * ffn / tp) * BYTES_BF16
        return c.elementwise_kernels * c.elementwise_overhead_s + num_bytes / (c.elementwise_memory_share * self.memory)

    def head_s(self, m: float, tp: int) -> float:
        """Logits of `m` tokens."""
        return self.gemm_s(m, self.model.vocab / tp, self.model.hidden)

    def prefill_rates_s(self, tp: int) -> tuple[float, float, float]:
        """Seconds of one layer's prefill attention per unit of tile area, per key of the longest row of tiles (one tile
        after another), and per token (heads read and written)."""
        c, heads = self._c, self.model.num_heads * self.model.head_dim / tp
        row_bytes = 4 * BYTES_BF16 * heads
        return (
            heads / (c.prefill_tile_share * self.peak),
            c.prefill_key_s,
            row_bytes / (c.prefill_memory_share * self.memory),
        )

    def prefill_attention_s(self, area: float, longest_tok: float, num_tok: float, tp: int) -> float:
        """Causal attention of one layer over sequences of `num_tok` tokens together, without the launch."""
        area_s, key_s, row_s = self.prefill_rates_s(tp)
        return chunk_attention_s(area * area_s, longest_tok * key_s, num_tok * row_s)

    def attention_s(self, area: float, tp: int, compute_share: float) -> float:
        """Causal attention of one layer; `area` sums 4 c (context + c/2) over chunks of c tokens."""
        return area * self.model.num_heads * self.model.head_dim / (tp * compute_share * self.peak)
