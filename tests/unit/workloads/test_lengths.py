"""Closed forms of limited lognormals and drift curves."""

from __future__ import annotations

import numpy as np
import pytest

from libra.core.errors import ConfigError
from libra.workloads.lengths import Drift, limited_mean, lognormal_mu, share_over


@pytest.mark.parametrize(("mu", "sigma", "limit"), [(7.1, 1.2, 40_960.0), (8.9, 1.2, 40_960.0), (8.0, 0.8, 3_000.0)])
def test_limited_mean_is_the_integral_of_the_survival_function(mu: float, sigma: float, limit: float) -> None:
    grid = np.linspace(0, limit, 200_001)[1:] - limit / 400_000
    survival = [share_over(mu, sigma, x) for x in grid[::20]]
    assert limited_mean(mu, sigma, limit) == pytest.approx(np.mean(survival) * limit, rel=1e-3)


def test_without_a_limit_in_reach_it_is_the_lognormal_mean() -> None:
    assert limited_mean(2.0, 0.5, 1e12) == pytest.approx(np.exp(2.125), rel=1e-12)


@pytest.mark.parametrize("mean", [1.0, 2_500.0, 11_500.0, 40_000.0])
def test_mu_gives_the_mean_back(mean: float) -> None:
    assert limited_mean(lognormal_mu(mean, 1.2, 40_960.0), 1.2, 40_960.0) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("mean", [0.0, 40_960.0, 50_000.0])
def test_a_mean_beyond_the_limit_is_refused(mean: float) -> None:
    with pytest.raises(ConfigError, match="choose a model with a longer context"):
        lognormal_mu(mean, 1.0, 40_960.0)


@pytest.mark.parametrize(
    ("initial", "final", "mean"),
    [(2_500, 11_500, 10_800), (2_000, 3_200, 2_700), (2_500, 11_500, 7_000), (2_500, 11_500, 4_000), (9, 3, 4)],
)
def test_drift_meets_its_ends_and_its_time_mean(initial: float, final: float, mean: float) -> None:
    drift = Drift(initial, final, mean)
    assert (drift.at(0), drift.at(1)) == (initial, pytest.approx(final))
    assert np.mean([drift.at((k + 0.5) / 20_000) for k in range(20_000)]) == pytest.approx(mean, rel=1e-5)


def test_a_mean_midway_is_a_straight_line_and_equal_ends_a_constant() -> None:
    assert Drift(2_500, 11_500, 7_000).at(0.25) == 4_750
    assert Drift(8, 8, 8).at(0.3) == 8


def test_r2e_saturates_within_a_twelfth_of_training() -> None:
    # 1/k - 1/(e^k - 1) = 1 - (10.8 - 2.5) / 9; the second term is 1e-6 there
    assert 1 / Drift(2_500, 11_500, 10_800).rate == pytest.approx(0.7 / 9, abs=1e-5)


def test_beyond_training_the_value_stays() -> None:
    drift = Drift(1, 2, 1.6)
    assert (drift.at(-3), drift.at(7)) == (drift.at(0), drift.at(1))


@pytest.mark.parametrize(("initial", "final", "mean"), [(1, 2, 2), (1, 2, 1), (1, 2, 3), (5, 5, 6), (1, 2, 0.5)])
def test_impossible_time_means_are_refused(initial: float, final: float, mean: float) -> None:
    with pytest.raises(ConfigError, match="strictly between the two ends"):
        Drift(initial, final, mean)
