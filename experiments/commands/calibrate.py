"""`libra calibrate`: from a device to its table of measured points, and what the simulator makes of them."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from experiments.commands.output import console, constant, table
from experiments.launch import INTERRUPTED_EXIT_CODE
from libra.core.errors import ConfigError
from libra.core.hardware import Gpu

MODELS = {"cuda": "qwen2.5-1.5b", "cpu": "tiny"}
"""Whose shapes and steps are timed by default: the largest that trains on one device without tricks."""
PLANNED_DEVICES = {"cuda": 8, "cpu": 2}
"""Without torch nobody counts GPUs: the dry run lists a whole node's."""


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    device: Literal["cuda", "cpu"]
    minutes: float
    out: Path
    cluster: str | None
    model: str | None


def calibrate(request: Request, *, dry_run: bool) -> None:
    """Time the device, then print the constants fitted to the whole table. Raises `ConfigError`."""
    from libra.backends.calibrate.grid import grid, thinned
    from libra.backends.sim.measured import measured_model

    gpu = _gpu(request)
    model = measured_model(request.model or MODELS[request.device])
    if dry_run:
        points = grid(request.device, gpu, model, PLANNED_DEVICES[request.device])
        return _print_plan(gpu, thinned(points, gpu, 60.0 * request.minutes))
    from libra.backends.calibrate.session import Table, run
    from libra.backends.calibrate.timing import Bench

    bench, out = Bench(request.device), console()
    points = thinned(grid(request.device, gpu, model, bench.num_devices), gpu, 60.0 * request.minutes)
    head = f"{gpu.name}: {bench.source}; {machine()}; {datetime.now(UTC):%Y-%m-%d}"
    stored = Table(request.out, head)
    num_todo = len(stored.missing(points))
    out.print(f"{num_todo} of {len(points)} points to time, at most {request.minutes:g} minutes; table {request.out}")
    try:
        num_left = run(bench, model, points, stored, 60.0 * request.minutes,
                       lambda point: out.print(f"{point.kind} {point.label}: {point.time_s:.4g} s"),
                       lambda reason: out.print(f"skipped: {reason}"))  # fmt: skip
    except KeyboardInterrupt:
        out.print(f"interrupted; {len(stored.missing(points))} points are left: the same command goes on with them")
        sys.exit(INTERRUPTED_EXIT_CODE)
    if num_left:
        out.print(f"time is up; {num_left} points are left: the same command goes on with them")
    _print_fit(gpu, request.out)


def _gpu(request: Request) -> Gpu:
    """Data sheet of the device. Raises `ConfigError` where nobody has said which GPU this is."""
    from libra.clusters import load_cluster

    if request.cluster is None and request.device == "cuda":
        raise ConfigError("which GPU is this?", where="--cluster", value=None,
                          mend="give the cluster file with its data sheet (docs/add_a_gpu.md)")  # fmt: skip
    return load_cluster(request.cluster or "cpu2").gpu


def machine() -> str:
    """The processor by name, where Linux says it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {platform.system()} {platform.machine()}"


def _print_plan(gpu: Gpu, points: Sequence) -> None:
    from libra.backends.calibrate.grid import estimate_s

    out = console()
    rows = []
    for kind, number in Counter(point.kind for point in points).items():
        taken = [point for point in points if point.kind == kind]
        rows.append((kind, number, f"{estimate_s(gpu, taken):.0f} s", taken[0].label, taken[-1].label))
    out.print(table(f"{gpu.name}: {len(points)} points", ("kind", "points", "about", "first", "last"), rows))
    out.print(f"\nabout {estimate_s(gpu, points) / 60:.1f} minutes; nothing was timed")


def _print_fit(gpu: Gpu, path: Path) -> None:
    """Fitted constants beside A100's, and the line for the cluster file."""
    from libra.backends.sim.constants import load_constants
    from libra.backends.sim.gpus.fit import fit
    from libra.backends.sim.gpus.points import read_points

    out = console()
    found, before = fit(gpu, read_points(path)), load_constants()
    rows = [
        (name, constant(getattr(before, name)), constant(getattr(found.constants, name)), f"{number} {kind} points")
        for name, (kind, number) in found.origins.items()
    ]
    out.print(table("\nconstants", ("constant", "A100", gpu.name, "from"), rows))
    out.print(f"\ntaken from A100: {', '.join(found.kept) or 'nothing'}")
    line = f'\nto use them, write into [gpu] of the cluster file, with a path from its folder:\nmeasured = "{path}"'
    out.print(line, markup=False)
