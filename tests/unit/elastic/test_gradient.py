from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.core.errors import ConfigError
from libra.elastic.gradient import attach, mean_weights, sum_scale

SAMPLES = st.lists(st.lists(st.integers(-9, 9), max_size=5), min_size=1, max_size=6)


def mean(values: list[int]) -> Fraction:
    return Fraction(sum(values), len(values)) if values else Fraction(0)


@given(SAMPLES)
def test_the_weighted_sum_of_means_is_the_mean_of_all(samples: list[list[int]]) -> None:
    pooled = [value for replica in samples for value in replica]
    if not pooled:
        return
    weights = mean_weights([len(replica) for replica in samples])
    update = sum((w * mean(replica) for w, replica in zip(weights, samples, strict=True)), Fraction(0))
    assert update == mean(pooled) and sum(weights) == 1


@given(SAMPLES, SAMPLES)
def test_external_sums_before_the_cores_all_reduce_give_the_mean_of_all(
    core: list[list[int]], hybrid: list[list[int]]
) -> None:
    pooled = [value for replica in core + hybrid for value in replica]
    if not pooled:
        return
    scale = sum_scale([len(replica) for replica in core + hybrid], len(core))
    held = [sum(replica) for replica in core]
    for at, others in enumerate(attach(range(len(hybrid)), len(core))):
        held[at] += sum(sum(hybrid[h]) for h in others)
    all_reduced = Fraction(sum(held), len(core))
    assert scale * all_reduced == mean(pooled)


def test_a_placeholder_changes_nothing() -> None:
    assert mean_weights([4, 4, 0]) == (Fraction(1, 2), Fraction(1, 2), Fraction(0))
    assert sum_scale([4, 4, 0], 2) == sum_scale([4, 4], 2)


@pytest.mark.parametrize("samples", [[], [0, 0], [3, -1]])
def test_no_samples_is_an_error(samples: list[int]) -> None:
    with pytest.raises(ConfigError, match="at least one sample"):
        mean_weights(samples)


def test_fault_21_each_hybrid_is_added_by_exactly_one_core() -> None:
    assert attach([7], 2) == ((7,), ())
    assert attach([3, 1, 2], 2) == ((1, 3), (2,))
    with pytest.raises(ConfigError, match="no core replica"):
        attach([1], 0)
