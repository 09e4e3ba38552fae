"""One calibration: what is missing in the table is timed and appended row by row, so it stops and goes on anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec

from libra.backends.calibrate.operators import OPERATORS, operator_s
from libra.backends.calibrate.ranks import all_reduce_s
from libra.backends.calibrate.serving import decode_steps_s, has_vllm
from libra.backends.calibrate.timing import Bench
from libra.backends.calibrate.transformer import decode_step, train_step
from libra.backends.sim.gpus.points import HEADER, GpuPoint, read_points, write_row
from libra.core.hardware import Model

OnPoint = Callable[[GpuPoint], None]
OnSkip = Callable[[str], None]


@dataclass
class Table:
    """The CSV file that grows. Raises `ConfigError` for a file that is something else."""

    path: Path
    head: str
    """A comment line for a new file: what machine this is."""

    def missing(self, points: Sequence[GpuPoint]) -> list[GpuPoint]:
        known = {point.key for point in read_points(self.path)} if self.path.exists() else set()
        return [point for point in points if point.key not in known]

    def append(self, point: GpuPoint) -> None:
        """Written at once: an interrupted run loses no row."""
        is_new = not self.path.exists()
        with self.path.open("a", encoding="utf-8") as file:
            if is_new:
                file.write(f"# {self.head}\n{','.join(HEADER)}\n")
            file.write(write_row(point) + "\n")


def run(
    bench: Bench,
    model: Model,
    points: Sequence[GpuPoint],
    table: Table,
    limit_s: float,
    on_point: OnPoint,
    skip: OnSkip,
) -> int:
    """Time what is missing until `limit_s` is over; returns how many points are left. Told why any was skipped."""
    end_s = time.monotonic() + limit_s
    todo = table.missing(points)
    num_left = len(todo)
    for timed in _timed(bench, model, todo, skip):
        if timed is not None:
            table.append(timed)
            on_point(timed)
        num_left -= 1
        if time.monotonic() > end_s:
            break
    return num_left


def _timed(bench: Bench, model: Model, todo: Sequence[GpuPoint], skip: OnSkip) -> Iterator[GpuPoint | None]:
    """Points with their times, one after another; none for one that cannot be timed here."""
    for kind, group in groupby(todo, key=lambda point: point.kind):
        points = list(group)
        if kind.endswith("all_reduce"):
            for _, same in groupby(points, key=lambda point: point["gpus"]):
                ranks = list(same)
                for point, seconds in zip(ranks, all_reduce_s(bench, ranks), strict=True):
                    yield _with_time(point, seconds, bench.source)
        elif kind == "decode_step" and bench.device == "cuda":
            yield from _through_vllm(bench, model, points, skip)
        else:
            yield from (_one(bench, model, point, skip) for point in points)


def _one(bench: Bench, model: Model, point: GpuPoint, skip: OnSkip) -> GpuPoint | None:
    try:
        if point.kind in OPERATORS:
            seconds = operator_s(bench, point)
        else:
            made = decode_step if point.kind == "decode_step" else train_step
            seconds = bench.median_s(made(bench, model, point))
    except bench.torch.OutOfMemoryError:
        skip(f"{point.kind} {point.label}: out of memory")
        return None
    return _with_time(point, seconds, bench.source)


def _through_vllm(bench: Bench, model: Model, points: list[GpuPoint], skip: OnSkip) -> Iterator[GpuPoint | None]:
    """Decode steps are the engine's; on a GPU nothing stands for them, because a plain loop times its launches."""
    if not has_vllm():
        skip("decode_step: vLLM is not installed; step_overhead_s and step_per_seq_s stay A100's")
        yield from (None for _ in points)
        return
    dtype = str(bench.dtype).removeprefix("torch.")
    for point, seconds in decode_steps_s(model, points, dtype):
        yield _with_time(point, seconds, f"{bench.source} vLLM")


def _with_time(point: GpuPoint, seconds: float, source: str) -> GpuPoint:
    return msgspec.structs.replace(point, time_s=seconds, source=source)
