"""The simulator's timing truth: what every engine step, training step and control action really takes.

Pure functions of cluster, model and `constants.toml` (measured on A100 and A800). The planner's estimate is another
model and never sees this one. Formulas: GEMM and attention roofs, an engine step that is linear in the KV tokens it
reads, packed training micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from libra.backends.sim.constants import Constants, load_constants
from libra.backends.sim.truth_network import Network, hidden_bytes
from libra.backends.sim.truth_ops import Kernels, chunk_attention_s, tile_area
from libra.backends.sim.truth_train import GIB, TrainModel, TrainTime
from libra.core.errors import CapacityError
from libra.core.hardware import BYTES_BF16, Cluster, Model
from libra.core.plan import TrainLayout

TENSOR_PARALLEL = (1, 2, 4, 8)
"""Group sizes with measured all-reduces."""
PREFILL_CHUNK_TOK = 8192
"""Step budget in which an idle engine prefills (vLLM V1's default on GPUs)."""


class StepModel:
    """Step times and KV capacity of one engine of `tp` GPUs. Raises `CapacityError` when the model does not fit."""

    def __init__(self, cluster: Cluster, model: Model, tp: int, constants: Constants, *, eager: bool = False) -> None:
        check_tensor_parallel(cluster, model, tp)
        self.tp, self.model = tp, model
        self._c, self._eager = constants, eager
        self._kernels, self._network = Kernels(cluster.gpu, model, constants), Network(cluster, constants)
        self.kv_capacity_tok = kv_capacity_tok(cluster, model, tp, constants)
        if self.kv_capacity_tok <= 0:
            raise _too_large(cluster, model, tp, constants)
        kv_ranks = min(tp, model.num_kv_heads)
        self.beta = model.kv_bytes_per_tok / (kv_ranks * constants.decode_memory_share * self._kernels.memory)
        """Seconds per KV token read in a pure decode step."""
        group = max(1.0, model.num_heads / max(tp, model.num_kv_heads))
        self._mixed_beta = max(1.0, constants.mixed_reads_per_head * group) * self.beta
        self._prefill_s = model.num_layers * constants.prefill_overhead_s
        self._area_s, self._key_s, self._row_s = (model.num_layers * rate for rate in self._kernels.prefill_rates_s(tp))
        self._decode_s = model.num_layers * constants.decode_overhead_s
        self._per_seq_s = constants.step_per_seq_s + (
            model.num_layers * constants.decode_per_seq_head_s * model.num_heads / tp
        )
        self._bodies: dict[int, float] = {}
        self._heads: list[float] = [0.0]
        self._alphas: list[float] = [0.0]

    def alpha(self, num_seqs: int) -> float:
        """Seconds of a decode step over `num_seqs` sequences apart from reading their KV."""
        if num_seqs >= len(self._alphas):
            for num in range(len(self._alphas), num_seqs + 1):
                self._alphas.append(self.body_s(num) + self.head_s(num) + self._decode_s + num * self._per_seq_s)
        return self._alphas[num_seqs]

    @property
    def figures_s(self) -> tuple[float, ...]:
        """What `decode_s` takes per KV token, and `mixed_s` per KV token, once, per area, key, row and sequence."""
        once = self._prefill_s
        return self.beta, self._mixed_beta, once, self._area_s, self._key_s, self._row_s, self._per_seq_s

    def decode_s(self, num_seqs: int, kv_tok: int) -> float:
        """A step that gives each of `num_seqs` sequences a token and reads their `kv_tok` KV tokens."""
        return self.alpha(num_seqs) + self.beta * kv_tok

    def mixed_s(self, prefill_tok: int, area: int, longest_tok: int, num_seqs: int, kv_tok: int) -> float:
        """A step that also prefills. `area` sums `tile_area` over its chunks, `longest_tok` is the longest context of
        all its sequences.

        Chunks and single tokens share one launch, in which each query head reads its KV alone and no context is split
        (FlashAttention 2 on A100). One finished prefill is assumed to need logits.
        """
        if not prefill_tok:
            return self.decode_s(num_seqs, kv_tok)
        seconds = self.body_s(prefill_tok + num_seqs) + self.head_s(num_seqs + 1)
        work_s = area * self._area_s + kv_tok * self._mixed_beta
        attention_s = chunk_attention_s(work_s, longest_tok * self._key_s, prefill_tok * self._row_s)
        seconds += self._prefill_s + attention_s + num_seqs * self._per_seq_s
        return seconds

    def prefill_s(self, context_tok: int, chunk_tok: int = PREFILL_CHUNK_TOK) -> float:
        """Prefill of a whole context on an idle engine: what a move by recomputation costs."""
        seconds, done = 0.0, 0
        while done < context_tok:
            chunk = min(chunk_tok, context_tok - done)
            seconds += self.mixed_s(chunk, tile_area(done, chunk), done + chunk, 0, 0)
            done += chunk
        return seconds

    def body_s(self, num_tok: int) -> float:
        """Layers' products, elementwise kernels and all-reduces of `num_tok` tokens, and the engine's own overhead.

        Without CUDA graphs the CPU launches every kernel: a layer takes at least as long as that.
        """
        seconds = self._bodies.get(num_tok)
        if seconds is None:
            message = hidden_bytes(self.model, num_tok)
            layer_s = self._kernels.linear_s(num_tok, self.tp) + self._kernels.elementwise_s(num_tok, self.tp)
            layer_s += 2.0 * self._network.engine_all_reduce_s(message, self.tp, eager=self._eager)
            if self._eager:
                layer_s = max(layer_s, self._c.eager_layer_s)
            seconds = self.model.num_layers * layer_s + self._c.step_overhead_s
            self._bodies[num_tok] = seconds
        return seconds

    def head_s(self, num_rows: int) -> float:
        """Logits of that many rows."""
        while num_rows >= len(self._heads):
            self._heads.append(self._kernels.head_s(len(self._heads), self.tp))
        return self._heads[num_rows]


class Truth:
    """All timings of one cluster and model. `constants` replaces the file's for sensitivity runs; `eager` has engines
    run without CUDA graphs."""

    def __init__(
        self, cluster: Cluster, model: Model, constants: Constants | None = None, *, eager: bool = False
    ) -> None:
        self.cluster, self.model = cluster, model
        self._c, self._eager = constants or load_constants(), eager
        self._network = Network(cluster, self._c)
        self._train = TrainModel(cluster, model, self._c, Kernels(cluster.gpu, model, self._c), self._network)
        self._steps: dict[int, StepModel] = {}
        self.cold_start_s = self._c.cold_start_s
        """An engine from nothing to its first request."""
        self.sleep_s, self.wake_s = self._c.sleep_s, self._c.wake_s
        self.colocated_switch_s = self._c.colocated_switch_s
        """All GPUs change sides once, in either direction; weights included."""

    def step_model(self, tp: int) -> StepModel:
        """Engine timings, made once. Raises `CapacityError` when the model does not fit on `tp` GPUs."""
        if tp not in self._steps:
            self._steps[tp] = StepModel(self.cluster, self.model, tp, self._c, eager=self._eager)
        return self._steps[tp]

    def train_step_s(self, layout: TrainLayout, lengths_tok: Sequence[int], *, logprobs: bool = True) -> TrainTime:
        """One training step over sequences of these total lengths (prompt included)."""
        return self._train.step_s(layout, lengths_tok, logprobs=logprobs)

    def check_train_fits(self, layout: TrainLayout) -> None:
        """Raises `CapacityError` for a layout that cannot be built or does not fit into memory."""
        self._train.check_fits(layout)

    def train_fits(self, layout: TrainLayout) -> bool:
        try:
            self._train.check_fits(layout)
        except CapacityError:
            return False
        return True

    def weight_sync_s(self) -> float:
        """New weights from the trainer into every engine."""
        return self._network.weight_sync_s(self.model)

    def kv_transfer_s(self, context_tok: int, *, same_node: bool) -> float:
        return self._network.kv_transfer_s(self.model, context_tok, same_node=same_node)

    def snapshot_join_s(self, layout: TrainLayout) -> float:
        """A hybrid replica of `layout` takes over the core's weights. The node's link bounds it, not its ranks."""
        return self._network.snapshot_join_s(self.model)

    def regroup_s(self, layout: TrainLayout) -> float:
        """The core changes to `layout`."""
        return self._network.regroup_s(self.model)


def check_tensor_parallel(cluster: Cluster, model: Model, tp: int) -> None:
    """Raises `CapacityError` for a group that cannot be built."""
    possible = [size for size in TENSOR_PARALLEL if size <= cluster.gpus_per_node and model.num_heads % size == 0]
    if tp not in possible:
        raise CapacityError(
            f"no engine of {tp} GPUs for {model.name} ({model.num_heads} heads) on nodes of {cluster.gpus_per_node}",
            where="instance",
            value=f"tp {tp}",
            allowed=possible,
        )


def kv_capacity_tok(cluster: Cluster, model: Model, tp: int, constants: Constants) -> int:
    """Tokens in the KV cache of a whole instance; not positive when the weights do not fit.

    Everything per GPU: memory share, weights, reserve, and the bytes of one token on one GPU (heads are replicated
    once tp exceeds their number).
    """
    memory = cluster.gpu.memory_gb * GIB
    free = memory * (constants.memory_use_share - constants.activation_reserve_share) - model.weight_bytes / tp
    kv_heads = max(1.0, model.num_kv_heads / tp)
    return int(free // (2 * model.num_layers * kv_heads * model.head_dim * BYTES_BF16))


def _too_large(cluster: Cluster, model: Model, tp: int, constants: Constants) -> CapacityError:
    larger = [
        size
        for size in TENSOR_PARALLEL
        if tp < size <= cluster.gpus_per_node
        and model.num_heads % size == 0
        and kv_capacity_tok(cluster, model, size, constants) > 0
    ]
    mend = (
        f"take tp {larger[0]} or more" if larger else "no tensor parallelism inside a node fits; take a smaller model"
    )
    return CapacityError(
        f"{model.name} ({model.weight_bytes / tp / 1e9:.0f} GB of weights per GPU) does not fit {cluster.gpu.name}",
        where="instance",
        value=f"tp {tp}",
        allowed=larger,
        mend=mend,
    )
