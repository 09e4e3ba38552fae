"""What a live attempt writes is readable at any moment, and becomes the same files as a simulated run's."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from libra.core.events import PipelineSpec
from libra.core.records import ToolReturn
from libra.integrations.turns import Ended, StepDone
from libra.results.cell import Cell
from libra.results.schemas import EngineRow
from libra.results.store import Store, read_json
from libra.runtime.attempt import ROWS_NAME, AttemptRecorder, assemble, read_rows
from libra.runtime.replay import decisions
from tests.unit.integrations.conftest import Scene


def run(scene: Scene, folder: Path, num_steps: int = 3) -> AttemptRecorder:
    recorder = AttemptRecorder(folder)
    scene.session.controller.recorder = recorder
    scene.begin()
    for step in range(num_steps):
        for key in (f"{step}a", f"{step}b"):
            scene.turn(key, 10)
            scene.now_s += 1.0
            scene.done(key, (step, 5))
            scene.turn(key, 20, ToolReturn("search", 5, "ok", 0.1))
            scene.now_s += 1.0
            scene.done(key, (step, 5))
            scene.session.ended(Ended(key, "completed", float(step)))
        scene.session.step_done(StepDone(step, (f"{step}a", f"{step}b"), step, 0.5, 0.1, 0.0))
    return recorder


def test_rows_are_there_after_each_step_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    run(Scene(), tmp_path)
    steps, trajectories = read_rows(tmp_path)
    assert ([row.step for row in steps], len(trajectories)) == ([0, 1, 2], 6)
    whole = (tmp_path / ROWS_NAME).read_bytes()
    (tmp_path / ROWS_NAME).write_bytes(whole[:-20])
    steps, trajectories = read_rows(tmp_path)
    assert ([row.step for row in steps], len(trajectories)) == ([0, 1], 6)


def test_engines_samples_become_a_table(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    sample = EngineRow(1.5, 0, 3, 2, 0.5, 100, 40, 1, 7, 0.25)
    cell = Cell.make("train", "search-r1", "cpu2", "tiny", "libra", backend="live")
    with Store(tmp_path / "runs").claim(cell, "code") as cell_dir:
        cell_dir.start()
        scene = Scene()
        recorder = run(scene, cell_dir.attempt_dir)
        recorder.engine(sample)
        recorder.close()
        recorder.engine(sample)  # comes too late: no error
        steps, trajectories = read_rows(cell_dir.attempt_dir)
        assert (len(steps), len(trajectories)) == (3, 6)
        assemble(cell_dir.attempt_dir, cell_dir, 3, PipelineSpec("async"))
        table = pq.read_table(cell_dir.path / "engines.parquet")
        cell_dir.start()
        assert not (cell_dir.path / "engines.parquet").exists()
    assert table.to_pylist() == [msgspec.structs.asdict(sample)]


def test_a_folder_without_rows_has_none(tmp_path: Path) -> None:
    assert read_rows(tmp_path) == ([], [])


def test_results_are_assembled_in_the_stores_form(tmp_path: Path) -> None:
    cell = Cell.make("train", "search-r1", "cpu2", "tiny", "libra", backend="live")
    with Store(tmp_path / "runs").claim(cell, "code") as cell_dir:
        cell_dir.start()
        scene = Scene()
        recorder = run(scene, cell_dir.attempt_dir)
        scene.session.close()
        recorder.close()
        metrics = assemble(cell_dir.attempt_dir, cell_dir, 3, PipelineSpec("async"))
        assert metrics.metrics["steps"] == 3
        assert metrics.metrics["makespan_s"] == 12.0
        assert metrics.metrics["staleness_max"] == 0.0
        logged = list(decisions(cell_dir.path / "events.jsonl.zst"))
        timing = read_json(cell_dir.path / "timing.json", dict)
    assert len(logged) == timing["counts"]["num_events"]
    assert sum(len(commands) for _, commands in logged) == 1 + 12  # the plan, and two placements a trajectory
    assert timing["wall_s"] == pytest.approx(12.0)
