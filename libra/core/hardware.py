"""Clusters and models as plain figures: datasheets only; calibrated constants belong to the simulator's truth."""

from __future__ import annotations

import msgspec

BYTES_BF16 = 2


class Gpu(msgspec.Struct, frozen=True):
    """Datasheet of one accelerator. `link_gb_s` is the one-way bandwidth to its peers in the node.

    `measured` is the path of a table of measured points; without one the backend looks for its own of that name.
    """

    name: str
    peak_tflops: float
    memory_gb: float
    memory_gb_s: float
    link_gb_s: float
    measured: str = ""


class Cluster(msgspec.Struct, frozen=True):
    """`num_nodes` equal nodes. `network_gb_s` is one node's one-way bandwidth to the others, under `network`'s name."""

    name: str
    num_nodes: int
    gpus_per_node: int
    gpu: Gpu
    network: str
    network_gb_s: float
    source: str = ""

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node


class Model(msgspec.Struct, frozen=True):
    """A decoder-only transformer with grouped-query attention. `num_experts` 0 means dense; `ffn` is per expert."""

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_context_tok: int
    tied_embeddings: bool = False
    num_experts: int = 0
    experts_per_tok: int = 0
    source: str = ""

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def attention_params(self) -> int:
        """Weights of one layer's attention: q, k, v and output projections."""
        q = self.num_heads * self.head_dim
        kv = self.num_kv_heads * self.head_dim
        return self.hidden * (q + 2 * kv) + q * self.hidden

    @property
    def expert_params(self) -> int:
        """Weights of one gated feed-forward block (three matrices)."""
        return 3 * self.hidden * self.ffn

    @property
    def embedding_params(self) -> int:
        return self.vocab * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def num_params(self) -> int:
        router = self.hidden * self.num_experts
        layer = self.attention_params + self.expert_params * max(1, self.num_experts) + router
        return self.num_layers * layer + self.embedding_params

    @property
    def num_active_params(self) -> int:
        """Weights that one token passes through, embeddings included."""
        router = self.hidden * self.num_experts
        layer = self.attention_params + self.expert_params * max(1, self.experts_per_tok) + router
        return self.num_layers * layer + self.embedding_params

    @property
    def weight_bytes(self) -> int:
        """BF16 weights of the whole model."""
        return self.num_params * BYTES_BF16

    @property
    def kv_bytes_per_tok(self) -> int:
        """BF16 keys and values of one token over all layers, before tensor parallelism."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * BYTES_BF16
