"""`libra plan --backtest`: tables, run files and cells of a simulated store; and every source that it has to refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.cli import main
from experiments.commands.backtest import Ask, judge, plan_backtest
from experiments.job_runs import read_runs
from experiments.launch import launch
from libra.core.errors import ConfigError
from libra.core.events import PlannerTick, RunStart
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.store import Store
from libra.runtime.event_log import LOG_NAME, LogWriter, read_log
from libra.workloads.trace_file import TraceHeader, write_trace

HEAD = "run,gpus_rollout,gpus_train,rollout_s,train_s,step_s,tokens"
ROWS = (
    "monday,24,8,210,395,402,1000000", "tuesday,16,16,300,205,307,1000000", "wednesday,20,12,250,268,275,1010000",
    "thursday,18,14,275,232,284,1000000", "friday,26,6,190,530,541,1000000", "saturday,12,20,395,162,402,990000",
)  # fmt: skip


def table(path: Path, *rows: str) -> Path:
    path.write_text("\n".join((HEAD, *rows)) + "\n")
    return path


def answer(
    capsys: pytest.CaptureFixture[str], *sources: Path, pipeline: str = "", earlier: int | None = None
) -> dict[str, Any]:
    plan_backtest(Ask(sources, pipeline, earlier, 100, 60.0), as_json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_table_of_steps_gets_errors_a_gain_and_gpu_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path / "steps.csv", *ROWS)
    found = answer(capsys, path)
    assert [run["name"] for run in found["earlier"]] == ["monday", "tuesday", "wednesday"]
    assert [run["name"] for run in found["later"]] == ["thursday", "friday", "saturday"]
    assert found["answer"] == "move"
    assert (found["best"]["rollout_gpus"], found["best"]["train_gpus"]) == (20, 12)
    # The table has a run of that split on nearly the same tokens: 275 s against 402 s.
    assert found["gain"]["low"] < 1 - 275 / 402 < found["gain"]["high"]
    saved = found["gain"]["value"] * 402 * 32 * 100 / 3600
    assert found["gpu_hours"]["value"] == pytest.approx(saved)
    assert set(found["definitions"]) >= {"error", "gain", "interval", "GPU hours"}
    plan_backtest(Ask((path,), "", None, 100, 60.0), as_json=False)
    text = capsys.readouterr().out
    assert text.startswith(
        "Calibrated on 3 runs (monday, tuesday, wednesday), in the order given; predicted 3 later runs"
    )
    assert "Move from 12:20 to 20:12" in text and "GPU hours" in text and "interval: 95%" in text


def test_later_times_in_the_file_change_no_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = [row.split(",") for row in ROWS[3:]]
    slower = [",".join((*row[:3], *(str(9 * float(time)) for time in row[3:6]), row[6])) for row in later]
    honest = answer(capsys, table(tmp_path / "a.csv", *ROWS))["later"]
    corrupted = answer(capsys, table(tmp_path / "b.csv", *ROWS[:3], *slower))["later"]
    assert [run["predicted"] for run in corrupted] == [run["predicted"] for run in honest]
    assert corrupted[0]["measured"]["step_s"] == pytest.approx(9 * honest[0]["measured"]["step_s"])


def test_steps_of_a_run_are_averaged_in_its_steady_state(tmp_path: Path) -> None:
    times = (900, 100, 102, 104, 98, 100, 100, 100, 500)
    rows = [f"a,8,8,{time},50,{time + 5},{1000 + i}" for i, time in enumerate(times)]
    made = read_runs([table(tmp_path / "a.csv", *rows)], "")
    assert (made[0].num_steps, made[0].run.measured.rollout_s) == (6, pytest.approx(604 / 6))
    assert made[0].run.setting.tokens == pytest.approx(1004.5)


def test_several_files_are_runs_in_the_order_given(tmp_path: Path) -> None:
    paths = [table(tmp_path / f"{i}.csv", ROWS[i].replace(ROWS[i].split(",")[0], "")) for i in (2, 0, 1)]
    assert [each.run.setting.name for each in read_runs(paths, "")] == ["2", "0", "1"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:1], "needs an earlier run"),
        ((ROWS[0], ROWS[1], ROWS[0].replace("monday", "copy")), "the same run twice"),
        (("a,24,8,210,395,402,1", "a,16,16,300,205,307,1"), "change within a run"),
        (("a,24,8,210,395,300,1", ROWS[0]), "a barrier step is at least the slower of its stages, 395 s"),
        (("a,24,8,nan,395,402,1", ROWS[0]), "row 1, rollout_s"),
    ],
)
def test_runs_that_tell_nothing_are_refused(rows: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        judge(read_runs([table(tmp_path / "a.csv", *rows)], ""))


def test_runs_of_two_models_or_pipelines_are_refused(tmp_path: Path) -> None:
    for column, values in (("model", ("small", "large")), ("pipeline", ("barrier", "async"))):
        head = f"{HEAD},{column}"
        path = tmp_path / "a.csv"
        path.write_text("\n".join((head, *(f"{row},{value}" for row, value in zip(ROWS, values, strict=False)))))
        with pytest.raises(ConfigError, match=f"differ in their {column}"):
            read_runs([path], "")
    with pytest.raises(ConfigError, match="did you mean 'barrier'"):
        read_runs([table(tmp_path / "b.csv", *ROWS)], "barier")
    with pytest.raises(ConfigError, match="a serial step is at least the sum"):
        read_runs([table(tmp_path / "b.csv", *ROWS)], "serial")
    with pytest.raises(ConfigError, match="colocated stages have the same GPUs"):
        read_runs([table(tmp_path / "b.csv", *ROWS)], "colocated")


def test_a_dump_of_lengths_is_refused_with_what_is_missing(tmp_path: Path, project_root: Path) -> None:
    for source in (project_root / "tests/data/verl", Path("recorded:search-r1")):
        with pytest.raises(ConfigError, match=r"no step times, no GPU counts and no layout(.|\n)*rollout_s, train_s"):
            read_runs([source], "")
    with pytest.raises(ConfigError, match="no step times here"):
        read_runs([project_root / "tests/data/verl/1.jsonl"], "")
    with pytest.raises(ConfigError, match="no such file"):
        read_runs([tmp_path / "nowhere"], "")


def test_the_command_line_refuses_what_a_backtest_has_no_use_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(table(tmp_path / "steps.csv", *ROWS))
    for args, message in (
        (["search-r1", "--backtest"], "takes runs alone"),
        (["--from", path, "--backtest", "--gpus", "8:8"], "takes runs alone"),
        (["--from", path, "--from", path], "several sources of lengths"),
        (["--backtest"], "needs an earlier run"),
        (["--from", path, "--backtest", "--calibrate-on", "6"], "allowed: 1 to 5"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["plan", *args])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


# -- run files -----------------------------------------------------------------------------------------------------


def verl_log(path: Path, rollout_s: float, train_s: float) -> None:
    data = {"timing_s/gen": rollout_s, "timing_s/update_actor": train_s, "timing_s/step": max(rollout_s, train_s) + 5,
            "perf/total_num_tokens": 1e6}  # fmt: skip
    path.write_text("\n".join(json.dumps({"step": step, "data": data}) for step in range(3)))


def test_verls_log_needs_the_split_of_a_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = []
    for name, gpus, rollout_s, train_s in (("a", "24:8", 210, 395), ("b", "16:16", 300, 205), ("c", "20:12", 250, 268),
                                           ("d", "12:20", 395, 162)):  # fmt: skip
        verl_log(tmp_path / f"{name}.jsonl", rollout_s, train_s)
        (tmp_path / f"{name}.toml").write_text(f'steps = "{name}.jsonl"\ngpus = "{gpus}"\n')
        sources.append(tmp_path / f"{name}.toml")
    found = answer(capsys, *sources)
    assert [(run["rollout_gpus"], run["train_gpus"]) for run in found["later"]] == [(20, 12), (12, 20)]
    with pytest.raises(ConfigError, match="do not say on how many GPUs"):
        read_runs([tmp_path / "a.jsonl"], "")


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[..., Path]:
    """A run of a 48-GPU job with its layout and the lengths of one step."""
    turns = (Turn(2000, ToolReturn("search", 200, "ok", 2.0)), Turn(500))
    rows = [Trajectory(f"p{i // 4}", i // 4, i % 4, 100 + 20 * i, turns) for i in range(64)]
    write_trace(tmp_path / "lengths.jsonl.gz", TraceHeader("a test", "exact"), rows)

    def build(name: str, dp: int, rollout_s: float, **changes: str) -> Path:
        engines = "+".join(["4"] * (12 - dp))
        values = {
            "steps": f'"{name}.csv"', "model": '"qwen3-14b"', "cluster": '"a800x48"', "lengths": '"lengths.jsonl.gz"',
            "train": f"{{tp = 4, dp = {dp}}}", "engines": f'"{engines}"',
        } | changes  # fmt: skip
        table(tmp_path / f"{name}.csv", f",{48 - 4 * dp},{4 * dp},{rollout_s},20,{max(rollout_s, 20) + 3},200000")
        path = tmp_path / f"{name}.toml"
        path.write_text("\n".join(f"{key} = {value}" for key, value in values.items() if value))
        return path

    return build


def test_a_run_file_with_lengths_and_layout_is_held_to_the_estimate(
    run_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, *(run_file(f"r{dp}", dp, 40.0 + dp) for dp in (2, 4, 6, 3)))
    assert set(found["calibration"]) == {"rollout", "train", "rest_s"}
    assert found["calibration"]["rest_s"] == pytest.approx(3.0)
    assert found["best"]["plan"]["train"]["tp"] == 4
    assert all(run["new"] for run in found["later"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engines": ""}, "a layout without its engines"),
        ({"model": ""}, "a layout without its model"),
        ({"train": "{tp = 4, dp = 2, tpp = 1}"}, "did you mean 'tp'"),
        ({"train": "{tp = 4}"}, "no layout"),
        ({"engines": '"4+x"'}, "no layout"),
        ({"engines": '"4+4"'}, "contradict each other"),
        ({"lengths": '"nowhere.jsonl"'}, "no such file"),
        ({"steps": '"nowhere.csv"'}, "cannot read the steps"),
        ({"setps": '"a.csv"'}, "did you mean 'steps'"),
    ],
)
def test_a_run_file_that_contradicts_itself_is_refused(
    run_file: Callable[..., Path], changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_runs([run_file("a", 2, 40.0, **changes)], "")


# -- cells of a store ----------------------------------------------------------------------------------------------


def cell(num_engines: int, policy: str = "hand-blind", **overrides: Any) -> Cell:
    """Four steps of 64 trajectories of 6,000 tokens on 48 GPUs, TP4 engines beside the trainer."""
    settings = {"workload.num_steps": 4, "workload.batch": 64, "workload.length_tok": 6000}
    if policy.startswith("hand"):
        settings["policy.engines"] = "+".join(["4"] * num_engines)
    return Cell.make("job", "fixed-length", "a800x48", "qwen3-14b", policy, overrides=settings | overrides)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("job") / "runs")
    for num_engines in (10, 4, 7, 8, 9, 3):
        assert launch([cell(num_engines)], store, Registry()).exit_code == 0
    return store


def test_a_simulated_job_is_predicted_and_its_gain_comes_true(job: Store, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, job.root / "studies" / "job.json")
    assert found["order"] == "ended"
    assert [run["rollout_gpus"] for run in (*found["earlier"], *found["later"])] == [40, 16, 28, 32, 36, 12]
    assert found["mean_error"] < min(0.05, found["earlier_mean_error"])
    assert found["answer"] == "move"
    # The simulator's truth, which the estimate does not share: the same trajectories on the recommended layout.
    best = cell(found["best"]["rollout_gpus"] // 4)
    launch([best], job, Registry())
    measured = {made.run.setting.rollout_gpus: made.run.measured.step_s
                for made in read_runs([job.path(each.id) for each in job.cells("job")], "")}  # fmt: skip
    gain = 1 - measured[found["best"]["rollout_gpus"]] / measured[12]
    assert found["gain"]["low"] <= gain <= found["gain"]["high"]


def test_later_times_in_a_store_change_no_prediction(
    job: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, job.root / "studies" / "job.json")
    copy = Store(shutil.copytree(job.root, tmp_path / "runs"))
    for run in found["later"]:
        path = copy.path(copy.find(run["name"].split()[0]).id) / "steps.parquet"
        steps = pq.read_table(path)
        for name in ("rollout_s", "train_s", "end_s"):
            steps = steps.set_column(steps.column_names.index(name), name, pa.array(steps[name].to_numpy() * 7))
        pq.write_table(steps, path)
    corrupted = answer(capsys, copy.root / "studies" / "job.json")
    assert [run["predicted"] for run in corrupted["later"]] == [run["predicted"] for run in found["later"]]
    assert corrupted["mean_error"] > 0.5


def test_cells_that_are_no_runs_of_one_plan_are_refused(job: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    cells = [cell(0, "libra", **{"pipeline.kind": "async"}), cell(0, "verl-colocated"), cell(4)]
    launch(cells, other, Registry())
    paths = [other.path(each.id) for each in other.cells("job")]
    with pytest.raises(ConfigError, match="how long the trainer waited"):
        read_runs(paths[:1], "")
    with pytest.raises(ConfigError, match="differ in their pipeline"):
        read_runs(paths[1:], "")
    with pytest.raises(ConfigError, match="the same run twice"):
        read_runs([paths[2], paths[2]], "")
    with pytest.raises(ConfigError, match=r"differ in their (model|cluster|kind of source)"):
        read_runs([paths[2], table(tmp_path / "a.csv", *ROWS)], "")
    (paths[2] / "status.json").write_text('{"state": "failed"}')
    with pytest.raises(ConfigError, match="a run without results"):
        read_runs(paths[2:], "")


def test_a_cell_whose_layout_changed_is_refused(job: Store, tmp_path: Path) -> None:
    copy = Store(shutil.copytree(job.root, tmp_path / "runs"))
    path = copy.path(copy.cells("job")[0].id)
    events = [each for each in read_log(path / LOG_NAME) if isinstance(each, RunStart | PlannerTick)]
    last = events[-1]
    assert isinstance(last, PlannerTick)
    fewer = msgspec.structs.replace(last.allocation, instances=last.allocation.instances[1:])
    log = LogWriter(path / LOG_NAME)
    for event in (*events[:-1], msgspec.structs.replace(last, allocation=fewer)):
        log.write(event, ())
    log.close()
    with pytest.raises(ConfigError, match="the layout changed in step 3"):
        read_runs([path], "")
