"""Predicted against measured live runs: what was written down before them, what they took, and the error of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Predicted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Means over draws of the recorded trajectories; `low_s` and `high_s` are the shortest and longest makespan."""

    cell: str
    makespan_s: float
    tok_per_s: float
    low_s: float
    high_s: float


class Predictions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tables` are the fitted figures by cluster; `calibrated_on` the cells behind them; `residuals` how far the
    simulator is from those after the fit."""

    commit: str
    machine: str
    date: str
    num_draws: int
    calibrated_on: tuple[str, ...]
    tables: Mapping[str, Any]
    residuals: Mapping[str, float]
    runs: tuple[Predicted, ...]


class MeasuredRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`id` names the cell in the store of the study; `replay` is what replaying its log gave."""

    cell: str
    id: str
    steps: int
    makespan_s: float
    tok_per_s: float
    replay: str


class Fidelity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole study; `predictions_commit` is the one that brought the predictions into the repository."""

    predictions: Predictions
    predictions_commit: str
    measured_commit: str
    date: str
    runs: tuple[MeasuredRun, ...]

    def pairs(self) -> list[Pair]:
        """Predicted runs that were measured, in the order of the predictions."""
        measured = {run.cell: run for run in self.runs}
        return [Pair(run, measured[run.cell]) for run in self.predictions.runs if run.cell in measured]


class Pair(msgspec.Struct, frozen=True):
    """Errors are relative to the measured value; positive: predicted too long, or too fast."""

    predicted: Predicted
    measured: MeasuredRun

    @property
    def makespan_error(self) -> float:
        return self.predicted.makespan_s / self.measured.makespan_s - 1.0

    @property
    def rate_error(self) -> float:
        return self.predicted.tok_per_s / self.measured.tok_per_s - 1.0


def mean_error(errors: list[float]) -> float:
    """Of the absolute errors."""
    return sum(map(abs, errors)) / len(errors)
