"""Engines of two sizes side by side; one is killed, its turns are asked for again, and a new one takes its place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs the live stack: `make live-test`")

ROOT = Path(__file__).resolve().parents[2]
STEPS, PROMPTS, SAMPLES = 120, 2, 4
PROGRAM = "from experiments.cli import main; main()"
COMMAND = [
    sys.executable, "-c", PROGRAM, "train", "search-r1", "--steps", str(STEPS), "--policy", "two-sizes",
    "--plugin", str(ROOT / "tests/plugins/two_sizes.py"), "--cluster", str(ROOT / "tests/data/live/cpu4.toml"),
    "--set", f"live.prompts={PROMPTS}", "--set", f"live.samples={SAMPLES}", "--set", "live.warmup_steps=60",
    "--set", "live.test_every=0", "--set", "pipeline.kind=async",
]  # fmt: skip
START_S, RUN_S = 400.0, 500.0


def engines(store: Path) -> dict[int, str]:
    """Engine cores of this run: pid -> command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if "EngineCore" in command and str(store).encode() in environ:
                found[int(entry.name)] = command
    return found


def wait_for(what, process: subprocess.Popen[bytes], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not what():
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.5)


def num_steps(store: Path) -> int:
    rows = list(store.glob("cells/*/logs/attempt_1/rows.jsonl"))
    return rows[0].read_bytes().count(b'{"step":{') if rows else 0


@pytest.mark.by_hand
def test_a_killed_engine_costs_no_trajectory_and_comes_back(tmp_path: Path) -> None:
    from libra.core.events import AllocationChanged, Placed
    from libra.runtime.replay import decisions

    store = tmp_path / "runs"
    with (tmp_path / "out.txt").open("wb") as out:
        process = subprocess.Popen([*COMMAND, "--store", str(store)], stdout=out, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: num_steps(store) >= 2, process, START_S)
            cores = engines(store)
            assert len(cores) == 2
            os.kill(min(cores), signal.SIGKILL)
            assert process.wait(RUN_S) == 0, (tmp_path / "out.txt").read_text()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
    (cell,) = (store / "cells").iterdir()
    events = [event for event, _ in decisions(cell / "events.jsonl.zst")]
    causes = [event.cause for event in events if isinstance(event, AllocationChanged)]
    assert causes == ["plan", "down", "up"]
    assert {event.instance for event in events if isinstance(event, Placed)} == {0, 1}
    steps = [json.loads(line) for line in (cell / "logs/attempt_1/rows.jsonl").read_text().splitlines()]
    trained = Counter(row["trajectory"]["trained_step"] for row in steps if "trajectory" in row)
    del trained[-1]
    assert trained == {step: PROMPTS * SAMPLES for step in range(STEPS)}
