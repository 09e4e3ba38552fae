"""Fits the kernels' constants to the operator tables again, with the code that fits another GPU's (`gpus.fit`).

`python -m libra.backends.sim.fit_operators` prints them beside those that ship. The shares of memory bandwidth of GEMM
and decode attention ship as whole runs give them (`fit`); the all-reduce over eight GPUs is its table.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from libra.backends.sim.constants import Constants, load_constants
from libra.backends.sim.gpus.fit import GpuFit, fit
from libra.backends.sim.gpus.points import SIZES, GpuPoint
from libra.backends.sim.measured import measured_model, rows
from libra.backends.sim.validation import A100, A800

ON_A800 = ("nccl_all_reduce",)
"""Tables that were timed on an A800."""


def operator_points(kind: str) -> Iterator[GpuPoint]:
    """Rows of an operator table as points of a GPU."""
    model = measured_model("qwen3-30b-a3b")
    known = {
        "head_dim": 128,
        "hidden": model.hidden,
        "ffn": model.ffn,
        "experts": model.num_experts,
        "experts_per_tok": model.experts_per_tok,
    }
    for row in rows(kind):
        sizes = tuple(int(float(row[name])) if name in row else known[name] for name in SIZES[kind])
        yield GpuPoint(kind, sizes, float(row["time_s"]))


def fit_operators() -> tuple[Constants, dict[str, tuple[str, int]]]:
    """Constants with the kernels' fitted anew, and from which table and how many rows each comes."""
    kinds = ("gemm", "decode_attention", "prefill_attention", "moe", "engine_all_reduce")
    found = [fit(A100.gpu, [point for kind in kinds for point in operator_points(kind)])]
    found += [fit(A800.gpu, [point for kind in ON_A800 for point in operator_points(kind)])]
    return _joined(found)


def _joined(fits: list[GpuFit]) -> tuple[Constants, dict[str, tuple[str, int]]]:
    constants, origins = load_constants(), dict[str, tuple[str, int]]()
    for each in fits:
        values = {name: getattr(each.constants, name) for name in each.origins}
        constants = msgspec.structs.replace(constants, **values)
        origins |= each.origins
    return constants, origins


def main() -> None:
    """Print every kernel constant, fitted and shipped."""
    constants, origins = fit_operators()
    for name, (kind, num_rows) in origins.items():
        fitted, shipped = (_text(getattr(each, name)) for each in (constants, load_constants()))
        print(f"{name:24} {fitted:34} ships as {shipped:34} {num_rows} rows of {kind}")


def _text(value: float | tuple[float, ...]) -> str:
    if isinstance(value, tuple) and len(value) > 3:
        return f"{len(value)} values"
    return ", ".join(f"{each:.4g}" for each in (value if isinstance(value, tuple) else (value,)))


if __name__ == "__main__":
    main()
