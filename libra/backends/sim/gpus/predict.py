"""The timing truth's time for each kind of measured point, so that a fit bends exactly the formulas that simulate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from libra.backends.sim.constants import Constants
from libra.backends.sim.gpus.points import GpuPoint
from libra.backends.sim.measured import measured_model
from libra.backends.sim.truth import StepModel
from libra.backends.sim.truth_network import Network
from libra.backends.sim.truth_ops import Kernels, tile_area
from libra.backends.sim.validation import plain_step_s
from libra.core.hardware import BYTES_BF16, Cluster, Gpu, Model
from libra.core.plan import TrainLayout

Predictor = Callable[[Gpu, Constants, GpuPoint], float]


def predict_s(gpu: Gpu, constants: Constants, point: GpuPoint) -> float:
    """Seconds that the truth gives for a point on `gpu` under `constants`."""
    return PREDICTORS[point.kind](gpu, constants, point)


@functools.cache
def _node(gpu: Gpu) -> Cluster:
    return Cluster("node", 1, 8, gpu, "none", 1.0)


@functools.cache
def _model(heads: int, kv_heads: int, head_dim: int) -> Model:
    return Model("kernel", 1, heads * head_dim, heads, kv_heads, head_dim, heads * head_dim, 1, 1)


def _gemm(gpu: Gpu, c: Constants, point: GpuPoint) -> float:
    return Kernels(gpu, _model(1, 1, 128), c).gemm_s(point["m"], point["n"], point["k"])


def _decode(gpu: Gpu, c: Constants, point: GpuPoint) -> float:
    """One layer of what `StepModel` adds for attention in a pure decode step."""
    kv_bytes = 2 * point["kv_heads"] * point["head_dim"] * BYTES_BF16 * point["batch"] * point["context_tok"]
    seconds = c.decode_overhead_s + point["batch"] * point["heads"] * c.decode_per_seq_head_s
    return seconds + kv_bytes / (c.decode_memory_share * gpu.memory_gb_s * 1e9)


def _prefill(gpu: Gpu, c: Constants, point: GpuPoint) -> float:
    kernels = Kernels(gpu, _model(point["heads"], point["heads"], point["head_dim"]), c)
    length, batch = point["length_tok"], point["batch"]
    return c.prefill_overhead_s + kernels.prefill_attention_s(batch * tile_area(0, length), length, batch * length, 1)


def _elementwise(gpu: Gpu, c: Constants, point: GpuPoint) -> float:
    return c.elementwise_overhead_s + point["num_bytes"] / (c.elementwise_memory_share * gpu.memory_gb_s * 1e9)


def _moe(gpu: Gpu, c: Constants, point: GpuPoint) -> float:
    model = Model("kernel", 1, point["hidden"], 1, 1, 128, point["ffn"], 1, 1, False, point["experts"],
                  point["experts_per_tok"])  # fmt: skip
    return Kernels(gpu, model, c).moe_s(point["tok"], point["tp"])


def _engine_all_reduce(gpu: Gpu, c: Constants, point: GpuPoint) -> float:
    return Network(_node(gpu), c).engine_all_reduce_s(point["num_bytes"], point["gpus"])


def _nccl(gpu: Gpu, c: Constants, point: GpuPoint) -> float:
    return Network(_node(gpu), c).nccl_all_reduce_s(point["num_bytes"], point["gpus"])


def _decode_step(gpu: Gpu, c: Constants, point: GpuPoint) -> float:
    step = StepModel(_node(gpu), measured_model(point.model), point["tp"], c)
    return step.decode_s(point["seqs"], point["seqs"] * point["context_tok"])


def _train_step(gpu: Gpu, c: Constants, point: GpuPoint) -> float:
    """Without old log-probs and without the fixed cost of RL frameworks, as the training tables are judged."""
    layout = TrainLayout(
        tp=point["tp"],
        dp=point["dp"],
        micro_batch_tok=point["micro_batch_tok"],
        recompute=bool(point["recompute"]),
    )
    lengths = [point["length_tok"]] * point["seqs"]
    return plain_step_s(_node(gpu), measured_model(point.model), c, layout, lengths)


PREDICTORS: Mapping[str, Predictor] = {
    "gemm": _gemm,
    "decode_attention": _decode,
    "prefill_attention": _prefill,
    "elementwise": _elementwise,
    "moe": _moe,
    "engine_all_reduce": _engine_all_reduce,
    "nccl_all_reduce": _nccl,
    "decode_step": _decode_step,
    "train_step": _train_step,
}
