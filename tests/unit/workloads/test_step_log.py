"""Tables of step times: three formats, verl's log, and every way in which a row is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from libra.core.errors import TraceError
from libra.workloads.step_log import StepLine, read_steps

HEAD = "gpus_rollout,gpus_train,rollout_s,train_s,step_s,tokens"
ROW = {"gpus_rollout": 24, "gpus_train": 8, "rollout_s": 210.5, "train_s": 395, "step_s": 402, "tokens": 1e6}
LINE = StepLine(210.5, 395.0, 402.0, 1e6, 24, 8)


def wrote(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_three_formats_are_one_table(tmp_path: Path) -> None:
    csv = wrote(tmp_path / "a.csv", f"\ufeff{HEAD}\n24, 8, 210.5, 395, 402, 1e6\n")
    rows = wrote(tmp_path / "a.json", json.dumps([ROW]))
    lines = wrote(tmp_path / "a.jsonl", json.dumps(ROW) + "\n\n")
    assert read_steps(csv) == read_steps(rows) == read_steps(lines) == [LINE]


def test_optional_columns_are_kept(tmp_path: Path) -> None:
    path = wrote(tmp_path / "a.csv", f"run,step,pipeline,model,{HEAD}\nmonday,1,async,mine,24,8,210.5,395,402,1e6\n")
    assert read_steps(path) == [StepLine(210.5, 395.0, 402.0, 1e6, 24, 8, "monday", "async", "mine")]


def verl(**changes: Any) -> dict[str, Any]:
    """A line of verl 0.9.1's FileLogger, `{"step", "data"}`, with what its PPO trainer reports of time."""
    data = {
        "training/global_step": 3, "timing_s/gen": 100.0, "timing_s/old_log_prob": 10.0, "timing_s/ref": 5.0,
        "timing_s/adv": 0.5, "timing_s/update_actor": 40.0, "timing_s/update_weights": 4.0, "timing_s/step": 161.0,
        "perf/total_num_tokens": 500000, "perf/time_per_step": 161.0, "critic/score/mean": 0.4,
    }  # fmt: skip
    return {"step": 3, "data": {key: value for key, value in (data | changes).items() if value is not None}}


def test_verls_file_log_is_read(tmp_path: Path) -> None:
    path = wrote(tmp_path / "verl.jsonl", json.dumps(verl()))
    assert read_steps(path) == [StepLine(100.0, 55.5, 161.0, 500000.0)]
    path = wrote(tmp_path / "verl.jsonl", json.dumps(verl(**{"timing_s/gen": None})))
    with pytest.raises(TraceError, match="row 1: verl's log has no timing_s/gen"):
        read_steps(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"rollout_s": "nan"}, "row 2, rollout_s: no step has such a figure"),
        ({"train_s": -1}, "row 2, train_s"),
        ({"step_s": "inf"}, "row 2, step_s"),
        ({"tokens": 0}, "row 2, tokens"),
        ({"step_s": "soon"}, "row 2, step_s"),
        ({"gpus_train": 2.5}, "no number of GPUs"),
        ({"gpus_train": None}, "no gpus_train"),
        ({"rollouts_s": 3}, "unknown column(.|\n)*did you mean 'rollout_s'"),
    ],
)
def test_a_row_that_no_step_has_is_refused_with_its_place(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = wrote(tmp_path / "a.jsonl", "\n".join(json.dumps(each) for each in (ROW, ROW | row)))
    with pytest.raises(TraceError, match=message):
        read_steps(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "no step in this file"),
        ("a.csv", HEAD + "\n", "no step in this file"),
        ("a.csv", HEAD + "\n1,2,3\n", "no train_s and no step_s and no tokens"),
        ("a.csv", HEAD + "\n24,8,210.5,395,402,1e6,7\n", "more values than columns"),
        ("a.json", "[]", "no step in this file"),
        ("a.json", "{}", "a list of objects"),
        ("a.json", "[1]", "a list of objects"),
        ("a.jsonl", "{", "no JSON"),
        ("a.jsonl", '{"input": "q", "output": "a"}', "no step times here(.|\n)*input, output"),
    ],
)
def test_what_is_no_table_of_steps_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=message):
        read_steps(wrote(tmp_path / name, text))
    with pytest.raises(TraceError, match="cannot read the steps"):
        read_steps(tmp_path / "nowhere.csv")
