"""Measurements that nobody had looked at when the constants and the assumptions here were frozen: the blind test.

Most are on GPUs without a calibration of their own, where A100's efficiencies are carried over by data sheet, so they
also say what such an extrapolation is worth. The column `frozen_s` holds what the frozen commit predicted (see
benchmarks/results/blind_predictions_2026-12-02.csv); whatever changed later was changed with these rows in view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from libra.backends.sim.constants import Constants
from libra.backends.sim.measured import measured_model, rows
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import StepModel, Truth
from libra.backends.sim.truth_ops import Kernels
from libra.backends.sim.validation import burst_s, fully_sharded_s, request_lengths
from libra.core.hardware import Cluster, Gpu, Model
from libra.core.plan import TrainLayout

COMPILED_ELEMENTWISE_FACTOR = 1.0
"""torch.compile fuses what MPT ran kernel by kernel (assumed)."""
LOGIT_BYTES = 24.0
"""Traffic of the loss a logit: BF16 out, FP32 copy, log-sum-exp and entropy reads, gradient out and back (assumed)."""


class BlindPoint(msgspec.Struct, frozen=True):
    """A measured time, what was predicted before anybody had seen it, and what the present code says (s). Rows of one
    `cluster` (GPU and model) err together."""

    name: str
    gpu: str
    cluster: str
    measured_s: float
    frozen_s: float
    now_s: float

    @property
    def frozen_error(self) -> float:
        """Relative; positive where the frozen prediction was too slow."""
        return self.frozen_s / self.measured_s - 1.0


def gpustack_blind(c: Constants) -> Iterator[BlindPoint]:
    """Bursts and closed loops through the simulator's engine, as in `gpustack`."""
    for row in rows("gpustack_blind"):
        model, gpu, tp, limit = row["model"], row["gpu"], int(row["tp"]), int(row["max_concurrency"] or 0)
        kernel = _kernel(gpu, "flash_attention_2" if gpu.startswith("A100") else "flash_attention_3")
        step = StepModel(_node(kernel, 8), measured_model(model), tp, _constants(kernel, c))
        options = SimOptions(
            max_num_seqs=int(kernel["max_num_seqs"]), max_batched_tok=int(kernel["max_batched_tok"]), async_lag_steps=0
        )
        seconds = burst_s(step, request_lengths(row), c.api_s_per_request, options, limit)
        name = f"{model} TP-{tp} on {gpu}, {row['case']}"
        yield BlindPoint(name, gpu, f"{gpu} {model}", float(row["duration_s"]), float(row["frozen_s"]), seconds)


def prime_rl(c: Constants) -> Iterator[BlindPoint]:
    """FSDP steps with full recompute; off-loaded inputs are taken to travel for nothing."""
    for row in rows("prime_rl"):
        model, gpus, length, num = row["model"], *(int(row[key]) for key in ("gpus", "length_tok", "micro_batches"))
        kernel = _kernel(row["gpu"], row["attention"])
        constants = msgspec.structs.replace(_constants(kernel, c), train_elementwise_factor=COMPILED_ELEMENTWISE_FACTOR)
        seconds = _fsdp_step_s(
            _node(kernel, gpus), measured_model(model), constants, length, num, row["lora_rank"] != "0"
        )
        tuned = f"LoRA-{row['lora_rank']}" if row["lora_rank"] != "0" else "full"
        extra = ", off-loaded" if row["offload"] == "1" else ""
        name = f"{model} {row['loss']} {tuned}, {gpus} x {row['gpu']}, {length}{extra}"
        yield BlindPoint(
            name, row["gpu"], f"{row['gpu']} {model}", float(row["step_s"]), float(row["frozen_s"]), seconds
        )


def _fsdp_step_s(
    cluster: Cluster, model: Model, constants: Constants, length_tok: int, num_micro_batches: int, frozen: bool
) -> float:
    """One optimizer step of `num_micro_batches` sequences a GPU. `frozen`: LoRA, no gradients of the weights, neither
    computed, exchanged nor applied; the adapters' own work is neglected."""
    gpus = cluster.num_gpus
    layout = TrainLayout(tp=1, dp=gpus, micro_batch_tok=length_tok, recompute=True)
    lengths = [length_tok] * (num_micro_batches * gpus)
    time = Truth(cluster, model, constants).train_step_s(layout, lengths, logprobs=False)
    kernels = Kernels(cluster.gpu, model, constants)
    loss_s = length_tok * model.vocab * LOGIT_BYTES / (constants.elementwise_memory_share * kernels.memory)
    exposed_s = fully_sharded_s(cluster, model, gpus, constants)
    if not frozen:
        return time.total_s - time.fixed_s + num_micro_batches * (loss_s + exposed_s)
    linear_s = model.num_layers * constants.train_gemm_factor * kernels.linear_s(length_tok, 1)
    saved_s = linear_s + kernels.head_s(length_tok, 1)
    return time.compute_s + num_micro_batches * (loss_s + exposed_s * 2 / 3 - saved_s)


def _kernel(gpu: str, attention: str) -> dict[str, str]:
    return next(row for row in rows("gpus") if (row["gpu"], row["attention"]) == (gpu, attention))


def _node(kernel: dict[str, str], num_gpus: int) -> Cluster:
    peak, memory, bandwidth, link = (
        float(kernel[key]) for key in ("peak_tflops", "memory_gb", "memory_gb_s", "link_gb_s")
    )
    return Cluster("node", 1, num_gpus, Gpu(kernel["gpu"], peak, memory, bandwidth, link), "none", 22.0)


def _constants(kernel: dict[str, str], c: Constants) -> Constants:
    """The shipped constants, attention replaced by what was published for this GPU and kernel."""
    names = {
        "prefill_tile_share": "forward_share",
        "backward_compute_share": "backward_share",
        "mixed_reads_per_head": "mixed_reads_per_head",
    }
    return msgspec.structs.replace(c, **{name: float(kernel[key]) for name, key in names.items() if kernel[key]})


BLIND: Mapping[str, Callable[[Constants], Iterator[BlindPoint]]] = {
    "gpustack_blind": gpustack_blind,
    "prime_rl": prime_rl,
}
"""Tables of stage `blind`."""
