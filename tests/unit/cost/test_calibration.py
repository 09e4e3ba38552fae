from __future__ import annotations

import pytest

from libra.core.events import StepEnd
from libra.core.plan import TrainLayout
from libra.cost.calibration import CLIP, fit_training, moving_factor, observed_rollout_s


def test_factor_converges_to_a_constant_ratio() -> None:
    assert moving_factor([]) == 1.0
    assert moving_factor([2.0]) == pytest.approx(1.3)
    assert moving_factor([2.0] * 30) == pytest.approx(2.0, rel=1e-3)


def test_factor_is_clipped() -> None:
    assert moving_factor([1e9] * 50) <= CLIP[1]
    assert moving_factor([1e-9] * 50) >= CLIP[0]


def test_fixed_overhead_is_learned_when_steps_differ() -> None:
    estimated = [10.0, 20.0, 15.0, 30.0, 12.0]
    factor, fixed_s = fit_training(estimated, [1.5 * x + 9.0 for x in estimated])
    assert factor == pytest.approx(1.5)
    assert fixed_s == pytest.approx(9.0)


def test_equal_steps_teach_a_factor_only() -> None:
    factor, fixed_s = fit_training([10.0] * 8, [20.0] * 8)
    assert fixed_s == 0.0
    assert factor == pytest.approx(2.0, rel=0.06)


def test_a_line_with_negative_overhead_is_not_believed() -> None:
    _, fixed_s = fit_training([10.0, 20.0, 30.0, 40.0], [5.0, 25.0, 45.0, 65.0])
    assert fixed_s == 0.0


def step(rollout_s: float, train_s: float, step_s: float) -> StepEnd:
    return StepEnd(0.0, 3, rollout_s, train_s, 2.0, step_s, 1000, TrainLayout(tp=4, dp=2), 2)


def test_what_a_step_shows_of_rollout() -> None:
    assert observed_rollout_s(step(100.0, 20.0, 102.0), "barrier") == 100.0
    # Asynchronous: the trainer waited 60 of 102 s, so rollout set the pace for all but the sync.
    assert observed_rollout_s(step(60.0, 40.0, 102.0), "async") == 100.0
    assert observed_rollout_s(step(0.5, 100.0, 102.0), "async") is None
