from __future__ import annotations

import msgspec
import numpy as np
import pytest

from libra.cost.rates import Observed, Rates, refit

TRUE = Rates(memory=0.8, train=0.3, train_fixed_s=12.0)
LOADS = np.array([10.0, 40.0, 160.0])


def stages(rates: Rates) -> np.ndarray:
    """Reading takes 1/memory, training 1/train and its fixed part."""
    return np.concatenate([LOADS / rates.memory, LOADS / rates.train + rates.train_fixed_s])


def observed(rates: Rates, spread: float = 0.0) -> list[Observed]:
    return [Observed(float(seconds), spread) for seconds in stages(rates)]


def test_rates_are_found_again() -> None:
    found = refit(stages, observed(TRUE))
    assert found.memory == pytest.approx(0.8, rel=0.02)
    assert found.train == pytest.approx(0.3, rel=0.05)
    assert found.train_fixed_s == pytest.approx(12.0, rel=0.05)


def test_what_no_run_tells_stays_as_assumed() -> None:
    found = refit(stages, observed(TRUE))
    assert found.prefill == pytest.approx(Rates().prefill)
    assert found.switch_s == pytest.approx(0.0, abs=1e-6)


def test_what_was_assumed_weighs_more_when_runs_are_noisy() -> None:
    sure, unsure = (refit(stages, observed(TRUE, spread)) for spread in (0.0, 1.0))
    assert abs(unsure.memory - Rates().memory) < 0.5 * abs(sure.memory - Rates().memory)


def test_a_fit_may_go_on_from_another_one() -> None:
    again = refit(stages, observed(TRUE), TRUE)
    assert msgspec.structs.astuple(again) == pytest.approx(msgspec.structs.astuple(TRUE), abs=1e-6)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_times_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        refit(lambda rates: np.array([1.0]), [Observed(seconds)])
