"""Constants of another GPU from its measured points: least squares in logarithms, kind by kind, A100's elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from libra.backends.sim.constants import Constants, load_constants
from libra.backends.sim.gpus.points import GpuPoint
from libra.backends.sim.gpus.predict import predict_s
from libra.backends.sim.truth_network import MEASURED_GROUPS
from libra.core.hardware import Gpu

ROW_SIGMA = 0.05
"""Expected relative error of a row; rows far beyond it count less (soft L1)."""
TIME_SPREAD, SHARE_SPREAD = 30.0, 10.0
"""How far (in logarithms) a constant may lie from A100's before that counts as much as one row that is off by
`ROW_SIGMA`: so wide that it decides only what points leave open."""
TIME_REACH, SHARE_REACH = 7.5, 2.5
"""Limits of the search, in logarithms: times by a factor of 1,800, shares and powers by one of 12. No device lies
beyond, and larger powers overflow."""
SPARE_POINTS = 1
"""Points beyond the number of constants without which A100's values stay: fewer would fit anything."""


@dataclass(frozen=True)
class Part:
    """Constants that points of one kind determine together; of a group's all-reduce, those with that many GPUs."""

    kind: str
    constants: tuple[str, ...]
    gpus: int = 0

    def takes(self, point: GpuPoint) -> bool:
        return point.kind == self.kind and (not self.gpus or point["gpus"] == self.gpus)

    def replaced(self, constants: Constants, values: Sequence[float]) -> Constants:
        """`constants` with those of this part replaced; one element of those that are tuples by group size."""
        changes = {
            name: _with_element(getattr(constants, name), self.gpus, value)
            for name, value in zip(self.constants, values, strict=True)
        }
        return msgspec.structs.replace(constants, **changes)

    def values(self, constants: Constants) -> list[float]:
        return [_element(getattr(constants, name), self.gpus) for name in self.constants]


def _element(value: float | tuple[float, ...], gpus: int) -> float:
    return value[MEASURED_GROUPS.index(gpus)] if isinstance(value, tuple) else value


def _with_element(value: float | tuple[float, ...], gpus: int, new: float) -> float | tuple[float, ...]:
    if not isinstance(value, tuple):
        return new
    return tuple(new if group == gpus else old for group, old in zip(MEASURED_GROUPS, value, strict=True))


PARTS = (
    Part("gemm", ("gemm_overhead_s", "gemm_compute_share", "gemm_memory_share", "gemm_power")),
    Part("decode_attention", ("decode_overhead_s", "decode_per_seq_head_s", "decode_memory_share")),
    Part(
        "prefill_attention",
        ("prefill_overhead_s", "prefill_tile_share", "prefill_key_s", "prefill_memory_share"),
    ),
    Part("elementwise", ("elementwise_overhead_s", "elementwise_memory_share")),
    Part("moe", ("moe_overhead_s", "moe_memory_share", "moe_compute_share", "moe_power", "moe_hit_power")),
    Part("engine_all_reduce", ("custom_tp2_s", "custom_tp2_gb_s"), gpus=2),
    Part("engine_all_reduce", ("custom_tp4_s", "custom_tp4_gb_s"), gpus=4),
    *(Part("nccl_all_reduce", ("nccl_latency_s", "nccl_bus_gb_s"), gpus=group) for group in MEASURED_GROUPS),
    Part("decode_step", ("step_overhead_s", "step_per_seq_s")),
    Part("train_step", ("train_gemm_factor", "train_elementwise_factor", "backward_compute_share")),
)
"""In this order: whole steps are fitted with the kernels' constants in place."""

TP8 = ("custom_tp8_s", "custom_tp8_bytes", "custom_tp8_table_s")
"""The engine's all-reduce over eight GPUs is its table (no line fits it)."""

UNDETERMINED = ("mixed_reads_per_head",)
"""A property of the GPU's attention kernels that no kind of point determines."""


class GpuFit(msgspec.Struct, frozen=True):
    """Constants for one GPU; `origins` says of each fitted one from which kind of points, and from how many."""

    constants: Constants
    origins: dict[str, tuple[str, int]]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind for kind, _ in self.origins.values()))

    @property
    def kept(self) -> tuple[str, ...]:
        """Constants of the GPU that stayed A100's."""
        names = [name for part in PARTS for name in part.constants]
        return tuple(name for name in dict.fromkeys([*names, TP8[0], *UNDETERMINED]) if name not in self.origins)


def fit(gpu: Gpu, points: Sequence[GpuPoint]) -> GpuFit:
    """What `points` determine, in place of A100's constants. The same from the same points; well under two seconds."""
    constants, origins = load_constants(), dict[str, tuple[str, int]]()
    for part in PARTS:
        taken = [point for point in points if part.takes(point)]
        if len(taken) >= len(part.constants) + SPARE_POINTS:
            constants = _least_squares(gpu, constants, part, taken)
            for name in part.constants:
                origins[name] = part.kind, len(taken) + origins.get(name, ("", 0))[1]
    eight = _table_of_eight(gpu, constants, points)
    if eight is not None:
        constants = eight
        origins |= {name: ("engine_all_reduce", len(eight.custom_tp8_bytes)) for name in TP8}
    return GpuFit(constants, origins)


def _least_squares(gpu: Gpu, constants: Constants, part: Part, taken: Sequence[GpuPoint]) -> Constants:
    from scipy.optimize import least_squares

    origin = np.log(part.values(constants))
    is_time = np.array([name.endswith("_s") for name in part.constants])
    spreads, reach = np.where(is_time, TIME_SPREAD, SHARE_SPREAD), np.where(is_time, TIME_REACH, SHARE_REACH)
    measured = np.log([point.time_s for point in taken])

    def residuals(logs: np.ndarray) -> np.ndarray:
        trial = part.replaced(constants, [math.exp(log) for log in logs])
        predicted = np.log([predict_s(gpu, trial, point) for point in taken])
        return np.concatenate([(predicted - measured) / ROW_SIGMA, (logs - origin) / spreads])

    highest = [0.0 if name.endswith("_share") else math.inf for name in part.constants]
    bounds = origin - reach, np.minimum(origin + reach, highest)
    found = least_squares(residuals, origin, loss="soft_l1", diff_step=1e-4, xtol=1e-9, bounds=bounds)
    return part.replaced(constants, [math.exp(log) for log in found.x])


def _table_of_eight(gpu: Gpu, constants: Constants, points: Sequence[GpuPoint]) -> Constants | None:
    """The truth scales what of a message's time is no latency by the link, so the table is kept on the link of A100."""
    times = {
        point["num_bytes"]: point.time_s
        for point in points
        if point.kind == "engine_all_reduce" and point["gpus"] == 8 and point["num_bytes"] <= constants.custom_max_bytes
    }
    if len(times) < 1 + SPARE_POINTS:
        return None
    sizes, latency_s = sorted(times), min(times.values())
    scale = gpu.link_gb_s / constants.custom_link_gb_s
    return msgspec.structs.replace(
        constants,
        custom_tp8_s=latency_s,
        custom_tp8_bytes=tuple(float(size) for size in sizes),
        custom_tp8_table_s=tuple(latency_s + scale * (times[size] - latency_s) for size in sizes),
    )
