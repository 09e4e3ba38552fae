"""Time of the collectives that a layout needs, from datasheet bandwidths: all-reduce of tensor parallelism, all-to-all
of experts, gradients across data parallelism, weights to the engines (the paper's cost evaluator)."""

from __future__ import annotations

from typing import Any

from libra.core.hardware import BYTES_BF16, Cluster, Model
from libra.core.plan import TrainLayout
from libra.cost.memory import train_params_per_gpu
from libra.cost.rates import Rates

LINK_EFFICIENCY = 0.7
"""Share of a datasheet link that a ring sustains: protocol and pipeline fill take a quarter to a third (assumed)."""
COLLECTIVE_LATENCY_S = 10e-6
"""Floor of one collective in a node: a kernel launch and a few NVLink hops, round figure (assumed)."""
GRADIENT_BYTES = 4
"""Gradients are accumulated and reduced in FP32, Megatron's default for BF16 training."""
GB = 1e9


def link_bytes_s(cluster: Cluster) -> float:
    """Sustained one-way bytes/s of one GPU to its peers in the node."""
    return cluster.gpu.link_gb_s * GB * LINK_EFFICIENCY


def network_bytes_s(cluster: Cluster, rates: Rates) -> float:
    """Sustained one-way bytes/s of one *node* to the others, shared by its GPUs."""
    return cluster.network_gb_s * GB * rates.network


def gpus_on_network(cluster: Cluster, replica_gpus: int) -> int:
    """GPUs of one node that share its network in training: those of whole replicas, which lie together."""
    num = cluster.gpus_per_node
    return num if replica_gpus >= num else num // replica_gpus * replica_gpus


def all_reduce_s(num_bytes: Any, num_ranks: int, cluster: Cluster, num_calls: float = 1) -> Any:
    """Ring all-reduce inside a node: `2 (n-1)/n` of the bytes over each link. Scalars or arrays; 0 for one rank.

    `num_bytes` are those of all calls together.
    """
    if num_ranks <= 1:
        return 0.0 * num_bytes
    return num_calls * COLLECTIVE_LATENCY_S + 2 * (num_ranks - 1) / num_ranks * num_bytes / link_bytes_s(cluster)


def all_to_all_s(
    bytes_per_rank: float, num_ranks: int, stride: int, cluster: Cluster, rates: Rates, num_calls: float = 1
) -> float:
    """Each rank sends `(n-1)/n` of its bytes (of all calls); over the nodes' network when the group spans nodes.

    Ranks lie `stride` GPUs apart, one in each replica; all GPUs of a node's replicas run such a group at the same time,
    so each gets its share of the node's network.
    """
    if num_ranks <= 1:
        return 0.0
    inside = min(num_ranks, max(1, cluster.gpus_per_node // stride))
    sent = bytes_per_rank / num_ranks
    in_node_s = (inside - 1) * sent / link_bytes_s(cluster)
    out_s = (num_ranks - inside) * sent * gpus_on_network(cluster, stride) / network_bytes_s(cluster, rates)
    return num_calls * COLLECTIVE_LATENCY_S + max(in_node_s, out_s)


def ring_s(
    bytes_per_rank: float, num_ranks: int, stride: int, cluster: Cluster, rates: Rates, num_calls: float = 1
) -> float:
    """Ring of `num_ranks` GPUs that lie `stride` apart: each rank passes on every other rank's bytes.

    Across nodes, `stride` such rings leave each node at the same time.
    """
    if num_ranks <= 1:
        return 0.0
    in_node = num_ranks * stride <= cluster.gpus_per_node
    rate = link_bytes_s(cluster) if in_node else network_bytes_s(cluster, rates) / min(stride, cluster.gpus_per_node)
    hops = num_ranks - 1
    return hops * (num_calls * COLLECTIVE_LATENCY_S + bytes_per_rank / rate)


def gradient_sync_s(cluster: Cluster, model: Model, layout: TrainLayout, dp: int, rates: Rates) -> float:
    """Reduce-scatter of FP32 gradients and all-gather of BF16 weights over `dp` replicas, nothing overlapped.

    Context-parallel ranks hold the same weights, so they are ranks of it too. When replicas span nodes, each of a
    node's distinct shards has one ring that crosses its network: `min(tp pp, gpus_per_node)` rings of
    `params / (tp pp)` each.
    """
    ranks = dp * layout.cp
    if ranks <= 1:
        return 0.0
    shard_bytes = train_params_per_gpu(model, layout) * (GRADIENT_BYTES + BYTES_BF16) * (ranks - 1) / ranks
    if layout.replica_gpus * dp <= cluster.gpus_per_node:
        return shard_bytes / link_bytes_s(cluster)
    rings = min(layout.tp * layout.pp, cluster.gpus_per_node)
    return max(shard_bytes / link_bytes_s(cluster), rings * shard_bytes / network_bytes_s(cluster, rates))


def weight_sync_s(cluster: Cluster, model: Model, *, colocated: bool, rates: Rates | None = None) -> float:
    """One pipelined broadcast of the BF16 weights from training to the engines; colocated, both changes of sides."""
    rates = rates or Rates()
    in_node = colocated or cluster.num_nodes == 1
    moved_s = model.weight_bytes / (link_bytes_s(cluster) if in_node else network_bytes_s(cluster, rates))
    return moved_s + (rates.switch_s if colocated else rates.sync_fixed_s)
