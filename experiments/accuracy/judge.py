"""Estimates beside measurements: calibration on some cases, errors on the others, how well plans are ordered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, spearmanr

from experiments.accuracy.cases import Case
from experiments.accuracy.measure import Measured
from libra.core.policy import Statistics
from libra.cost.rates import Rates
from libra.models import load_model
from libra.planning.calibrate import Run, calibrate


@dataclass(frozen=True)
class Judged:
    """A case with what was measured and, from the lengths that it trained or from others of the same law, expected."""

    case: Case
    measured: Measured

    def run(self, *, is_blind: bool) -> Run:
        lengths = self.measured.profile if is_blind else self.measured.lengths
        statistics = Statistics(self.measured.run, lengths, self.measured.steps)
        return Run(self.case.job.cluster(), load_model(self.case.job.model), self.case.plan, statistics)

    def step_s(self, rates: Rates, *, is_blind: bool) -> float:
        """The estimate of a step."""
        return self.run(is_blind=is_blind).estimate(rates).step_s


def learn(cases: Sequence[Judged]) -> Rates:
    """Rates from runs, by what each of them would report."""
    return calibrate([each.run(is_blind=False) for each in cases])


class Errors(msgspec.Struct, frozen=True):
    """Shares of the measured step; ranks over all cases."""

    mean: float
    median: float
    p90: float
    largest: float
    within_5: float
    within_10: float
    bias: float
    spearman: float
    kendall: float


def errors(expected_s: Sequence[float], measured_s: Sequence[float]) -> Errors:
    expected, measured = np.asarray(expected_s), np.asarray(measured_s)
    signed: NDArray[np.float64] = expected / measured - 1
    size = np.abs(signed)
    return Errors(
        mean=float(size.mean()), median=float(np.median(size)), p90=float(np.quantile(size, 0.9)),
        largest=float(size.max()), within_5=float((size <= 0.05).mean()), within_10=float((size <= 0.10).mean()),
        bias=float(signed.mean()), spearman=float(spearmanr(expected, measured).statistic),
        kendall=float(kendalltau(expected, measured).statistic),
    )  # fmt: skip
