"""Times on the wires: all-reduce in a node, gradients between replicas, weight sync, KV transfer, snapshots.

A node's network bandwidth is shared by its GPUs. Figures measured over NVLink scale with the data sheet's link.
"""

from __future__ import annotations

from bisect import bisect_left

from libra.backends.sim.constants import Constants
from libra.core.hardware import BYTES_BF16, Cluster, Model
from libra.core.plan import TrainLayout

MEASURED_GROUPS = (2, 4, 8)
"""Group sizes of the all-reduce tables."""


class Network:
    """Pure functions of a cluster's links. Sizes in bytes, bandwidths in GB/s of 1e9 bytes."""

    def __init__(self, cluster: Cluster, constants: Constants) -> None:
        self.cluster, self._c = cluster, constants
        self._custom_scale = cluster.gpu.link_gb_s / constants.custom_link_gb_s
        self._link_scale = cluster.gpu.link_gb_s / constants.nccl_link_gb_s

    # -- inside a node ---------------------------------------------------------------------------------------------

    def engine_all_reduce_s(self, num_bytes: float, tp: int, *, eager: bool = False) -> float:
        """vLLM's all-reduce: its own kernel for small messages, launched by hand or in a CUDA graph, NCCL above."""
        if tp == 1:
            return 0.0
        if num_bytes > self._c.custom_max_bytes:
            return self.nccl_all_reduce_s(num_bytes, tp)
        if eager:
            return max(self._c.eager_all_reduce_s, self.engine_all_reduce_s(num_bytes, tp))
        c = self._c
        if tp == 8:
            beyond_s = self._tp8_s(num_bytes) - c.custom_tp8_s
            return c.custom_tp8_s + (beyond_s / self._custom_scale if beyond_s > 0 else beyond_s)
        latency_s, gb_s = (c.custom_tp2_s, c.custom_tp2_gb_s) if tp == 2 else (c.custom_tp4_s, c.custom_tp4_gb_s)
        return latency_s + num_bytes / (gb_s * 1e9 * self._custom_scale)

    def _tp8_s(self, num_bytes: float) -> float:
        """Linear interpolation of the eight-GPU table; constant below it, its last slope above."""
        sizes, times = self._c.custom_tp8_bytes, self._c.custom_tp8_table_s
        if num_bytes <= sizes[0]:
            return times[0]
        right = min(bisect_left(sizes, num_bytes), len(sizes) - 1)
        share = (num_bytes - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return times[right - 1] + share * (times[right] - times[right - 1])

    def nccl_all_reduce_s(self, num_bytes: float, num_gpus: int) -> float:
        """NCCL ring inside a node; a group between two measured sizes takes the larger one's figures."""
        if num_gpus == 1:
            return 0.0
        column = min(bisect_left(MEASURED_GROUPS, num_gpus), len(MEASURED_GROUPS) - 1)
        wire_bytes = 2.0 * (num_gpus - 1) / num_gpus * num_bytes
        return self._c.nccl_latency_s[column] + wire_bytes / self._bus(column)

    def _bus(self, column: int) -> float:
        return self._c.nccl_bus_gb_s[column] * 1e9 * self._link_scale

    # -- between replicas ------------------------------------------------------------------------------------------

    def rank_bytes_per_s(self, num_ranks: int, stride: int) -> float:
        """Bandwidth of one rank in a ring over `num_ranks` GPUs that lie `stride` GPUs apart.

        Inside a node that is NCCL's bus bandwidth. Across nodes, every GPU of a replica has a ring of its own and all
        those of a node share its network.
        """
        per_node = self.cluster.gpus_per_node
        if num_ranks * stride <= per_node:
            return self._bus(min(bisect_left(MEASURED_GROUPS, num_ranks), len(MEASURED_GROUPS) - 1))
        rings = min(stride, per_node)
        return self.cluster.network_gb_s * 1e9 / rings

    def gradient_s(self, grad_bytes: float, weight_bytes: float, layout: TrainLayout) -> float:
        """Distributed optimizer: reduce-scatter of one rank's gradients, all-gather of its weights, over dp x cp.

        The GPUs of a replica lie together, because the elastic pool moves whole replicas.
        """
        ranks = layout.dp * layout.cp
        if ranks == 1:
            return 0.0
        wire_bytes = (grad_bytes + weight_bytes) * (ranks - 1) / ranks
        return wire_bytes / self.rank_bytes_per_s(ranks, layout.tp * layout.pp)

    # -- control plane ---------------------------------------------------------------------------------------------

    def weight_sync_s(self, model: Model) -> float:
        """Bucketed broadcast of BF16 weights from trainer to engines, the slower of link and network deciding."""
        gb_s = self._c.sync_gb_s * self._link_scale
        if self.cluster.num_nodes > 1:
            gb_s = min(gb_s, self.cluster.network_gb_s)
        return self._c.sync_base_s + model.weight_bytes / (gb_s * 1e9)

    def kv_transfer_s(self, model: Model, context_tok: int, *, same_node: bool) -> float:
        """A context's keys and values from one engine to another, with the link to itself."""
        return self._c.kv_base_s + context_tok * model.kv_bytes_per_tok / self._peer(same_node)

    def snapshot_join_s(self, model: Model) -> float:
        """A hybrid replica fetches weights while training goes on and loads them; the optimizer stays behind."""
        bandwidth = self._peer(self.cluster.num_nodes == 1) * self._c.join_network_share
        return model.num_params * self._c.join_bytes / bandwidth + self._c.join_restore_s

    def regroup_s(self, model: Model) -> float:
        """The trainer changes its layout: new process groups, and the whole training state moves once."""
        state_bytes = model.num_params * self._c.state_bytes
        return self._c.regroup_base_s + state_bytes / self._peer(self.cluster.num_nodes == 1)

    def _peer(self, same_node: bool) -> float:
        gb_s = self._c.kv_link_gb_s * self._link_scale if same_node else self.cluster.network_gb_s
        return gb_s * 1e9


def hidden_bytes(model: Model, num_tok: float) -> float:
    """BF16 hidden states of `num_tok` tokens: the message of one tensor-parallel all-reduce."""
    return float(BYTES_BF16 * model.hidden * num_tok)
