"""The fidelity section from fixture rows: errors, what is missing, and that it says what it does not validate."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from analysis.fidelity import Fidelity, MeasuredRun, Predicted, Predictions, mean_error
from libra.results.store import FIDELITY_FILE, Store
from paper_figures import fidelity as figure
from paper_figures.sources import Sources

BEFORE = Predictions(
    "abc", "a machine", "2026-12-02", 8, ("a calibration",), {}, {"cpu2": 0.01},
    (
        Predicted("a / pipeline.kind=barrier", 110.0, 90.0, 100.0, 120.0),
        Predicted("b / pipeline.kind=async", 80.0, 130.0, 75.0, 85.0),
        Predicted("never made", 1.0, 1.0, 1.0, 1.0),
    ),
)  # fmt: skip
MEASURED = (
    MeasuredRun("b / pipeline.kind=async", "22", 24, 100.0, 104.0, "same 9 commands"),
    MeasuredRun("a / pipeline.kind=barrier", "11", 24, 100.0, 100.0, "same 9 commands"),
)
FOUND = Fidelity(BEFORE, "def", "fed", "2026-12-03", MEASURED)


def test_errors_are_relative_to_what_was_measured() -> None:
    pairs = FOUND.pairs()
    assert [pair.measured.id for pair in pairs] == ["11", "22"]
    assert [pair.makespan_error for pair in pairs] == pytest.approx([0.10, -0.20])
    assert [pair.rate_error for pair in pairs] == pytest.approx([-0.10, 0.25])
    assert mean_error([pair.makespan_error for pair in pairs]) == pytest.approx(0.15)


def test_the_report_lists_run_by_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    (store.root / FIDELITY_FILE).write_bytes(msgspec.json.encode(FOUND))
    plot = figure.build(Sources(store))
    assert plot.figure is not None and plot.table is not None
    assert list(plot.table["error of makespan"]) == ["+10.0%", "-20.0%"]
    assert list(plot.table["measured (s)"]) == ["100.0", "100.0"]
    assert plot.notes[0] == (
        "Mean absolute error: makespan 15.0%, throughput 17.5%, over 2 runs; 1 predicted runs were not made."
    )
    assert "committed in def" in plot.notes[1]
    assert "validates control" in plot.caption and "never of the timing of an A800" in plot.caption


def test_a_study_survives_its_file() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FOUND), type=Fidelity) == FOUND
