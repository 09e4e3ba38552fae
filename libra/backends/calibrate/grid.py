"""What is timed on which device, and about how long that takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from libra.backends.sim.constants import load_constants
from libra.backends.sim.gpus.points import SIZES, GpuPoint
from libra.backends.sim.gpus.predict import predict_s
from libra.backends.sim.truth_network import MEASURED_GROUPS
from libra.core.hardware import BYTES_BF16, Gpu, Model

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class Ranges:
    """Sizes that suit a kind of device: from one launch's overhead to what a step of hundreds of milliseconds holds."""

    gemm_m: tuple[int, ...]
    gemm_squares: tuple[int, ...]
    decode_batch: tuple[int, ...]
    decode_context_tok: tuple[int, ...]
    prefill_tok: tuple[int, ...]
    elementwise_bytes: tuple[int, ...]
    engine_bytes: tuple[int, ...]
    """Messages of the engine's own all-reduce; on GPUs that is a kernel of vLLM's, which torch does not have."""
    nccl_bytes: tuple[int, ...]
    step_seqs: tuple[int, ...]
    step_context_tok: tuple[int, ...]
    train_length_tok: tuple[int, ...]


def _powers(first: int, last: int, step: int = 2) -> tuple[int, ...]:
    return tuple(2**power for power in range(first, last + 1, step))


RANGES: Mapping[Device, Ranges] = {
    "cuda": Ranges(
        (1, 8, 64, 256, 1024, 8192), (1024, 4096, 8192), (1, 8, 64, 256), (512, 4096, 32768),
        (64, 128, 1024, 4096, 8192, 16384), _powers(14, 30), (), _powers(23, 29), (1, 16, 64, 256), (1024, 8192),
        (512, 2048, 8192),
    ),
    "cpu": Ranges(
        (1, 8, 64, 256, 1024), (128, 512, 1024), (1, 4, 16), (128, 512, 2048), (16, 64, 128, 1024, 4096, 8192),
        _powers(12, 26), _powers(10, 22), _powers(23, 26, 1), (1, 4, 16, 64), (128, 1024), (64, 256, 1024),
    ),
}  # fmt: skip

SECONDS = 0.3
"""Timing of one point: blocks of calls, the median of them."""
FEWEST_CALLS = 6
"""Of a call that takes longer than that allows, warm-up included."""
LONGEST_S = 8.0
"""A single call beyond this is left out."""
START_S: Mapping[str, float] = {"engine_all_reduce": 3.0, "nccl_all_reduce": 3.0, "decode_step": 1.0, "train_step": 1.0}
"""Setting up a point: processes that meet, models that are made."""
MEMORY_SHARE = 0.3
"""Of the device's memory for one point's tensors."""
SEQS_A_TRAIN_STEP = 8


def grid(device: Device, gpu: Gpu, model: Model, num_devices: int) -> list[GpuPoint]:
    """Points without times, kind by kind, as far as they fit the device."""
    kinds = (_gemm, _decode, _prefill, _elementwise, _all_reduce, _steps)
    return [
        point
        for kind in kinds
        for point in kind(RANGES[device], model, num_devices)
        if _call_s(gpu, point) <= LONGEST_S and _num_bytes(point) <= MEMORY_SHARE * gpu.memory_gb * 1e9
    ]


def estimate_s(gpu: Gpu, points: Iterable[GpuPoint]) -> float:
    """About how long timing takes, with A100's efficiencies on the device's data sheet."""
    return sum(START_S.get(point.kind, 0.0) + max(SECONDS, FEWEST_CALLS * _call_s(gpu, point)) for point in points)


def thinned(points: Sequence[GpuPoint], gpu: Gpu, limit_s: float) -> list[GpuPoint]:
    """Every other point of the longest kind left out until the rest takes at most `limit_s`; each kind keeps six."""
    kept = list(points)
    while estimate_s(gpu, kept) > limit_s:
        by_kind = {kind: [point for point in kept if point.kind == kind] for kind in SIZES}
        long = [kind for kind, found in by_kind.items() if len(found) > 6]
        if not long:
            break
        longest = max(long, key=lambda kind: estimate_s(gpu, by_kind[kind]))
        dropped = set(by_kind[longest][1::2])
        kept = [point for point in kept if point not in dropped]
    return kept


def _call_s(gpu: Gpu, point: GpuPoint) -> float:
    return predict_s(gpu, load_constants(), point)


def _num_bytes(point: GpuPoint) -> int:
    """Largest tensors of an operator; steps are those of a model that the user chose."""
    if point.kind == "gemm":
        return BYTES_BF16 * (point["m"] * point["k"] + point["k"] * point["n"] + point["m"] * point["n"])
    if point.kind == "decode_attention":
        return 2 * BYTES_BF16 * point["batch"] * point["context_tok"] * point["kv_heads"] * point["head_dim"]
    return point["num_bytes"] if "num_bytes" in SIZES[point.kind] else 0


def _point(kind: str, *sizes: int | str) -> GpuPoint:
    return GpuPoint(kind, sizes, 0.0)


def _gemm(ranges: Ranges, model: Model, num_devices: int) -> Iterator[GpuPoint]:
    heads, kv_heads = model.num_heads * model.head_dim, 2 * model.num_kv_heads * model.head_dim
    products = [
        (heads + kv_heads, model.hidden),
        (model.hidden, heads),
        (2 * model.ffn, model.hidden),
        (model.hidden, model.ffn),
        (model.vocab, model.hidden),
    ]
    for n, k in dict.fromkeys([*products, *((size, size) for size in ranges.gemm_squares)]):
        yield from (_point("gemm", m, n, k) for m in ranges.gemm_m)


def _decode(ranges: Ranges, model: Model, num_devices: int) -> Iterator[GpuPoint]:
    shape = model.num_heads, model.num_kv_heads, model.head_dim
    for batch in ranges.decode_batch:
        yield from (_point("decode_attention", batch, context, *shape) for context in ranges.decode_context_tok)


def _prefill(ranges: Ranges, model: Model, num_devices: int) -> Iterator[GpuPoint]:
    for length in ranges.prefill_tok:
        yield _point("prefill_attention", 1, length, model.num_heads, model.head_dim)


def _elementwise(ranges: Ranges, model: Model, num_devices: int) -> Iterator[GpuPoint]:
    yield from (_point("elementwise", size) for size in ranges.elementwise_bytes)


def _all_reduce(ranges: Ranges, model: Model, num_devices: int) -> Iterator[GpuPoint]:
    for group in MEASURED_GROUPS:
        if group <= num_devices:
            yield from (_point("engine_all_reduce", group, size) for size in ranges.engine_bytes)
            yield from (_point("nccl_all_reduce", group, size) for size in ranges.nccl_bytes)


def _steps(ranges: Ranges, model: Model, num_devices: int) -> Iterator[GpuPoint]:
    for context in ranges.step_context_tok:
        yield from (_point("decode_step", model.name, 1, seqs, context) for seqs in ranges.step_seqs)
    for length in ranges.train_length_tok:
        for seqs_a_micro_batch in (1, 4):
            micro_tok = seqs_a_micro_batch * length
            yield _point("train_step", model.name, 1, 1, SEQS_A_TRAIN_STEP, length, micro_tok, 0)
