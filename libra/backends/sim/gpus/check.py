"""Errors on a GPU's own table, kind by kind: as A100, fitted, and each half without the other."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from libra.backends.sim.blind import BLIND
from libra.backends.sim.constants import Constants, load_constants
from libra.backends.sim.gpus import fit_of, points_of
from libra.backends.sim.gpus.fit import GpuFit, fit
from libra.backends.sim.gpus.points import GpuPoint
from libra.backends.sim.gpus.predict import predict_s
from libra.core.hardware import Gpu


class KindError(msgspec.Struct, frozen=True):
    """Mean absolute relative errors over the points of one kind; `bias` keeps the sign, negative where we are too fast.

    `fitted` says whether its points determined constants; otherwise the kind is a check that no fit has seen.
    """

    kind: str
    num_points: int
    fitted: bool
    with_a100: float
    mean: float
    bias: float
    held_out: float | None
    """Each half predicted by the other; None where half of the points are too few, or none is fitted."""
    worst: str


def check(gpu: Gpu) -> tuple[KindError, ...]:
    """One row a kind; none for a GPU without a table. About a second."""
    points, found = points_of(gpu), fit_of(gpu)
    halves = [fit(gpu, points[start::2]) for start in (0, 1)]
    kinds = dict.fromkeys(point.kind for point in points)
    rows = [_kind(gpu, kind, points, found.constants, halves, kind in found.kinds) for kind in kinds]
    return tuple(rows + [row for table in BLIND for row in _table(gpu, table, found.constants)])


def whole_runs(gpu: Gpu, table: str, constants: Constants) -> dict[str, float]:
    """Relative errors of the runs of a blind table on a GPU of this name; their attention is what the table says."""
    rows = (row for row in BLIND[table](constants) if row.gpu == gpu.name)
    return {row.name: row.now_s / row.measured_s - 1.0 for row in rows}


def _table(gpu: Gpu, table: str, ours: Constants) -> list[KindError]:
    after = whole_runs(gpu, table, ours)
    if not after:
        return []
    before, errors = list(whole_runs(gpu, table, load_constants()).values()), list(after.values())
    worst = max(after, key=lambda name: abs(after[name]))
    mean = _mean_size(errors)
    return [KindError(table, len(errors), False, _mean_size(before), mean, sum(errors) / len(errors), None,
                      f"{worst} ({after[worst]:+.0%})")]  # fmt: skip


def _kind(
    gpu: Gpu, kind: str, points: Sequence[GpuPoint], ours: Constants, halves: Sequence[GpuFit], fitted: bool
) -> KindError:
    taken = [(number, point) for number, point in enumerate(points) if point.kind == kind]
    before = [_error(gpu, load_constants(), point) for _, point in taken]
    after = [_error(gpu, ours, point) for _, point in taken]
    unseen = [_error(gpu, halves[1 - number % 2].constants, point) for number, point in taken]
    held_out = _mean_size(unseen) if all(kind in half.kinds for half in halves) else None
    worst = max(range(len(taken)), key=lambda index: abs(after[index]))
    return KindError(
        kind, len(taken), fitted, _mean_size(before), _mean_size(after), sum(after) / len(after), held_out,
        f"{taken[worst][1].label} ({after[worst]:+.0%})",
    )  # fmt: skip


def _error(gpu: Gpu, constants: Constants, point: GpuPoint) -> float:
    return predict_s(gpu, constants, point) / point.time_s - 1.0


def _mean_size(errors: Sequence[float]) -> float:
    return sum(abs(error) for error in errors) / len(errors)
