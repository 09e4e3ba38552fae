from __future__ import annotations

import pytest

from libra.routing.sample import WINDOW, Length, Sample, Summary, length, summarize


def exact(*toks: int) -> list[Length]:
    return [length(tok) for tok in toks]


def test_without_censoring_it_is_the_mean_and_the_nearest_rank_p90() -> None:
    summary = summarize(exact(*range(1, 101)))
    assert summary == Summary(pytest.approx(50.5), 90.0, 100)


def test_of_one_length_mean_and_p90_are_that_length() -> None:
    assert summarize(exact(7)) == Summary(7.0, 7.0, 1)


def test_an_empty_sample_has_no_evidence() -> None:
    assert Sample().summary() == Summary(0.0, 0.0, 0)


def test_zeros_are_lengths_too() -> None:
    assert summarize(exact(*[0] * 19, 500)) == Summary(pytest.approx(25.0), 0.0, 20)


def test_kaplan_meier_by_hand() -> None:
    # At risk 4, 3, 2, 1; 20 is censored, so 10 keeps 1/4 and the 3/4 left go to 30 and 40 alike.
    lengths = [length(10), length(20, True), length(30), length(40)]
    assert summarize(lengths) == Summary(pytest.approx(10 / 4 + 30 * 3 / 8 + 40 * 3 / 8), 40.0, 4)


def test_the_longest_counts_as_it_is_even_if_censored() -> None:
    assert summarize([length(10), length(30, True)]) == Summary(pytest.approx(20.0), 30.0, 2)


def test_an_aborted_length_is_no_evidence() -> None:
    assert summarize([length(10), length(5, True, False)]).evidence == 1


def test_the_window_forgets_the_oldest_in_mean_and_p90_alike() -> None:
    sample = Sample()
    for _ in range(WINDOW):
        sample.add(length(1000))
    for _ in range(WINDOW):
        sample.add(length(20000))
    assert sample.summary() == Summary(pytest.approx(20000.0), 20000.0, WINDOW)
