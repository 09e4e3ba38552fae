"""Predicted against measured live runs: what was written down before them, what they took, and the error of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from statistics import mean, stdev
from typing import Any

import msgspec


class Predicted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Means over draws of the recorded trajectories; `low_s` and `high_s` are the shortest and longest makespan.

    `carried_s` is what needs no simulator: the pace of the calibration runs, for as many steps.
    """

    cell: str
    makespan_s: float
    tok_per_s: float
    low_s: float
    high_s: float
    carried_s: float


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

    def names(self) -> dict[str, str]:
        """By cell, what tells it from the other predicted ones: `cpu3, hand-mlfq, pipeline.kind=async, seed 1`."""
        telling = _telling({_settings(run.cell) for run in self.predictions.runs})
        return {
            run.cell: ", ".join((*sorted(_settings(run.cell) & telling), *_seed(run.cell)))
            for run in self.predictions.runs
        }

    def contrasts(self) -> list[Contrast]:
        """Runs that differ in one setting (system, pipeline), seeds apart, in the order of the predictions."""
        groups: dict[frozenset[str], list[Pair]] = {}
        for pair in self.pairs():
            groups.setdefault(_settings(pair.predicted.cell), []).append(pair)
        found, telling = [], _telling(groups)
        for (one, pairs), (other, other_pairs) in combinations(groups.items(), 2):
            if len(one - other) == 1:
                (here,), (there,), beside = one - other, other - one, ", ".join(sorted(one & other & telling))
                found.append(Contrast(here, there, beside, tuple(pairs), tuple(other_pairs)))
        return found

    def said(self) -> tuple[str, ...]:
        """What the errors are worth: beside those of no simulator at all, and of differences between runs."""
        carried = mean_error([pair.carried_error for pair in self.pairs()])
        pace = f"The calibration runs' pace carried over, without a simulator, errs by {carried:.1%} of the makespan."
        contrasts = self.contrasts()
        if not contrasts:
            return (pace,)
        right = sum(each.same_sign for each in contrasts)
        listed = "; ".join(map(str, contrasts))
        return (
            pace,
            f"Of {len(contrasts)} differences between runs that differ in one setting, {right} have the predicted sign "
            f"(predicted, measured): {listed}.",
        )


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

    @property
    def carried_error(self) -> float:
        return self.predicted.carried_s / self.measured.makespan_s - 1.0


class Contrast(msgspec.Struct, frozen=True):
    """What one setting changes, `beside` the settings that both share; seconds of makespan, the other less the one."""

    one: str
    other: str
    beside: str
    pairs: tuple[Pair, ...]
    other_pairs: tuple[Pair, ...]

    @property
    def predicted_s(self) -> float:
        return mean(p.predicted.makespan_s for p in self.other_pairs) - mean(p.predicted.makespan_s for p in self.pairs)

    @property
    def measured_s(self) -> float:
        return mean(p.measured.makespan_s for p in self.other_pairs) - mean(p.measured.makespan_s for p in self.pairs)

    @property
    def measured_error_s(self) -> float | None:
        """Standard error of the measured difference; None where a side was measured once."""
        spans = [[p.measured.makespan_s for p in side] for side in (self.pairs, self.other_pairs)]
        if min(map(len, spans)) < 2:
            return None
        return sum(stdev(side) ** 2 / len(side) for side in spans) ** 0.5

    @property
    def same_sign(self) -> bool:
        return self.predicted_s * self.measured_s > 0

    def __str__(self) -> str:
        error_s = self.measured_error_s
        noise = " (one run each)" if error_s is None else f" ± {error_s:.1f} s"
        return f"{self.one} to {self.other}: {self.predicted_s:+.1f} s, {self.measured_s:+.1f} s{noise} [{self.beside}]"


def _settings(label: str) -> frozenset[str]:
    """The parts of a cell's label, its seed apart."""
    *parts, variant = label.split(" / ")
    return frozenset(part for part in (*parts, *variant.split(", ")) if not part.startswith("seed "))


def _seed(label: str) -> list[str]:
    """Its seed as it stands in a cell's label."""
    return [part for part in label.split(" / ") if part.startswith("seed ")]


def _telling(groups: Iterable[frozenset[str]]) -> frozenset[str]:
    """Of settings that are only met together one; of those that all have none."""
    groups = list(groups)
    found: dict[frozenset[frozenset[str]], str] = {}
    for setting in sorted(frozenset().union(*groups)):
        found.setdefault(frozenset(group for group in groups if setting in group), setting)
    return frozenset(found.values()) - {found.get(frozenset(groups))}


def mean_error(errors: list[float]) -> float:
    """Of the absolute errors."""
    return sum(map(abs, errors)) / len(errors)
