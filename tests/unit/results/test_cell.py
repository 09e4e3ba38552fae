"""Identity changes with what changes the outcome and with nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libra.core.errors import ConfigError
from libra.results.cell import Cell, parse_value

BASE: dict[str, Any] = {
    "study": "smoke",
    "workload": "search-r1",
    "cluster": "a800x48",
    "model": "qwen3-14b",
    "policy": "libra",
    "seed": 1,
    "overrides": {"policy.tp": 4, "pipeline.kind": "async"},
}


def cell(**changes: Any) -> Cell:
    return Cell.make(**{**BASE, **changes})


def test_identity_is_16_hex_digits_and_stable() -> None:
    assert cell().identity("code") == cell().identity("code")
    assert len(cell().identity("code")) == 16
    int(cell().identity("code"), 16)


@pytest.mark.parametrize(
    "change",
    [
        {"workload": "r2e-gym"},
        {"cluster": "h100x64"},
        {"model": "qwen3-8b"},
        {"policy": "other"},
        {"seed": 2},
        {"backend": "live"},
        {"overrides": {}},
        {"overrides": {"policy.tp": 8, "pipeline.kind": "async"}},
        {"overrides": {"policy.tp": "4", "pipeline.kind": "async"}},
    ],
)
def test_what_changes_the_outcome_changes_the_identity(change: dict[str, Any]) -> None:
    assert cell(**change).identity("code") != cell().identity("code")


def test_the_code_counts_and_the_study_does_not() -> None:
    assert cell().identity("other") != cell().identity("code")
    assert cell(study="end_to_end").identity("code") == cell().identity("code")
    assert cell(study="end_to_end").key == cell().key


def test_order_and_number_type_of_overrides_do_not_count() -> None:
    same = cell(overrides={"pipeline.kind": "async", "policy.tp": 4.0})
    assert same == cell()
    assert same.overrides == (("pipeline.kind", "async"), ("policy.tp", 4))


def test_a_trace_counts_by_its_name_so_that_folders_may_move() -> None:
    here, there = cell(workload="trace:/a/tau.parquet"), cell(workload="trace:/b/tau.parquet")
    assert here.identity("code") == there.identity("code")
    assert here.key != there.key
    assert here.label.startswith("trace:tau.parquet / libra")


def test_json_gives_the_same_cell_back() -> None:
    mixed = cell(overrides={"policy.a": True, "policy.b": 1, "policy.c": 0.5, "policy.d": "x"})
    back = msgspec.json.decode(msgspec.json.encode(mixed), type=Cell)
    assert back == mixed
    assert back.identity("c") == mixed.identity("c")
    assert isinstance(back.override("policy.a"), bool)


def test_texts_for_tables() -> None:
    long = cell(overrides={"workload.num_steps": 40, "policy.tp": 4, "sim.check": True})
    assert long.variant == "policy.tp=4, sim.check=true"
    assert long.label == "search-r1 / libra / qwen3-14b / a800x48 / seed 1 / policy.tp=4, sim.check=true"
    assert cell(overrides={}).variant == ""
    assert long.section("policy") == {"tp": 4}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"polcy.tp": 4}, "did you mean 'policy.tp'"),
        ({"pipeline.stalenes": 4}, "did you mean 'pipeline.staleness'"),
        ({"policy": 4}, "policy.OPTION"),
        ({"policy.x": float("nan")}, "finite"),
        ({"policy.x": (1, 2)}, "one cell a value"),
    ],
)
def test_bad_overrides_are_refused_with_a_mend(overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        cell(overrides=overrides)


def test_values_from_the_command_line_get_their_type() -> None:
    assert [parse_value(text) for text in ("4", "0.5", "true", "False", "async")] == [4, 0.5, True, False, "async"]
