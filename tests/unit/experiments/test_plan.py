"""`libra plan`: what it answers to stage times, and to figures that contradict one another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.commands.plan import Job, plan_job
from experiments.commands.plan_stages import Times, gpus_of, plan_times
from libra.core.errors import ConfigError
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.workloads.trace_file import TraceHeader, write_trace


def answer(
    capsys: pytest.CaptureFixture[str], rollout_s: float, train_s: float, gpus: str, pipeline: str = "",
    *, longest_s: float = 0.0, as_json: bool = False,
) -> str:  # fmt: skip
    plan_times(Times(rollout_s, train_s, gpus, longest_s, pipeline, 60.0), as_json=as_json)
    return capsys.readouterr().out


def test_overlap_is_recommended_where_stages_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, 2252, 1800, "16:16", "serial")
    assert text.startswith("Keep 16:16 and overlap the stages: 4,052 s -> 2,252 s a step, 44% to 44% saved.")
    assert "paid back after 1 step." in text
    assert "Bound: 2,026 s" in text


def test_gpus_move_to_the_slower_stage(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, 100, 400, "16:16")
    assert text.startswith("Move from 16:16 to 8:24: 400 s -> 266.7 s")


def test_it_abstains_where_the_gain_is_not_sure(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(answer(capsys, 357.41, 377.51, "32", as_json=True))
    assert found["stay"]
    assert found["pays_back_after_steps"] is None
    assert found["bound_s"] == pytest.approx(357.41 + 377.51)
    assert answer(capsys, 357.41, 377.51, "32").startswith("Stay at 32 colocated")


def test_a_long_trajectory_limits_what_more_gpus_buy(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, 400, 100, "16:16", longest_s=390)
    assert text.startswith("Move from 16:16 to 24:8: 400 s -> 390 s")
    assert "rollout waits 390 s for the longest trajectory" in text


@pytest.mark.parametrize("text", ["", "16:", "a:b", "16:16:16", "-8:8", "0:8", "8.5"])
def test_counts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no GPU counts"):
        gpus_of(text)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (Times(None, 1, "8:8", 0, "", 60), "incomplete"),
        (Times(1, 1, "8:8", 0, "asinc", 60), "did you mean 'async'"),
        (Times(1, 1, "8", 0, "async", 60), "take turns"),
        (Times(1, 1, "8:8", 0, "colocated", 60), "the same GPUs"),
        (Times(float("nan"), 1, "8:8", 0, "", 60), "rollout_s"),
    ],
)
def test_contradictions_are_refused(times: Times, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_times(times, as_json=False)


def job(**changes: object) -> Job:
    values = {
        "workload": None,
        "source": None,
        "cluster": "a800x48",
        "model": "qwen3-14b",
        "pipeline": "",
        "batch": None,
    }
    return Job(**{**values, **changes})  # type: ignore[arg-type]


def test_a_workload_gets_a_plan_with_bound_runners_up_and_mechanisms(capsys: pytest.CaptureFixture[str]) -> None:
    plan_job(job(workload="search-r1"), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert len(found["runners_up"]) == 5
    assert 0 <= found["gap"] < 0.2
    best = found["best"]["plan"]["expected"]["step_s"]
    assert found["bound_s"] <= best
    assert all(each["plan"]["expected"]["step_s"] >= found["bound_s"] for each in found["runners_up"])
    assert found["mechanisms"]["separate pools, overlapped"] > 0
    plan_job(job(workload="search-r1"), as_json=False)
    text = capsys.readouterr().out
    assert "no plan of this cluster is below" in text
    assert "note: times are estimates from datasheet figures" in text


@pytest.mark.parametrize("pipeline", ["colocated", "barrier", "async"])
def test_a_trace_is_planned_for_under_every_pipeline(
    pipeline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = (Turn(300, ToolReturn("search", 200, "ok", 2.0)), Turn(100))
    rows = [
        Trajectory(f"p{i // 4}", i // 4, i % 4, 100 + i, turns, status="truncated" if i == 0 else "completed")
        for i in range(16)
    ]
    path = tmp_path / "trace.jsonl.gz"
    write_trace(path, TraceHeader("a test", "exact"), rows)
    plan_job(job(source=path, pipeline=pipeline, batch=64), as_json=False)
    text = capsys.readouterr().out
    assert f"pipeline {pipeline}, 64 trajectories a step" in text
    assert "1 of 16 trajectories were cut off" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "one source of lengths"),
        ({"workload": "search-r1", "source": Path("x")}, "one source of lengths"),
        ({"workload": "serach-r1"}, "did you mean 'search-r1'"),
        ({"workload": "search-r1", "pipeline": "serial"}, "unknown pipeline"),
        ({"source": Path("nowhere.json")}, "no such file"),
        ({"workload": "dapo-math", "cluster": "a800x8"}, "a colocated pipeline does"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_job(job(**changes), as_json=False)
