"""Every figure says what it lacks, draws from a made-up store, and has the paper's numbers as the claims have them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis.published import predict_rows
from analysis.style import save, use_style
from experiments.commands import results
from experiments.commands.check import validate
from experiments.studies import (
    ablation,
    asynchrony,
    end_to_end,
    growth,
    motivation,
    routing,
    sensitivity,
    throughput_bound,
    worlds,
)
from libra.core.errors import ConfigError, StoreError
from libra.core.registry import StudyArgs
from paper_figures import FIGURES, builder, growth_settings
from paper_figures import growth as growth_figure
from paper_figures import validation as validation_figure
from paper_figures.sources import Sources
from paper_figures.variants import overrides, with_overrides
from paper_figures.worlds import holds

STUDIES = {
    "throughput": end_to_end, "drift": end_to_end, "reward": end_to_end, "ablation": ablation, "routing": routing,
    "growth": motivation, "tp_study": motivation, "asynchrony": asynchrony, "sensitivity": sensitivity,
    "throughput_bound": throughput_bound, "worlds": worlds,
    "growth_settings": growth,
}  # fmt: skip
TABLES_ONLY = ("asynchrony", "sensitivity", "throughput_bound")


@pytest.fixture
def make_cells_of():  # type: ignore[no-untyped-def]
    """Cells of the study that a figure draws."""
    return lambda name: list(STUDIES[name].cells(StudyArgs(num_seeds=1, num_steps=3)))


def build(name: str, store):  # type: ignore[no-untyped-def]
    use_style()
    return builder(name)(Sources(store))


def diamonds(figure: Figure) -> list[tuple[float, float]]:
    """Where the paper's hollow markers stand."""
    lines = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "D"]
    assert all(line.get_markerfacecolor() == "none" for line in lines)
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines]  # type: ignore[index]


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in ("published_steps", "fidelity")])
def test_a_store_without_the_study_is_said(made_store, name: str) -> None:
    plot = build(name, made_store())
    assert plot.figure is None and plot.table is None
    assert "run `libra " in plot.missing


def test_growth_is_the_time_at_a_length_over_that_at_1k() -> None:
    rows = pd.DataFrame(
        [("static-tp1", 16, n, seconds, 0, "") for n, seconds in ((1024, 2.0), (8192, 20.0), (32768, 90.0))],
        columns=["policy", growth_figure.BATCH, growth_figure.LENGTH, "value", "seed", "variant"],
    )
    assert list(growth_figure._growth(rows)["growth"]) == [1.0, 10.0, 45.0]
    assert list(growth_settings._growth(rows, "policy")["growth"]) == [45.0]
    with pytest.raises(ValueError, match="two values of one seed"):
        growth_figure._growth(pd.concat([rows, rows]))


@pytest.mark.parametrize("name", ["throughput_bound", "sensitivity", "asynchrony"])
def test_tables_of_systems_have_ours_over_theirs(made_store, make_cells_of, name: str) -> None:
    rates = {"verl-static-uniform": 100.0, "libra": 250.0}
    plot = build(name, made_store((cell, rates.get(cell.policy, 50.0)) for cell in make_cells_of(name)))
    rows = plot.table[plot.table["system"] == "libra"]
    assert len(rows) > 0
    assert set(rows["ratio to verl-static-uniform (x)"]) == {"2.500"}


def test_the_validation_figure_has_measured_times_across(made_store) -> None:
    points = [{"stage": s, "group": "g", "measured_s": 10.0, "predicted_s": 20.0} for s in validation_figure.STAGES]
    for axes in validation_figure._figure(points).axes:
        assert [tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() == "o"] == [(10.0, 20.0)]


def test_a_figure_that_cannot_be_drawn_takes_no_other_with_it(made_store, made_cell) -> None:
    """Two variants of a study that knows none, as `--set` makes them, where the figure picks by seed."""
    cells = [
        (made_cell(study="ablation", policy="libra", overrides={"sim.async_lag_steps": lag}), 100.0) for lag in (0, 1)
    ]
    plots = {plot.name: plot for plot in results._plots(Sources(made_store(cells)), ("ablation", "worlds", "routing"))}
    assert set(plots) == {"ablation", "worlds", "routing"}

    def broken(sources: Sources) -> None:
        raise ValueError("two values of one seed")

    plot = results._plot("made_up", broken, Sources(made_store(cells)))  # type: ignore[arg-type]
    assert plot.missing == "Cannot be drawn from this store: ValueError('two values of one seed')"


def test_worlds_without_a_compared_pair_say_so(made_store, made_cell) -> None:
    plot = build("worlds", made_store([(made_cell(study="worlds", policy="libra"), 100.0)]))
    assert "no finished pair" in plot.missing


@pytest.mark.parametrize("name", STUDIES)
def test_the_cells_of_its_study_are_all_that_a_figure_needs(made_store, name: str, tmp_path: Path) -> None:
    cells = list(STUDIES[name].cells(StudyArgs(num_seeds=1, num_steps=3)))
    cells = cells[:60] if name == "worlds" else cells
    plot = build(name, made_store((cell, 100.0 + place) for place, cell in enumerate(cells)))
    assert plot.missing == ""
    assert plot.table is not None and len(plot.table) > 0
    assert (plot.figure is None) == (name in TABLES_ONLY)
    endings = {file.suffix for file in save(plot, tmp_path)}
    assert endings == ({".csv"} if name in TABLES_ONLY else {".csv", ".svg", ".png"})


