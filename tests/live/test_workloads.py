"""The other two workloads for a step or two, with their real tools; and one whose reward is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs the live stack: `make live-test`")

from tests.live.kills import PROGRAM

STEPS = 2
SETTINGS = ("live.prompts=2", "live.samples=8", "live.warmup_steps=100", "live.test_every=0")
BROKEN = """
from dataclasses import replace

from libra.workloads import dapo_math
from libra.workloads.environments.dapo_math import DapoMath


class Broken(DapoMath):
    def start(self, task):
        episode = super().start(task)

        async def reward():
            raise ZeroDivisionError("this reward is broken")

        episode.reward = reward
        return episode


WORKLOAD = replace(dapo_math.WORKLOAD, name="broken", environment=Broken)
"""


def train(store: Path, workload: str, *arguments: str) -> tuple[int, str, Path]:
    """Exit status, what was printed, and the cell's folder. The store is named from where the user stands."""
    changes = [text for each in SETTINGS for text in ("--set", each)]
    command = [sys.executable, "-c", PROGRAM, "train", workload, "--steps", str(STEPS), *changes, *arguments]
    store.mkdir(exist_ok=True)
    done = subprocess.run(
        [*command, "--store", store.name], capture_output=True, text=True, timeout=600, check=False, cwd=store.parent
    )
    (cell,) = (store / "cells").iterdir()
    return done.returncode, done.stdout + done.stderr, cell


@pytest.mark.parametrize(("workload", "tools"), [("dapo-math", {"python"}), ("r2e-gym", {"bash", "edit"})])
def test_a_workload_trains_with_tools_that_answer(workload: str, tools: set[str], tmp_path: Path) -> None:
    from libra.core.events import ToolReturned
    from libra.runtime.replay import decisions

    status, text, cell = train(tmp_path, workload)
    assert status == 0, text
    returns = [event for event, _ in decisions(cell / "events.jsonl.zst") if isinstance(event, ToolReturned)]
    assert {event.tool for event in returns} <= tools
    assert Counter(event.status for event in returns)["ok"] > 0


def test_a_reward_that_always_fails_ends_the_run_with_its_error(tmp_path: Path) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text(BROKEN)
    status, text, cell = train(tmp_path / "runs", "broken", "--plugin", str(plugin))
    assert status == 1, text
    assert "this reward is broken" in json.loads((cell / "status.json").read_bytes())["reason"]
