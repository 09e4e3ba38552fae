"""Selectors pick cells by field, override, order and wildcard."""

from __future__ import annotations

import pytest

from libra.core.errors import ConfigError
from libra.results.cell import Cell
from libra.results.selector import matches

CELL = Cell.make(
    "end_to_end",
    "r2e-gym",
    "a800x48",
    "qwen3-14b",
    "libra",
    seed=2,
    overrides={"policy.tp": 4, "sim.check": True, "pipeline.kind": "async"},
)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", True),
        ("policy=libra,workload=r2e-gym,seed<3", True),
        ("policy=libra, seed<2", False),
        ("seed>=2,seed<=2,seed!=3", True),
        ("policy=verl-*|lib?a", True),
        ("policy!=verl-*", True),
        ("policy!=libra", False),
        ("policy.tp=4.0", True),
        ("policy.tp>4", False),
        ("sim.check=true", True),
        ("pipeline.kind=barrier", False),
        ("policy.other=1", False),
        ("policy.other!=1", True),
        ("policy.other<1", False),
        ("variant=*policy.tp=4*", True),
    ],
)
def test_selectors(selector: str, expected: bool) -> None:
    assert matches(CELL, selector) is expected


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ("polciy=libra", "did you mean 'policy'"),
        ("pipeline.knd=async", "did you mean 'pipeline.kind'"),
        ("other.key=1", "unknown field"),
        ("policy", "unreadable clause"),
        ("seed<many", "needs a number"),
    ],
)
def test_bad_selectors_say_what_is_allowed(selector: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        matches(CELL, selector)