def test_a_comparison_counts_the_worlds_in_which_it_holds(made_store, made_cell) -> None:
    ratios = {"nic15": 1.5, "nic22": 1.004, "nic176": 0.9}
    cells = [
        (made_cell(study="worlds", policy=policy, overrides={"cluster.network": network}), rate)
        for network, ratio in ratios.items()
        for policy, rate in (("libra", 100.0 * ratio), ("verl-static-uniform", 100.0))
    ]
    table = build("worlds", made_store(cells)).table
    assert list(table["comparison"]) == ["libra over verl-static-uniform"]
    assert [table.iloc[0][name] for name in ("worlds", "wins", "equal within 1 %", "losses")] == ["3", "1", "1", "1"]
    assert (table.iloc[0]["there"], table.iloc[0]["ratio, least (x)"]) == ("seed 0, cluster.network=nic176", "0.900")
    (note,) = holds(Sources(made_store(cells)), "libra", "verl-static-uniform")
    text = "`libra` against `verl-static-uniform` 1 won and 1 lost on R2E-Gym, each of 3 (3 worlds x 1 seeds)"
    assert note == f"Worlds (constants and networks), by over 1 %: {text}."


def test_throughput_and_its_paired_ratio(made_store, made_cell) -> None:
    rates = {"verl-static-uniform": 100.0, "libra": 250.0}
    plot = build("throughput", made_store((made_cell(policy=name), rate) for name, rate in rates.items()))
    row = plot.table.set_index("system").loc["libra"]
    assert (row["ours (token/s)"], row["paper (token/s)"]) == ("250", "763")
    assert row["ratio to verl-static-uniform (x)"] == "2.500"
    assert diamonds(plot.figure) == [(423.0, 0.0), (763.0, 1.0)]


def test_the_ablation_has_the_papers_levels(made_store, made_cell) -> None:
    cells = [
        (made_cell(study="ablation", policy=name), 100.0) for name in ("verl-static-uniform", "libra-hetero", "libra")
    ]
    plot = build("ablation", made_store(cells))
    assert [y for _, y in diamonds(plot.figure)] == [423.0, 510.0, 551.0, 666.0, 763.0]
    assert list(plot.table["ratio, paper (x)"]) == ["1.206", "1.080", "1.209", "1.146", "", "1.804"]
    assert plot.table.iloc[-1]["ratio, ours (x)"] == "1.000"


def test_traces_are_compared_with_static_uniform(made_store, made_cell) -> None:
    cells = [
        (made_cell(study="traces", policy=policy, workload="trace:/somewhere/made-up.jsonl.gz", seed=seed), rate)
        for policy, rate in (("verl-static-uniform", 100.0), ("libra", 150.0))
        for seed in (0, 1)
    ]
    plot = build("traces", made_store(cells))
    assert plot.table["trace"].unique().tolist() == ["made-up"]
    assert plot.table.set_index("system").loc["libra", "ratio to verl-static-uniform (x)"] == "1.500 [1.500, 1.500]"


def test_published_steps_has_every_row_and_what_is_missing(made_store) -> None:
    table = build("published_steps", made_store()).table
    assert list(table["run"]) == [row.id for row in predict_rows()]
    assert table["simulated"].str.startswith("not simulable: missing").all()
    row = table.set_index("run").loc["verl-7b-64-64"]
    assert (row["theirs (s)"], row["theirs against ours"]) == ("150.6", "below")


def test_overrides_become_columns() -> None:
    rows = with_overrides(pd.DataFrame({"variant": ["workload.batch=16, pipeline.kind=async", ""]}))
    assert rows["workload.batch"].tolist()[0] == 16.0
    assert rows["pipeline.kind"].tolist()[0] == "async"
    assert rows["policy.num_train_gpus"].isna().all()
    assert overrides("") == {}


def test_an_unknown_figure_is_refused_with_the_nearest(made_store, tmp_path: Path) -> None:
    store = made_store()
    with pytest.raises(ConfigError, match="did you mean 'throughput'"):
        results.figures(store.root, tmp_path, ("throughputs",))


def test_a_folder_that_cannot_be_written_is_said(made_store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write"):
        results.figures(made_store().root, tmp_path / "file" / "out", ("published_steps",))


def test_figures_claims_and_report_print(made_store, made_cell, tmp_path: Path, capsys) -> None:
    store = made_store([(made_cell(policy="libra", study="demo", seed=seed), 100.0) for seed in (0, 1)])
    results.figures(store.root, tmp_path / "figures", ("throughput",))
    assert (tmp_path / "figures" / "throughput.svg").exists()
    results.claims(store.root, as_json=True)
    assert '"counts"' in capsys.readouterr().out
    results.claims(store.root, as_json=False)
    assert "not judged" in capsys.readouterr().out
    results.report(store.root, tmp_path / "report")
    assert "report.html" in capsys.readouterr().out
    assert [table.row_count for table in results.demo_tables(store.root)] == [1]


def test_the_simulators_errors_are_drawn_from_what_validate_left(made_store, tmp_path: Path) -> None:
    store = made_store()
    with pytest.raises(SystemExit):
        validate(store.root, as_json=True)
    plot = build("validation", store)
    assert plot.figure is not None and plot.table is not None
    titles = [axes.get_title(loc="left") for axes in plot.figure.axes]
    assert titles == ["serving, held out", "training, held out", "blind, frozen predictions"]
    assert set(plot.table["use"]) == {"fitted", "development", "held out", "blind", "blind, extrapolated"}
    assert any(note.startswith("Gate missed: serving") for note in plot.notes)
