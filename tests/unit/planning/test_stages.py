"""Splits from stage times: closed forms, published tables, and what such numbers cannot tell."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.core.errors import CapacityError, ConfigError
from libra.planning.stages import Stages, advise, default_unit

PUBLISHED = [  # verl docs, fully_async.md: GPUs, colocated generation, log-probabilities and update in seconds
    (32, 357.41, 107.71 + 269.80),
    (64, 150.72, 70.26 + 133.41),
    (128, 177.85, 53.92 + 113.81),
    (128, 348.05, 28.73 + 86.27 + 20.86),
    (32, 228.03, 35.19 + 111.84),
    (16, 52.9, 430.3),
]

times = st.floats(1, 10_000)
counts = st.integers(1, 64)


@settings(deadline=None)
@given(times, times, counts, counts)
def test_the_bound_and_the_best_are_what_brute_force_finds(
    rollout_s: float, train_s: float, rollout: int, train: int
) -> None:
    advice = advise(Stages(rollout_s, train_s, rollout, train), unit=1)
    total = rollout + train
    work = Fraction(rollout_s) * rollout, Fraction(train_s) * train
    least = min(max(work[0] / k, work[1] / (total - k)) for k in range(1, total))
    assert advice.options[0].step_s == pytest.approx(float(min(least, sum(work) / total)))
    assert all(option.step_s >= advice.bound_s * (1 - 1e-9) for option in advice.options)
    assert advice.best.gain.low >= 0


@settings(deadline=None)
@given(times, times, counts, counts, st.floats(0, 1))
def test_no_split_is_shorter_than_the_longest_trajectory(
    rollout_s: float, train_s: float, rollout: int, train: int, share: float
) -> None:
    stages = Stages(rollout_s, train_s, rollout, train, longest_s=share * rollout_s)
    assert all(option.step.low >= stages.longest_s for option in advise(stages, unit=1).options)


def test_today_is_measured_and_so_has_no_interval() -> None:
    today = advise(Stages(100, 60, 16, 16)).today
    assert (today.step.low, today.step.high, today.gain.low, today.gain.high) == (100, 100, 0, 0)
    assert (today.rollout_idle, today.train_idle) == (0, pytest.approx(0.4))


def test_overlap_of_balanced_stages_saves_nothing_at_perfect_scaling() -> None:
    """Two balanced halves side by side do the work of one whole after the other; only imperfect scaling pays."""
    advice = advise(Stages(100, 100, 32, 32, colocated=True))
    assert advice.today.step_s == advice.options[0].step_s == 200
    assert advice.best is advice.today or advice.best.gain.low == pytest.approx(0)


def test_openrlhf_stage_times_pay_for_overlap_but_not_for_another_split() -> None:
    """OpenRLHF issue 712: 2,252 s of generation, then 1,800 s of training, on as many GPUs each."""
    stages = Stages(2252, 1800, 16, 16)
    serial = advise(stages, "serial")
    assert (serial.best.rollout_gpus, serial.best.colocated) in {(16, False), (32, True)}
    assert serial.today.step_s / serial.best.step_s == pytest.approx(4052 / 2252, rel=0.12)
    assert advise(stages).best == advise(stages).today


@pytest.mark.parametrize(("num_gpus", "rollout_s", "train_s"), PUBLISHED)
def test_published_rows_get_most_gpus_for_the_slower_stage(num_gpus: int, rollout_s: float, train_s: float) -> None:
    advice = advise(Stages(rollout_s, train_s, num_gpus, num_gpus, colocated=True), unit=1)
    fastest = next(option for option in advice.options if not option.colocated)
    assert (fastest.rollout_gpus > fastest.train_gpus) == (rollout_s > train_s)
    assert advice.bound_s == pytest.approx(rollout_s + train_s)


def test_a_move_pays_back_after_its_stall_over_the_least_gain() -> None:
    advice = advise(Stages(100, 400, 16, 16))
    assert advice.best.train_gpus > 16
    saved_s = advice.best.gain.low * 400
    assert saved_s > 0
    assert advice.pays_back_after(10 * saved_s) == 10
    assert advise(Stages(100, 100, 16, 16)).pays_back_after(1.0) is None


def test_the_unit_is_a_node_or_what_the_counts_allow() -> None:
    units = [default_unit(Stages(1, 1, *pair)) for pair in ((16, 16), (12, 4), (8, 8), (3, 5), (1, 1), (8, 2))]
    assert units == [8, 4, 8, 1, 1, 2]


@pytest.mark.parametrize(
    "values",
    [(0, 1, 1, 1), (float("nan"), 1, 1, 1), (1, float("inf"), 1, 1), (1, -1, 1, 1), (1, 1, 0, 1), (1, 1, 1, -2)],
)
def test_times_and_counts_that_no_step_has_are_refused(values: tuple[float, float, int, int]) -> None:
    with pytest.raises(ConfigError, match="no step has such a figure"):
        Stages(*values)


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(CapacityError, match="one GPU cannot be split"):
        advise(Stages(1, 1, 1, 1, colocated=True))
    with pytest.raises(ConfigError, match="no split has such a step"):
        advise(Stages(1, 1, 4, 4), unit=5)
    with pytest.raises(ConfigError, match="the same GPUs"):
        Stages(1, 1, 4, 2, colocated=True)
    with pytest.raises(ConfigError, match="longest_s"):
        Stages(10, 1, 4, 4, longest_s=11)
