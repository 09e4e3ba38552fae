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
        Predicted("a / pipeline.kind=barrier", 110.0, 90.0, 100.0, 120.0, 130.0),
        Predicted("b / pipeline.kind=async", 80.0, 130.0, 75.0, 85.0, 90.0),
        Predicted("never made", 1.0, 1.0, 1.0, 1.0, 1.0),
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


def of(runs: dict[str, tuple[float, float]]) -> Fidelity:
    """Predicted and measured makespan of each cell; every calibration says 100 s."""
    before = tuple(Predicted(cell, said, 1.0, said, said, 100.0) for cell, (said, _) in runs.items())
    after = tuple(MeasuredRun(cell, "id", 24, took, 1.0, "same 9 commands") for cell, (_, took) in runs.items())
    return Fidelity(msgspec.structs.replace(BEFORE, runs=before), "def", "fed", "2026-12-03", after)


def test_contrasts_are_between_runs_that_differ_in_one_setting() -> None:
    """Seeds are repeats; the cluster and what is only set with it count as two settings."""
    found = of({
        "w / blind / one / seed 0 / kind=barrier, engines=1": (50.0, 60.0),
        "w / blind / one / seed 1 / kind=barrier, engines=1": (50.0, 64.0),
        "w / blind / one / seed 0 / kind=async, engines=1": (48.0, 66.0),
        "w / blind / one / seed 1 / kind=async, engines=1": (46.0, 66.0),
        "w / blind / two / seed 0 / kind=async, engines=2": (45.0, 60.0),
        "w / mlfq / two / seed 0 / kind=async, engines=2": (40.0, 52.0),
    })  # fmt: skip
    names = list(found.names().values())
    assert (names[1], names[5]) == ("blind, engines=1, kind=barrier, seed 1", "engines=2, kind=async, mlfq, seed 0")
    first, second = found.contrasts()
    assert (first.one, first.other, first.beside) == ("kind=barrier", "kind=async", "blind, engines=1")
    assert (first.predicted_s, first.measured_s, first.same_sign) == (-3.0, 4.0, False)
    assert first.measured_error_s == pytest.approx(2.0)  # Two of spread 2.83 s against two of none.
    assert (second.one, second.other, second.beside) == ("blind", "mlfq", "engines=2, kind=async")
    assert (second.predicted_s, second.measured_s, second.same_sign) == (-5.0, -8.0, True)
    assert second.measured_error_s is None
    carried, contrasts = found.said()
    assert "errs by 64.2%" in carried and contrasts.startswith("Of 2 differences") and " 1 have the pred" in contrasts


def test_a_study_survives_its_file() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FOUND), type=Fidelity) == FOUND
