"""A real run whose trainer is verl's Megatron engine on two ranks, tensor-parallel, beside one vLLM engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs the live stack: `make live-test`")
pytest.importorskip("mbridge", reason="needs the live stack: `make live-test`")

TESTS = Path(__file__).resolve().parents[1]
STEPS = 2
PROGRAM = "from experiments.cli import main; main()"
COMMAND = [
    sys.executable, "-c", PROGRAM, "train", "search-r1", "--steps", str(STEPS), "--policy", "one-engine",
    "--plugin", str(TESTS / "plugins/one_engine.py"), "--cluster", str(TESTS / "data/live/cpu3.toml"),
    "--set", "policy.tp=2", "--set", "live.prompts=2", "--set", "live.samples=4", "--set", "live.warmup_steps=60",
    "--set", "live.test_every=0", "--set", "live.logprob_check_every=1",
]  # fmt: skip


@pytest.mark.slow
def test_megatron_trains_what_the_engine_samples(tmp_path: Path) -> None:
    store = tmp_path / "runs"
    done = subprocess.run([*COMMAND, "--store", str(store)], capture_output=True, text=True, timeout=600, check=False)
    logs = "\n".join(path.read_text() for path in store.glob("cells/*/logs/*/verl.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs[-4000:]
    ranks = re.findall(r"number of parameters on \(tensor, pipeline\) model parallel rank \((\d), (\d)\)", logs)
    assert set(ranks) == {("0", "0"), ("1", "0")}
    (cell,) = (store / "cells").iterdir()
    assert json.loads((cell / "status.json").read_bytes())["state"] == "done"
    gaps = [row["logprob_gap_max"] for row in json.loads((cell / "curve.json").read_text()) if "logprob_gap_max" in row]
    assert len(gaps) == STEPS
    assert 0 < max(gaps) <= 1e-5
