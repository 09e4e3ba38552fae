"""What a policy's own programs may do to a run: the call fails or is cut, the next one works, the run goes on."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from libra.backends.live.sandbox import open_sandbox
from libra.workloads.environments import r2e_gym
from libra.workloads.environments.base import EnvironmentContext, Observation
from libra.workloads.tools import python_tool
from libra.workloads.tools.python_tool import MAX_OUTPUT_CHARS, run_python
from libra.workloads.tools.sandbox import Limits

FLOOD_BASH = "<bash>head -c 100000000 /dev/zero | tr '\\0' x</bash>"
FLOOD_PYTHON = "import sys\nfor _ in range(100): sys.stdout.write('x' * 1_000_000)"
ENDLESS_BASH = "<bash>sleep infinity</bash>"
ENDLESS_PYTHON = "while True: pass"
KEPT_KB = 50_000
"""Half of what a flood prints: who keeps it all is noticed."""


def shell_calls(work: Path, completions: Sequence[str]) -> list[Observation | None]:
    """An episode of r2e-gym in the real sandbox."""
    environment = r2e_gym.build(EnvironmentContext(work, open_sandbox()))

    async def play() -> list[Observation | None]:
        episode = environment.start(environment.tasks("train")[0])
        try:
            return [await episode.step(each) for each in completions]
        finally:
            await episode.close()

    return asyncio.run(play())


def test_a_command_that_prints_100_megabytes_is_cut_and_the_episode_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(r2e_gym, "LIMITS", Limits(wall_s=60.0, cpu_s=30, output_bytes=4_096))  # on a busy machine too
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    flood, after = shell_calls(tmp_path, [FLOOD_BASH, "<bash>echo still here</bash>"])
    assert flood is not None and after is not None
    assert (flood.tool, flood.status) == ("bash", "ok")
    assert len(flood.text) < 10_000
    assert (after.text, after.status) == ("<output>still here</output>", "ok")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < KEPT_KB


def test_a_command_that_never_ends_is_a_timeout_and_the_episode_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(r2e_gym, "LIMITS", Limits(wall_s=1.0, cpu_s=20))
    endless, after = shell_calls(tmp_path, [ENDLESS_BASH, "<done></done>"])
    assert endless is not None
    assert (endless.tool, endless.status) == ("bash", "timeout")
    assert endless.latency_s >= 1.0
    assert after is None


def test_a_program_that_prints_100_megabytes_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_tool, "LIMITS", Limits(wall_s=60.0, cpu_s=30))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text, status, _ = asyncio.run(run_python(open_sandbox(), FLOOD_PYTHON, tmp_path))
    assert (text, status) == ("x" * MAX_OUTPUT_CHARS + "...", "ok")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < KEPT_KB


def test_a_program_that_never_ends_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_tool, "LIMITS", Limits(wall_s=0.5, cpu_s=20))
    text, status, latency_s = asyncio.run(run_python(open_sandbox(), ENDLESS_PYTHON, tmp_path))
    assert (text, status) == ("timeout after 0.5 s", "timeout")
    assert latency_s >= 0.5
