"""`libra calibrate`: its grid, a table that stops and goes on, and (where torch is installed) a real run on the CPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from experiments.cli import main
from libra.backends.calibrate.grid import LONGEST_S, estimate_s, grid, thinned
from libra.backends.calibrate.session import Table
from libra.backends.sim.constants import load_constants
from libra.backends.sim.gpus.fit import fit
from libra.backends.sim.gpus.points import HEADER, read_points
from libra.backends.sim.gpus.predict import predict_s
from libra.backends.sim.measured import measured_model
from libra.clusters import load_cluster
from libra.core.errors import ConfigError
from libra.models import load_model

H100, CORE = load_cluster("h100x64").gpu, load_cluster("cpu2").gpu
TINY = load_model("tiny")
A100 = load_constants()

HAS_TORCH = importlib.util.find_spec("torch") is not None


def test_the_grid_of_a_gpu_determines_all_but_the_engines_own_kernels() -> None:
    points = grid("cuda", H100, measured_model("qwen2.5-1.5b"), num_devices=8)
    timed = [msgspec.structs.replace(point, time_s=predict_s(H100, A100, point)) for point in points]
    assert fit(H100, timed).kept == (
        "moe_overhead_s", "moe_memory_share", "moe_compute_share", "moe_power", "moe_hit_power", "custom_tp2_s",
        "custom_tp2_gb_s", "custom_tp4_s", "custom_tp4_gb_s", "custom_tp8_s", "mixed_step_penalty",
    )  # fmt: skip
    assert estimate_s(H100, points) < 600
    assert max(predict_s(H100, A100, point) for point in points) < LONGEST_S


def test_less_time_leaves_points_out_of_every_long_kind() -> None:
    points = grid("cpu", CORE, TINY, num_devices=2)
    few = thinned(points, CORE, estimate_s(CORE, points) / 2)
    assert estimate_s(CORE, few) < 0.75 * estimate_s(CORE, points)
    assert set(few) < set(points)
    assert {point.kind for point in few} == {point.kind for point in points}


def test_one_gpu_has_nobody_to_reduce_with() -> None:
    kinds = {point.kind for point in grid("cuda", H100, measured_model("qwen2.5-1.5b"), num_devices=1)}
    assert "nccl_all_reduce" not in kinds and "gemm" in kinds


def test_a_table_goes_on_where_it_stopped(tmp_path: Path) -> None:
    table = Table(tmp_path / "own.csv", "one core")
    points = grid("cpu", CORE, TINY, num_devices=2)[:3]
    assert table.missing(points) == points
    for point in points[:2]:
        table.append(msgspec.structs.replace(point, time_s=0.5, source="test"))
    assert table.path.read_text().splitlines()[:2] == ["# one core", ",".join(HEADER)]
    assert Table(tmp_path / "own.csv", "again").missing(points) == points[2:]


def test_the_plan_is_listed_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", "--device", "cuda", "--cluster", "h100x64", "--dry-run"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "H100-SXM5-80GB: 101 points" in out and "nothing was timed" in out


def test_a_gpu_needs_its_data_sheet(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["calibrate"])
    assert ended.value.code == ConfigError.exit_code
    assert "--cluster: which GPU is this?" in capsys.readouterr().err


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed here")
def test_without_torch_the_command_says_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", "--device", "cpu", "--out", str(tmp_path / "own.csv")])
    assert ended.value.code == ConfigError.exit_code
    assert "libra: torch is not installed\n  to mend: install the extra `gpu`" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="torch is not part of the light base")
def test_a_core_is_timed_for_real(tmp_path: Path, project_root: Path) -> None:
    """Twice the same command: the first is out of time at once, the second goes on."""
    out = tmp_path / "own.csv"
    command = [sys.executable, "-m", "experiments.cli", "calibrate", "--device", "cpu", "--out", str(out)]
    numbers = []
    for minutes in ("0.1", "3"):
        done = subprocess.run(
            [*command, "--minutes", minutes], cwd=project_root, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        numbers.append(len(read_points(out)))
    assert 0 < numbers[0] < numbers[1]
    assert {"gemm", "train_step", "engine_all_reduce"} <= {point.kind for point in read_points(out)}
    assert "taken from A100: moe_overhead_s" in done.stdout
    assert 0.01 < fit(CORE, read_points(out)).constants.gemm_compute_share < 10.0
