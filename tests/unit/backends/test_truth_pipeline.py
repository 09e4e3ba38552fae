"""1F1B against its closed form, against bounds, and against a hand-drawn schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.backends.sim.truth_pipeline import one_f_one_b_s

seconds = st.floats(0.1, 5.0)


@given(st.integers(1, 12), st.integers(1, 6), seconds, seconds)
def test_equal_micro_batches_have_the_closed_form(num: int, stages: int, forward_s: float, backward_s: float) -> None:
    makespan_s = one_f_one_b_s([(forward_s, backward_s)] * num, stages)
    assert makespan_s == pytest.approx((num + stages - 1) * (forward_s + backward_s))


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=10), st.integers(1, 5))
def test_uneven_micro_batches_lie_between_their_bounds(passes: list[tuple[float, float]], stages: int) -> None:
    """At least a stage's own work with the first way down and the last way back; at most one after another."""
    makespan_s = one_f_one_b_s(passes, stages)
    work_s = sum(map(sum, passes))
    assert makespan_s >= work_s - 1e-9
    assert makespan_s >= work_s + (stages - 1) * passes[0][0] + (stages - 1) * passes[-1][1] - 1e-9
    assert makespan_s <= stages * work_s + 1e-9


def test_a_schedule_drawn_by_hand() -> None:
    """Two stages, micro-batches of 1+1 and 3+3: stage 0 runs F0 F1 B0 B1, stage 1 F0 B0 F1 B1.

    Stage 0: F0 0-1, F1 1-4, B0 4-5 (ready at 3), B1 10-13; stage 1: F0 1-2, B0 2-3, F1 4-7, B1 7-10.
    """
    assert one_f_one_b_s([(1.0, 1.0), (3.0, 3.0)], 2) == 13.0
