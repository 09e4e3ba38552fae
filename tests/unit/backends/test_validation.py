"""The measured tables, the predictions for each of their rows, the fits, and what `libra validate` makes of them."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from libra.backends.sim import gates
from libra.backends.sim.blind import BLIND
from libra.backends.sim.constants import folds, load_constants
from libra.backends.sim.fit import FITTED, PRIORS, fit, groups, held_out
from libra.backends.sim.fit_operators import fit_operators
from libra.backends.sim.measured import Stage, rows, sources
from libra.backends.sim.truth_network import Network
from libra.backends.sim.validation import A100, A800, PREDICTORS, Point, points


def test_every_measured_row_is_predicted() -> None:
    found = points()
    for table in PREDICTORS:
        assert sum(point.table == table for point in found) == len(rows(table)) > 0
    assert {*PREDICTORS, *BLIND} == set(sources())
    assert all(point.measured_s > 0 and point.predicted_s > 0 for point in found)


def test_blind_rows_are_judged_by_what_was_predicted_before_they_were_opened() -> None:
    errors = {table.name: table for table in gates.validate().tables if table.use.startswith("blind")}
    for table, predict in BLIND.items():
        found = list(predict(load_constants()))
        assert len(found) == len(rows(table))
        assert all(math.isfinite(each.now_s) and each.now_s > 0 for each in found)
        for gpu in {each.gpu for each in found}:
            frozen = [abs(each.frozen_s / each.measured_s - 1) for each in found if each.gpu == gpu]
            assert errors[f"{table} {gpu}"].mean == pytest.approx(sum(frozen) / len(frozen))
    frozen_file = Path(__file__).parents[3] / "benchmarks/results/blind_predictions_2026-12-02.csv"
    committed = {line.rsplit(",", 1)[1] for line in frozen_file.read_text(encoding="utf-8").splitlines()[2:]}
    assert {row["frozen_s"] for table in BLIND for row in rows(table)} <= committed


def test_kernel_constants_that_ship_are_nearly_the_best_for_their_tables() -> None:
    """Fitted anew, no operator table is met better by more than a quarter: valleys are flat, no constant is far off."""
    fitted, origins = fit_operators()
    assert {"gemm_power", "decode_overhead_s", "prefill_tile_share", "moe_hit_power", "nccl_bus_gb_s"} <= set(origins)
    for table in {kind for kind, _ in origins.values()}:
        errors = [
            sum(abs(point.error) for point in points(constants, "operator") if point.table == table)
            for constants in (load_constants(), fitted)
        ]
        assert errors[0] <= 1.25 * errors[1], table


def test_each_table_names_its_origin_and_licence() -> None:
    for source in sources().values():
        assert source.source.startswith("github.com/") and "commit" in source.source and source.licence


def test_errors_have_not_grown() -> None:
    """What was reached when the constants were last fitted; the gates of the command are stricter."""
    for stage, bound in (("serving", 0.079), ("training", 0.053)):
        errors = [abs(point.error) for point in held_out(stage)]
        assert sum(errors) / len(errors) < bound


def test_folds_leave_out_every_group_once() -> None:
    for stage in FITTED:
        assert list(folds()[stage]) == groups(stage)
        assert all(set(fold) == set(FITTED[stage]) for fold in folds()[stage].values())
        assert len(held_out(stage)) == len(points(stage=stage))


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "group"), [("serving", "qwen_speed"), ("training", "llm_foundry 70b")])
def test_the_folds_are_what_the_fit_gives(stage: str, group: str) -> None:
    """The file says what the present code fits; the others are written by the same run of it."""
    found = fit(stage, without=group)
    for name, value in folds()[stage][group].items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize("stage", FITTED)
def test_the_constants_that_ship_are_the_fit_to_all_rows(stage: str) -> None:
    """No step of 3 % in any of them lowers the loss."""
    from libra.backends.sim.fit import ROW_SIGMA, _kernel_errors

    def loss(**changed: float) -> float:
        constants = msgspec.structs.replace(load_constants(), **changed)
        errors = [math.log(p.predicted_s / p.measured_s) / ROW_SIGMA for p in points(constants, stage)]
        errors += _kernel_errors(constants) if stage == "serving" else []
        errors += [math.log(getattr(constants, name) / mid) / width for name, (mid, width) in PRIORS[stage].items()]
        return sum(2 * (math.sqrt(1 + error * error) - 1) for error in errors)

    best = loss()
    for name in FITTED[stage]:
        value = getattr(load_constants(), name)
        assert loss(**{name: value * 1.03}) > best
        assert loss(**{name: value / 1.03}) > best


def test_a800_reduces_at_two_thirds_of_an_a100(shared_root: Path) -> None:
    """NVLink of 400 against 600 GB/s: as the data sheets say and as both were measured."""
    slow, fast = (Network(cluster, load_constants()).nccl_all_reduce_s(2**30, 8) for cluster in (A800, A100))
    assert fast / slow == pytest.approx(2 / 3, rel=0.02)
    table = shared_root / "calib/aiconfigurator/a100_sxm_nccl2.27.3.csv"
    if not table.is_file():
        pytest.skip("needs the A100 NCCL table, which is not part of the product")
    with table.open(newline="") as file:
        a100 = [row for row in csv.DictReader(file) if row["op_name"] == "all_reduce" and float(row["bytes"]) > 6e7]
    for row in a100:
        size = float(row["bytes"])
        there = [each for each in rows("nccl_all_reduce") if each["gpus"] == row["num_gpus"]]
        near = min(there, key=lambda each: abs(math.log(float(each["num_bytes"]) / size)))
        ours = float(near["num_bytes"]) / float(near["time_s"])
        assert ours / (size / (float(row["latency"]) / 1e3)) == pytest.approx(2 / 3, abs=0.06)
    assert {row["num_gpus"] for row in a100} == {"2", "4", "8"}


def test_the_command_writes_to_the_store_and_its_exit_code_is_the_verdict(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.cli", "validate", "--store", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = msgspec.json.decode((tmp_path / "runs" / "validation.json").read_bytes(), type=gates.Validation)
    assert done.returncode == (0 if found.passed else 3)
    for table in found.tables:
        assert table.name in done.stdout
    for gate in found.gates:
        assert gate.met or gate.reason, "a missed gate says why"
        assert gate.name in done.stdout
    assert found == gates.validate(), "deterministic"


@pytest.mark.parametrize(
    ("factors", "mean", "met", "rows"),
    [((1.01, 0.98), 0.015, True, []), ((1.5, 1.5), 0.5, False, ["a", "b"]), ((1.0, 0.7), 0.15, False, ["b"])],
)
def test_gates_judge_what_was_held_out(
    monkeypatch: pytest.MonkeyPatch, factors: tuple[float, float], mean: float, met: bool, rows: list[str]
) -> None:
    """A mean within the limit is met; a row that is too fast by 30 % is gated as one that is too slow."""

    def made_up(stage: Stage) -> list[Point]:
        return [Point("t", stage, name, name, 10.0, 10.0 * f) for name, f in zip("ab", factors, strict=True)]

    monkeypatch.setattr(gates, "held_out", made_up)
    found = {gate.name: gate for gate in gates.validate().gates}
    gate = found["serving, mean held-out error"]
    assert (gate.found, gate.met) == (pytest.approx(mean), met)
    assert [name for name in ("a", "b") if f"serving, {name}" in found] == rows
    assert all(not found[f"serving, {name}"].met for name in rows)


def test_few_groups_give_a_range_and_many_an_interval() -> None:
    def error(num_groups: int) -> gates.TableError:
        found = [Point("t", "serving", f"{n}", f"{n}", 10.0, 10.0 + n) for n in range(1, num_groups + 1)]
        return gates._with_interval(gates._error("t", "", "held out", found), found)

    assert error(2).interval == "10.0% to 20.0% (range of 2 groups)"
    many = error(9)
    assert many.low is not None and many.high is not None
    assert 0.1 < many.low < 0.5 < many.high < 0.9
    assert many.interval.endswith("(95 %)")
