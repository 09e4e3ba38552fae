"""A stock verl job (verl's entry point, tool agent loop and trainer) with the lines of docs/verl.md, on cores.

The by-hand test runs the same job without Libra's lines.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the live stack: `make live-test`")

from libra.core.events import Placed, ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.integrations.settings import read_settings
from libra.runtime.attempt import LOG_NAME, TIMES_NAME, read_rows
from libra.runtime.replay import decisions, replay
from tests.live.caller import TOWNS, question
from tests.live.stock_job import PROMPTS, SAMPLES, STEPS, run_verl, steps_of, trained

OURS = ("router_config_path", "agent_loop_manager_class")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stock")
    run_verl(folder)
    return folder


@pytest.fixture(scope="module")
def events(job: Path) -> list[Any]:
    return [event for event, _ in decisions(job / "out" / LOG_NAME)]


def test_verl_trained_every_step(job: Path) -> None:
    assert steps_of(job) == list(range(1, STEPS + 1))


def test_every_trained_trajectory_was_started_placed_and_ended_once(job: Path, events: list[Any]) -> None:
    starts = [event for event in events if isinstance(event, TrajectoryStart)]
    names = {event.trajectory: (question(TOWNS[int(event.prompt_id)]), event.sample) for event in starts}
    assert len(names) == len(starts)
    assert max(Counter(names.values()).values()) == 1  # eight prompts, fewer than an epoch
    known = {name: number for number, name in names.items()}
    batch = trained(job)
    assert len(batch) == len(set(batch)) == STEPS * PROMPTS * SAMPLES
    placed = Counter(event.trajectory for event in events if isinstance(event, Placed))
    ended = Counter(event.trajectory for event in events if isinstance(event, TrajectoryEnd))
    for name in batch:
        number = known[name]
        assert placed[number] >= 1
        assert ended[number] == 1
    assert set(ended.values()) == {1}


def test_a_stock_tool_is_known_by_its_size_and_time(events: list[Any]) -> None:
    returns = [event for event in events if isinstance(event, ToolReturned)]
    assert len(returns) >= STEPS * PROMPTS * SAMPLES // 2
    assert {(event.tool, event.status) for event in returns} == {("unknown", "unknown")}
    assert all(event.payload_tok > 0 and event.latency_s >= 0.05 for event in returns)  # the tool sleeps so long


def test_each_ended_trajectory_has_a_row_and_each_decision_a_time(job: Path, events: list[Any]) -> None:
    steps, rows = read_rows(job / "out")
    ended = {event.trajectory for event in events if isinstance(event, TrajectoryEnd)}
    assert steps == []
    assert {row.trajectory for row in rows} == ended
    assert len(rows) == len(ended)
    assert (job / "out" / TIMES_NAME).stat().st_size == 8 * len(events)


def test_the_same_policy_gives_the_same_commands_on_the_log(job: Path, tmp_path: Path, events: list[Any]) -> None:
    (tmp_path / "events.jsonl.zst").write_bytes((job / "out" / LOG_NAME).read_bytes())
    found = replay(tmp_path, read_settings(job / "libra.yaml").build_policy)
    assert found.same, found.text()
    assert found.num_events == len(events)
    assert found.num_commands > STEPS * PROMPTS * SAMPLES


@pytest.mark.by_hand
def test_the_job_runs_without_libras_lines(tmp_path: Path) -> None:
    run_verl(tmp_path, leave_out=OURS)
    assert steps_of(tmp_path) == list(range(1, STEPS + 1))
    assert len(trained(tmp_path)) == STEPS * PROMPTS * SAMPLES
    assert list((tmp_path / "out").iterdir()) == []
