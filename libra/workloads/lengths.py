"""Closed forms behind the generators: mean of a lognormal under a length limit, and the drift of means over training.

The paper reports a mean length that grows during training and time averages; both are solved
for here, so that a workload is stated in the numbers that were reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from libra.core.errors import ConfigError

BISECTIONS = 80
"""Halvings of an interval under 1e4 wide: below the spacing of doubles."""
MAX_RATE = 500.0
"""Steepest drift curve: the time mean lies within 0.2 % of the range from one end."""


def limited_mean(mu: float, sigma: float, limit: float) -> float:
    """E[min(X, limit)] of X ~ LN(mu, sigma): the limited expected value of actuarial mathematics."""
    z = (math.log(limit) - mu) / sigma
    return math.exp(mu + sigma**2 / 2) * _cdf(z - sigma) + limit * _cdf(-z)


def share_over(mu: float, sigma: float, limit: float) -> float:
    """P(X > limit) of X ~ LN(mu, sigma)."""
    return _cdf((mu - math.log(limit)) / sigma)


@lru_cache(maxsize=4096)
def lognormal_mu(mean: float, sigma: float, limit: float) -> float:
    """The mu for which `limited_mean` is `mean`. Raises `ConfigError` unless 0 < mean < limit."""
    if not 0 < mean < limit:
        raise ConfigError(
            f"no lognormal limited to {limit:,.0f} tokens has this mean",
            value=round(mean, 1),
            mend="lower the mean lengths of the workload, or choose a model with a longer context limit",
        )
    low = math.log(mean) - sigma**2 / 2  # the mu without a limit, and a limit only lowers the mean
    step = 1.0
    while limited_mean(low + step, sigma, limit) < mean:
        step *= 2
    high = low + step
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if limited_mean(middle, sigma, limit) < mean else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Drift:
    """A value that moves from `initial` to `final` over progress 0 to 1 and averages `time_mean` on the way.

    The curve is exponential in progress, saturating when the time mean lies nearer to `final`; midway it is linear.
    """

    initial: float
    final: float
    time_mean: float

    def __post_init__(self) -> None:
        if self.initial == self.final == self.time_mean:
            return
        if not 1 / MAX_RATE < self._mean_share < 1 - 1 / MAX_RATE:
            raise ConfigError(
                f"no drift from {self.initial:g} to {self.final:g} has this time mean",
                value=self.time_mean,
                mend="choose a time mean strictly between the two ends (midway makes the drift linear)",
            )

    @property
    def _mean_share(self) -> float:
        span = self.final - self.initial
        return (self.time_mean - self.initial) / span if span else math.inf

    @cached_property
    def rate(self) -> float:
        """k of (1 - exp(-k p)) / (1 - exp(-k)); 0 is linear, 1/k the time constant as a share of training."""
        if self.initial == self.final or math.isclose(self._mean_share, 0.5):
            return 0.0
        low, high = -MAX_RATE, MAX_RATE
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if _mean_of_curve(middle) < self._mean_share else (low, middle)
        return (low + high) / 2

    def at(self, progress: float) -> float:
        """Value at a progress; beyond 0 and 1 it stays at the ends."""
        p = min(max(progress, 0.0), 1.0)
        share = p if self.rate == 0 else math.expm1(-self.rate * p) / math.expm1(-self.rate)
        return self.initial + (self.final - self.initial) * share


def _mean_of_curve(rate: float) -> float:
    if abs(rate) < 1e-6:  # series: the closed form loses all its digits here
        return 0.5 + rate / 12
    return -1 / math.expm1(-rate) - 1 / rate


def _cdf(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2
