"""kill -9 of an engine, of a training worker and of `libra train` itself: the run ends as one that nobody harmed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs the live stack: `make live-test`")

from tests.live.kills import PROGRAM, Run
from tests.live.leftovers import temporary

PROMPTS, SAMPLES = 2, 4
START_S, END_S = 400.0, 500.0
SMALL = [
    "search-r1", "--set", f"live.prompts={PROMPTS}", "--set", f"live.samples={SAMPLES}", "--set",
    "live.warmup_steps=60", "--set", "live.test_every=0", "--set", "live.save_every=2",
]  # fmt: skip


def check(run: Run, num_steps: int) -> None:
    """Nothing lost, nothing trained twice, nothing too old; every step is in the curve; the log replays."""
    assert run.trained() == {step: PROMPTS * SAMPLES for step in range(num_steps)}
    (cell,) = (run.store / "cells").iterdir()
    curve = json.loads((cell / "curve.json").read_text())
    assert [row["step"] for row in curve] == list(range(1, num_steps + 1))
    command = [sys.executable, "-c", PROGRAM, "replay", cell.name, "--json", "--store", str(run.store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout)["same"]


def test_one_kill_of_each_kind(tmp_path: Path) -> None:
    num_steps, before = 40, temporary()
    run = Run(tmp_path, *SMALL, "--steps", str(num_steps))
    run.start()
    try:
        run.wait_for(lambda: run.steps() >= 3, START_S)
        run.kill("engine", START_S)
        seen = run.steps()
        run.wait_for(lambda: run.steps() >= seen + 3, START_S)
        run.kill("trainer", START_S)
        run.wait_for(lambda: "starting it again" in run.log.read_text(), START_S)
        run.wait_for(lambda: len(list(run.store.glob("cells/*/logs/attempt_1/restart_1/rows.jsonl"))) > 0, START_S)
        seen = run.steps()
        run.wait_for(lambda: run.steps() >= max(seen, 4) + 3, START_S)
        run.process.kill()
        run.process.wait()
        run.start()
        assert run.process.wait(END_S) == 0, run.log.read_text()[-4000:]
    finally:
        run.end()
    check(run, num_steps)
    assert temporary() - before == set()
    (status,) = (json.loads(path.read_text()) for path in run.store.glob("cells/*/status.json"))
    assert (status["state"], status["attempts"]) == ("done", 2)


@pytest.mark.by_hand
def test_a_storm_of_kills(tmp_path: Path) -> None:
    """Twenty engines and five training workers, one after the other's recovery."""
    num_steps = 600
    run = Run(tmp_path, *SMALL, "--steps", str(num_steps), "--set", "live.restarts=10")
    run.start()
    try:
        for number in range(25):
            seen = run.steps()
            run.wait_for(lambda seen=seen: run.steps() >= seen + 3, START_S)  # type: ignore[misc]
            run.kill("trainer" if number % 5 == 4 else "engine", START_S)
        assert run.process.wait(4 * END_S) == 0, run.log.read_text()[-4000:]
    finally:
        run.end()
    check(run, num_steps)
