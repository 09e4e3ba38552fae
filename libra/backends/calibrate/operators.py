"""One device's operators: products, attention of a prefill and of a decode step, streaming."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from libra.backends.calibrate.timing import Bench
from libra.backends.sim.gpus.points import GpuPoint

Call = Callable[[], object]


def _gemm(bench: Bench, point: GpuPoint) -> Call:
    """As a layer computes it: weights transposed in memory."""
    rows, weight = bench.tensor(point["m"], point["k"]), bench.tensor(point["n"], point["k"])
    return lambda: bench.torch.nn.functional.linear(rows, weight)


def _prefill(bench: Bench, point: GpuPoint) -> Call:
    shape = point["batch"], point["heads"], point["length_tok"], point["head_dim"]
    query, key, value = bench.tensor(*shape), bench.tensor(*shape), bench.tensor(*shape)
    return lambda: bench.torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def _decode(bench: Bench, point: GpuPoint) -> Call:
    kept = point["batch"], point["kv_heads"], point["context_tok"], point["head_dim"]
    query = bench.tensor(point["batch"], point["heads"], 1, point["head_dim"])
    key, value = bench.tensor(*kept), bench.tensor(*kept)
    return lambda: bench.torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def _elementwise(bench: Bench, point: GpuPoint) -> Call:
    """Half of the bytes are read and half written."""
    source = bench.tensor(max(1, point["num_bytes"] // (2 * bench.dtype.itemsize)))
    target = bench.torch.empty_like(source)
    return lambda: bench.torch.mul(source, 2.0, out=target)


OPERATORS: Mapping[str, Callable[[Bench, GpuPoint], Call]] = {
    "gemm": _gemm,
    "decode_attention": _decode,
    "prefill_attention": _prefill,
    "elementwise": _elementwise,
}


def operator_s(bench: Bench, point: GpuPoint) -> float:
    with bench.torch.inference_mode():
        return bench.median_s(OPERATORS[point.kind](bench, point))
