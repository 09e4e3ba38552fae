"""Constants of the GPUs that have a table of measured points; every other one keeps A100's efficiencies."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from libra.backends.sim.constants import Constant, Constants, provenance
from libra.backends.sim.gpus.fit import GpuFit, fit
from libra.backends.sim.gpus.points import GpuPoint, read_points
from libra.core.hardware import Gpu

FOLDER = Path(__file__).parents[1] / "measured" / "gpus"


def table_of(gpu: Gpu) -> Path | None:
    """The table that the cluster file names, else the built-in one of the GPU's name, else none."""
    if gpu.measured:
        return Path(gpu.measured)
    built_in = FOLDER / f"{gpu.name}.csv"
    return built_in if built_in.exists() else None


def points_of(gpu: Gpu) -> tuple[GpuPoint, ...]:
    """Rows of the GPU's table; none without one. Raises `ConfigError` for a table that cannot be read."""
    table = table_of(gpu)
    return () if table is None else read_points(table)


@functools.cache
def fit_of(gpu: Gpu) -> GpuFit:
    """Constants for a GPU; A100's without a table. Raises `ConfigError` for a table that cannot be read."""
    return fit(gpu, points_of(gpu))


def constants_of(gpu: Gpu) -> Constants:
    return fit_of(gpu).constants


def provenance_of(gpu: Gpu) -> dict[str, Constant]:
    """Every constant with unit, kind and source, those of the GPU's own table among them."""
    table, found = table_of(gpu), fit_of(gpu)
    known = dict(provenance())
    for name, (kind, num_points) in found.origins.items():
        assert table is not None, "only a table fits anything"
        value, source = getattr(found.constants, name), f"{table.name}: {num_points} {kind} points"
        known[name] = msgspec.structs.replace(known[name], value=value, kind="fitted", source=source)
    return known
