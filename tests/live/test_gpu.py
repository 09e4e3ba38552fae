"""Small runs that enter the branches of docs/gpu.md, on real GPUs. None has been run yet: written where there are none.

`test_gpu_config.py` holds their configuration to verl's on every machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS, PROMPTS, SAMPLES = 2, 2, 4
BF16_GAP = 0.5
"""Nats between engine and trainer, both in bfloat16: rounding gives some hundredths; stale weights give more."""

pytestmark = pytest.mark.gpu


def page_cluster() -> str:
    """The cluster file that docs/gpu.md shows."""
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/gpu.md").read_text(), flags=re.DOTALL)
    return text


def train(folder: Path, cluster: str, *more: str) -> Path:
    """The cell of a run of `libra train search-r1` with the tiny policy."""
    (folder / "cluster.toml").write_text(cluster)
    changes = {
        "live.prompts": PROMPTS, "live.samples": SAMPLES, "live.warmup_steps": 60, "live.test_every": 0,
        "live.logprob_check_every": 1,
    }  # fmt: skip
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    command = [
        sys.executable, "-c", "from experiments.cli import main; main()", "train", "search-r1", "--steps", str(STEPS),
        "--cluster", str(folder / "cluster.toml"), "--store", str(folder / "runs"), *words, *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=1_800, check=False)
    logs = "\n".join(path.read_text()[-4_000:] for path in folder.glob("runs/cells/*/logs/*/verl.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    (cell,) = (folder / "runs/cells").iterdir()
    return cell


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("gpu"), page_cluster())


@pytest.fixture(scope="module")
def log(cell: Path) -> str:
    return (cell / "logs/attempt_1/verl.log").read_text(errors="replace")


@pytest.mark.gpu(2)
def test_server_of_verl_itself(cell: Path, log: str) -> None:
    """The run is done with verl's own vLLM server and replica, not with the subclasses for cores."""
    assert json.loads((cell / "status.json").read_bytes())["state"] == "done"
    assert "CpuVllmServer" not in log
    assert "vLLMHttpServer" in log


@pytest.mark.gpu(2)
def test_nccl_carries_the_weights(cell: Path) -> None:
    """After each update the engines score as the trainer does."""
    gaps = [row["logprob_gap_max"] for row in json.loads((cell / "curve.json").read_text()) if "logprob_gap_max" in row]
    assert len(gaps) == STEPS
    assert 0 < max(gaps) < BF16_GAP


@pytest.mark.gpu(2)
def test_bfloat16_and_flash_attention_train(cell: Path, log: str) -> None:
    assert "flash_attention_2" in log
    rows = [row for row in json.loads((cell / "curve.json").read_text()) if "grad_norm" in row]
    assert len(rows) == STEPS
    assert all(0 <= row["grad_norm"] < float("inf") for row in rows)


@pytest.mark.gpu(2)
def test_cuda_graphs_are_captured(log: str) -> None:
    """vLLM says so when it captures them, which it does unless `enforce_eager` is set."""
    assert re.search(r"[Gg]raph captur|Capturing CUDA graph", log)


@pytest.mark.gpu(4)
def test_nodes_two_of_them(tmp_path: Path) -> None:
    """For a Ray cluster of two nodes that is up already, two GPUs each."""
    if not os.environ.get("RAY_ADDRESS"):
        pytest.skip("start Ray on two nodes and set RAY_ADDRESS")
    cell = train(tmp_path, page_cluster().replace("num_nodes = 1", "num_nodes = 2"))
    assert json.loads((cell / "status.json").read_bytes())["state"] == "done"


def test_stock_job_on_one_gpu(tmp_path: Path) -> None:
    """verl's `sync` trainer, which shares the GPU with its engine, and Libra's router."""
    from libra.core.events import TrajectoryEnd
    from libra.runtime.attempt import LOG_NAME
    from libra.runtime.replay import decisions
    from tests.live import stock_job

    stock_job.run_verl(tmp_path, "sync")
    assert stock_job.steps_of(tmp_path) == list(range(1, stock_job.STEPS + 1))
    events = [event for event, _ in decisions(tmp_path / "out" / LOG_NAME)]
    ended = sum(isinstance(event, TrajectoryEnd) for event in events)
    assert ended >= len(stock_job.trained(tmp_path)) == stock_job.STEPS * stock_job.PROMPTS * stock_job.SAMPLES


def test_sandbox_shows_no_gpu(tmp_path: Path) -> None:
    """Programs of a policy run as on any machine, and see no device of the host's."""
    import asyncio

    from libra.backends.live.sandbox import open_sandbox
    from libra.workloads.tools.sandbox import Limits

    line = "ls /dev/nvidia* /dev/dri 2>/dev/null; echo done"
    result = asyncio.run(open_sandbox().run(["bash", "-c", line], tmp_path, Limits()))
    assert (result.output, result.status) == ("done\n", "ok")
