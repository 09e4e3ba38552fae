"""Selections by seed: nothing is chosen in silence."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.pairs import by_seed, interval, mean_text, policies_in, ratio, text

COLUMNS = ["policy", "workload", "variant", "model", "metric", "seed", "status", "value"]


def table(*rows: tuple[str, int, str, float]) -> pd.DataFrame:
    """(policy, seed, status, value) of one metric."""
    return pd.DataFrame([(policy, "w", "", "m", "rate", *rest) for policy, *rest in rows], columns=COLUMNS)


TWO = table(("a", 0, "done", 2.0), ("a", 1, "done", 8.0), ("b", 0, "done", 1.0), ("b", 1, "done", 2.0),
            ("c", 0, "failed", 9.0))  # fmt: skip


def test_values_of_finished_cells_by_seed() -> None:
    assert by_seed(TWO, policy="a") == {0: 2.0, 1: 8.0}
    assert by_seed(TWO, policy="c") == {}


def test_two_values_of_one_seed_are_an_error() -> None:
    with pytest.raises(ValueError, match="two values of one seed"):
        by_seed(TWO, metric="rate")


def test_ratio_is_the_geometric_mean_of_pairs() -> None:
    found = ratio(TWO, {"policy": "a"}, {"policy": "b"})
    assert found is not None
    assert found.value == pytest.approx((2.0 * 4.0) ** 0.5)
    assert ratio(TWO, {"policy": "a"}, {"policy": "c"}) is None


def test_policies_in_order_then_by_name() -> None:
    assert policies_in(TWO, ("b",)) == ["b", "a"]


def test_texts() -> None:
    one = interval(table(("a", 0, "done", 1234.5)), policy="a")
    assert text(one, ",.0f") == "1,234"
    assert text(None) == mean_text(None) == ""
    two = interval(table(("a", 0, "done", 1.0), ("a", 1, "done", 1.0)), policy="a")
    assert text(two, ".2f", " x") == "1.00 x [1.00, 1.00]"
    assert mean_text(two, ".2f") == "1.00"
