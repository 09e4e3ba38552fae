"""The store as tables: what is compared, what is left out and said, and rows in a fixed order."""

from __future__ import annotations

import pytest

from analysis.load import CELL_COLUMNS, comparable_cells, metrics_table, parquet_rows, workload_name


def test_a_trace_is_named_without_its_folder() -> None:
    assert workload_name("trace:/data/tau.jsonl.gz") == "trace:tau.jsonl.gz"
    assert workload_name("r2e-gym") == "r2e-gym"


def test_metrics_are_one_row_each_and_a_failed_cell_is_a_row(made_store, made_cell) -> None:
    done, failed = made_cell(policy="made-up-fast"), made_cell(policy="made-up-broken")
    table = metrics_table(made_store([(done, 300.0), (failed, "failed")]).cells())
    rate = table[table["metric"] == "trajectory_tok_per_s"]
    assert list(rate["value"]) == [300.0]
    assert list(rate["num_steps"]) == [2]
    broken = table[table["policy"] == "made-up-broken"]
    assert list(broken["status"]) == ["failed"]
    assert broken["metric"].isna().all()


def test_of_two_lengths_the_longer_is_kept_and_the_other_is_said(made_store, made_cell) -> None:
    short, long = made_cell(policy="made-up", num_steps=2), made_cell(policy="made-up", num_steps=6)
    found = comparable_cells(made_store([(short, 100.0), (long, 200.0)]))
    assert [cell.cell for cell in found.cells] == [long]
    assert found.notes == (
        "Study end_to_end: 1 cells with 2 steps, qwen3-14b, a800x48 are left out; the 1 cells with 6 steps, qwen3-14b, "
        "a800x48 are shown. Another --store keeps them apart.",
    )


@pytest.mark.parametrize(
    "change", [{"cluster": "h100x64"}, {"model": "qwen3-8b"}, {"overrides": {"sim.block_tok": 32}}]
)
def test_what_was_set_by_hand_is_not_paired_with_the_study(made_store, made_cell, change) -> None:
    own = [made_cell(policy="made-up", seed=seed) for seed in (0, 1)]
    found = comparable_cells(made_store([(own[0], 1.0), (own[1], 1.0), (made_cell(policy="made-up", **change), 9.0)]))
    assert [cell.cell for cell in found.cells] == own
    assert "left out" in found.notes[0]


def test_an_unfinished_longer_run_hides_no_finished_one(made_store, made_cell) -> None:
    short, long = made_cell(policy="made-up", num_steps=2), made_cell(policy="made-up", num_steps=6)
    found = comparable_cells(made_store([(short, 100.0), (long, "cancelled")]))
    assert [cell.cell for cell in found.cells] == [short]


def test_parquet_rows_stand_in_the_order_of_cells_and_steps(made_store, made_cell) -> None:
    cells = [made_cell(policy="made-up", seed=seed, num_steps=3) for seed in (1, 0)]
    store = made_store([(cell, 100.0 + cell.seed) for cell in cells])
    rows = parquet_rows(store.cells("end_to_end"), "steps", "step, generated_tok")
    assert list(rows.columns) == [*CELL_COLUMNS, "step", "generated_tok"]
    assert list(rows["seed"]) == [1, 1, 1, 0, 0, 0]
    assert list(rows["step"]) == [0, 1, 2, 0, 1, 2]


def test_no_finished_cell_gives_an_empty_frame(made_store, made_cell) -> None:
    store = made_store([(made_cell(policy="made-up"), "failed")])
    assert parquet_rows(store.cells(), "steps", "step").empty
