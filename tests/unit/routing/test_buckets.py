from __future__ import annotations

from libra.routing.buckets import bucket_of


def test_a_bound_is_the_largest_length_that_its_bucket_serves() -> None:
    bounds_tok = (4000, 12000, 40960)
    lengths = (0, 4000, 4001, 12000, 12000.5, 40960, 50000)
    assert [bucket_of(tok, bounds_tok) for tok in lengths] == [0, 0, 1, 1, 2, 2, 2]


def test_without_bounds_there_is_one_bucket() -> None:
    assert bucket_of(9999, ()) == 0
