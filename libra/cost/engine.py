"""One rollout instance from first principles: roofline of a decode step, experts read, prefill, KV capacity (the
paper's cost evaluator, without its fitted constants)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from libra.core.hardware import BYTES_BF16, Cluster, Model
from libra.cost.communication import all_reduce_s
from libra.cost.memory import kv_bytes_per_tok_per_gpu, kv_capacity_tok
from libra.cost.rates import Rates
from libra.cost.requests import Array

KERNELS_PER_LAYER = 10
"""Norms, projections, rotary, cache write, attention, activation of one decoder layer, counted."""
MOE_KERNELS = 5
"""More of an expert layer, counted: router, top-k, sorting by expert, two grouped products, activation and sum, where
a dense one has two products and an activation."""
MAX_SEQUENCES = 256
"""Running sequences of an engine: vLLM's long-standing default."""


@dataclass(frozen=True)
class Engine:
    """One rollout instance of `tp` GPUs."""

    cluster: Cluster
    model: Model
    tp: int
    rates: Rates = field(default_factory=Rates)

    @cached_property
    def capacity_tok(self) -> int:
        """KV tokens of the whole instance."""
        return kv_capacity_tok(self.cluster.gpu, self.model, self.tp)

    @cached_property
    def bytes_s(self) -> float:
        """Sustained memory bytes/s of *one* GPU; per-GPU bytes are divided by it, and by nothing else."""
        return self.cluster.gpu.memory_gb_s * 1e9 * self.rates.memory

    @cached_property
    def flop_s(self) -> float:
        """Sustained FLOP/s of the whole instance."""
        share = self.rates.moe if self.model.is_moe else self.rates.prefill
        return self.cluster.gpu.peak_tflops * 1e12 * share * self.tp

    @cached_property
    def kv_s_per_tok(self) -> float:
        """Time to read one context token in one decode step."""
        return kv_bytes_per_tok_per_gpu(self.model, self.tp) / self.bytes_s

    @property
    def num_kernels(self) -> int:
        """Kernels of one layer."""
        return KERNELS_PER_LAYER + (MOE_KERNELS if self.model.is_moe else 0)

    @cached_property
    def matmul_params(self) -> int:
        """Weights that one token is multiplied with: the input embedding is a look-up."""
        return self.model.num_active_params - (
            0 if self.model.tied_embeddings else self.model.vocab * self.model.hidden
        )

    @cached_property
    def experts_hit(self) -> Array:
        """Different experts that a step of 0, 1, 2 ... sequences needs, each chosen by its popularity."""
        popularity = np.arange(1, self.model.num_experts + 1) ** -self.rates.skew
        chosen = np.minimum(1.0, self.model.experts_per_tok * popularity / popularity.sum())
        return np.asarray((1 - (1 - chosen) ** np.arange(MAX_SEQUENCES + 1)[:, None]).sum(axis=1))

    def weight_read_bytes(self, batch: Any) -> Any:
        """Weight bytes that one step reads over the instance; the experts hit grow with the batch."""
        model = self.model
        if not model.is_moe:
            return self.matmul_params * BYTES_BF16 + 0.0 * batch
        hit = np.interp(batch, np.arange(len(self.experts_hit)), self.experts_hit)
        extra = model.num_layers * model.expert_params * (hit - model.experts_per_tok)
        return (self.matmul_params + np.maximum(0.0, extra)) * BYTES_BF16

    def step_s(self, batch: Any) -> Any:
        """A decode step of `batch` sequences less its KV reads: roofline, all-reduce, kernels, scheduler."""
        share = self.rates.moe_memory if self.model.is_moe else self.rates.memory
        read_s = self.weight_read_bytes(batch) / self.tp / (self.cluster.gpu.memory_gb_s * 1e9 * share)
        compute_s = 2 * self.matmul_params * batch / self.flop_s
        reduce_s = (
            2 * self.model.num_layers * all_reduce_s(batch * self.model.hidden * BYTES_BF16, self.tp, self.cluster)
        )
        kernels_s = self.model.num_layers * self.num_kernels * self.rates.kernel_s
        return np.maximum(read_s, compute_s) + reduce_s + kernels_s + self.rates.step_s + self.rates.sequence_s * batch

    def prefill_s(self, num_tok: Any, pairs: Any) -> Any:
        """Compute time of `num_tok` prefilled tokens with `pairs` query-key pairs, plus their all-reduces."""
        model = self.model
        attention = 4 * model.num_layers * model.num_heads * model.head_dim * pairs
        flops_s = (2 * self.matmul_params * num_tok + attention) / self.flop_s
        # Bandwidth only: chunks are long, so the latency floor of each all-reduce is paid by decode steps.
        one_tok_s = 2 * model.num_layers * _bandwidth_part_s(model.hidden * BYTES_BF16, self.tp, self.cluster)
        return flops_s + num_tok * one_tok_s


def _bandwidth_part_s(num_bytes: float, tp: int, cluster: Cluster) -> float:
    return float(all_reduce_s(num_bytes, tp, cluster) - all_reduce_s(0.0, tp, cluster))
