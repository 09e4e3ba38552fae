"""Intervals against closed forms and tabulated t quantiles."""

from __future__ import annotations

import math

import pytest

from analysis.statistics import (
    RESOLVED_HALF_WIDTH,
    failure_upper_bound,
    mean_interval,
    paired_difference,
    paired_ratio,
    relative_half_width,
)

# Two-sided 95 % quantiles of Student's t as printed in any table.
T_1, T_2, T_4 = 12.706, 4.303, 2.776


def test_mean_interval_of_three_values_is_the_textbook_one() -> None:
    found = mean_interval({7: 3.0, 5: 1.0, 6: 2.0})
    half = T_2 * 1.0 / math.sqrt(3.0)  # the sample standard deviation of 1, 2, 3 is 1
    assert found.value == 2.0
    assert found.low == pytest.approx(2.0 - half, rel=1e-3)
    assert found.high == pytest.approx(2.0 + half, rel=1e-3)
    assert (found.n, found.seeds, found.per_seed) == (3, (5, 6, 7), (1.0, 2.0, 3.0))


def test_one_seed_has_a_value_and_no_interval() -> None:
    found = mean_interval({0: 4.0})
    assert (found.value, found.low, found.high, found.n) == (4.0, None, None, 1)
    assert found.half_width is None
    assert not found.resolved


def test_equal_values_have_an_interval_of_width_zero() -> None:
    found = mean_interval({0: 4.0, 1: 4.0})
    assert (found.low, found.high, found.half_width, found.resolved) == (4.0, 4.0, 0.0, True)


def test_paired_ratio_is_geometric_and_its_interval_is_on_the_logs() -> None:
    found = paired_ratio({0: 2.0, 1: 8.0}, {0: 1.0, 1: 1.0})
    # logs: ln 2 and 3 ln 2; mean 2 ln 2; sample standard deviation sqrt(2) ln 2, so standard error ln 2.
    assert found.value == pytest.approx(4.0)
    assert found.low == pytest.approx(4.0 * 2.0**-T_1, rel=1e-3)
    assert found.high == pytest.approx(4.0 * 2.0**T_1, rel=1e-3)
    assert found.per_seed == (2.0, 8.0)


def test_pairing_removes_what_seeds_share() -> None:
    fast = {seed: 1.2 * scale for seed, scale in enumerate((1.0, 5.0, 30.0))}
    slow = dict(enumerate((1.0, 5.0, 30.0)))
    found = paired_ratio(fast, slow)
    assert found.value == pytest.approx(1.2)
    assert found.half_width == pytest.approx(0.0, abs=1e-12)


def test_ratio_and_its_inverse_agree() -> None:
    a, b = {0: 1.0, 1: 2.0, 2: 2.5}, {0: 2.0, 1: 3.0, 2: 7.0}
    forward, backward = paired_ratio(a, b), paired_ratio(b, a)
    assert forward.low is not None and backward.high is not None
    assert forward.value * backward.value == pytest.approx(1.0)
    assert forward.low * backward.high == pytest.approx(1.0)


def test_seeds_of_one_side_only_are_named() -> None:
    found = paired_ratio({0: 1.0, 1: 2.0, 3: 9.0}, {0: 1.0, 1: 1.0, 2: 5.0})
    assert (found.seeds, found.unpaired_seeds, found.n) == ((0, 1), (2, 3), 2)


def test_paired_difference() -> None:
    found = paired_difference({0: 5.0, 1: 6.0, 2: 7.0, 3: 8.0, 4: 9.0}, {0: 4.0, 1: 4.0, 2: 4.0, 3: 4.0, 4: 4.0})
    # differences 1..5: mean 3, sample variance 2.5
    assert found.value == pytest.approx(3.0)
    assert found.high == pytest.approx(3.0 + T_4 * math.sqrt(2.5 / 5.0), rel=1e-3)


def test_resolved_at_two_per_cent_exactly() -> None:
    assert relative_half_width(1.0, 1.0 - RESOLVED_HALF_WIDTH, 1.0) == pytest.approx(0.02)
    assert relative_half_width(-2.0, -2.5, -1.9) == pytest.approx(0.25)
    assert relative_half_width(0.0, -1.0, 1.0) == math.inf
    wide = mean_interval({0: 100.0, 1: 101.0})
    assert wide.half_width == pytest.approx(T_1 * 0.5 / 100.5, rel=1e-3)
    assert not wide.resolved


@pytest.mark.parametrize("trials", [1, 10, 59, 1000])
def test_zero_failures_bound_solves_its_definition(trials: int) -> None:
    bound = failure_upper_bound(trials)
    assert (1.0 - bound) ** trials == pytest.approx(0.05)
    assert bound <= 3.0 / trials


def test_zero_failures_in_59_trials_is_below_five_per_cent() -> None:
    assert failure_upper_bound(59) < 0.05 < failure_upper_bound(58)


def test_impossible_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="no seed to average"):
        mean_interval({})
    with pytest.raises(ValueError, match="seed 3: value is not finite"):
        mean_interval({3: math.nan})
    with pytest.raises(ValueError, match="no seed in common"):
        paired_ratio({0: 1.0}, {1: 1.0})
    with pytest.raises(ValueError, match="needs positive values"):
        paired_ratio({0: 0.0}, {0: 1.0})
    with pytest.raises(ValueError, match="at least 1"):
        failure_upper_bound(0)
