"""Intervals for few seeds.

Policies meet the same trajectories under the same seed, so two policies are compared by pairs: the geometric mean of
the paired ratios, with a Student t interval on the logs. Nothing here drops a seed in silence, and nothing computes a
p-value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scipy import stats

CONFIDENCE = 0.95
"""Two-sided level of every interval."""

RESOLVED_HALF_WIDTH = 0.02
"""A comparison counts as resolved when its interval is within 2 % of its value: finer than the smallest gain that the
paper reports for one component (8 %), by a factor of four."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its confidence interval; `low` and `high` are None for fewer than two seeds."""

    value: float
    low: float | None
    high: float | None
    n: int
    seeds: tuple[int, ...]
    per_seed: tuple[float, ...]
    """Value of every seed, in the order of `seeds`."""
    unpaired_seeds: tuple[int, ...] = ()
    """Seeds that only one of the two policies finished; they are in neither `seeds` nor `n`."""

    @property
    def half_width(self) -> float | None:
        """Wider side of the interval as a share of the absolute value; None without an interval."""
        return relative_half_width(self.value, self.low, self.high)

    @property
    def resolved(self) -> bool:
        """Whether the half-width is at most `RESOLVED_HALF_WIDTH`; else the comparison is "unresolved"."""
        return self.half_width is not None and self.half_width <= RESOLVED_HALF_WIDTH


def relative_half_width(value: float, low: float | None, high: float | None) -> float | None:
    """Wider side of [low, high] around `value`, as a share of |value|; None without an interval, inf around zero."""
    if low is None or high is None:
        return None
    side = max(value - low, high - value)
    if side == 0.0:
        return 0.0
    return side / abs(value) if value != 0.0 else math.inf


def mean_interval(by_seed: Mapping[int, float]) -> Estimate:
    """Mean over seeds with a Student t interval.

    Raises ValueError when there is no seed, or a value is not finite.
    """
    seeds, values = _ordered(by_seed)
    mean = math.fsum(values) / len(values)
    half = _t_half_width(values)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Estimate(mean, low, high, len(values), seeds, values)


def paired_ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> Estimate:
    """Geometric mean over seeds of numerator / denominator, with a t interval on the logs of the ratios.

    Raises ValueError when no seed is in both, or a value is not positive.
    """
    common, unpaired = _pair(numerator, denominator)
    ratios = {}
    for seed in common:
        if not (numerator[seed] > 0.0 and denominator[seed] > 0.0):
            raise ValueError(f"seed {seed}: a ratio needs positive values, got {numerator[seed]} / {denominator[seed]}")
        ratios[seed] = numerator[seed] / denominator[seed]
    seeds, values = _ordered(ratios)
    logs = tuple(math.log(value) for value in values)
    centre = math.fsum(logs) / len(logs)
    half = _t_half_width(logs)
    low, high = (None, None) if half is None else (math.exp(centre - half), math.exp(centre + half))
    return Estimate(math.exp(centre), low, high, len(values), seeds, values, unpaired)


def paired_difference(minuend: Mapping[int, float], subtrahend: Mapping[int, float]) -> Estimate:
    """Mean over seeds of minuend - subtrahend, with a t interval on the differences.

    Raises ValueError when no seed is in both.
    """
    common, unpaired = _pair(minuend, subtrahend)
    seeds, values = _ordered({seed: minuend[seed] - subtrahend[seed] for seed in common})
    mean = math.fsum(values) / len(values)
    half = _t_half_width(values)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Estimate(mean, low, high, len(values), seeds, values, unpaired)


def failure_upper_bound(num_trials: int) -> float:
    """Exact 95 % upper bound of a failure rate after zero failures in `num_trials`: 1 - 0.05^(1/n), about 3/n.

    Raises ValueError when there was no trial.
    """
    if num_trials < 1:
        raise ValueError(f"num_trials must be at least 1, got {num_trials}")
    return float(-math.expm1(math.log(1.0 - CONFIDENCE) / num_trials))


def _pair(left: Mapping[int, float], right: Mapping[int, float]) -> tuple[list[int], tuple[int, ...]]:
    common = sorted(left.keys() & right.keys())
    if not common:
        raise ValueError(f"no seed in common: {sorted(left)} against {sorted(right)}")
    return common, tuple(sorted(left.keys() ^ right.keys()))


def _ordered(by_seed: Mapping[int, float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    if not by_seed:
        raise ValueError("no seed to average over")
    seeds = tuple(sorted(by_seed))
    values = tuple(float(by_seed[seed]) for seed in seeds)
    for seed, value in zip(seeds, values, strict=True):
        if not math.isfinite(value):
            raise ValueError(f"seed {seed}: value is not finite ({value})")
    return seeds, values


def _t_half_width(values: tuple[float, ...]) -> float | None:
    """Half-width of the t interval of the mean; None for one value, which says nothing about its spread."""
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return float(stats.t.ppf(0.5 + CONFIDENCE / 2.0, n - 1)) * math.sqrt(variance / n)
