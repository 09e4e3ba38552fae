"""A run that goes on from a checkpoint: its books, its log and its policy as if the lost time had never been."""

from __future__ import annotations

from pathlib import Path

import pytest

from libra.core.errors import PolicyError, StoreError
from libra.core.events import AllocationChanged, TrajectoryEnd, TrajectoryStart
from libra.core.records import ToolReturn
from libra.integrations.saved import checkpoints, load, save
from libra.integrations.turns import Ended, StepDone
from libra.results.schemas import EngineRow
from libra.runtime.attempt import TIMES_NAME, AttemptRecorder, carry_over, read_engines, read_rows
from libra.runtime.replay import decisions
from tests.unit.integrations.conftest import Scene

SAMPLE = EngineRow(1.5, 0, 3, 2, 0.5, 100, 40, 1, 7, 0.25)


def recorded(folder: Path) -> tuple[Scene, AttemptRecorder]:
    """A scene whose records go to a folder."""
    folder.mkdir()
    scene, recorder = Scene(), AttemptRecorder(folder)
    scene.session.controller.recorder = recorder
    return scene, recorder


def begun(folder: Path) -> tuple[Scene, AttemptRecorder]:
    """Step 0 was trained; of the next group `a` has ended, `b` has ended but verl had not heard of it, `c` runs."""
    scene, recorder = recorded(folder)
    scene.begin()
    scene.whole("x")
    scene.session.step_done(StepDone(0, ("x",), 0, 0.5, 0.1, 0.0))
    scene.whole("a")
    scene.whole("b")
    scene.turn("c", 10)
    scene.now_s += 1.0
    scene.done("c", (0, 5))
    scene.turn("c", 20, ToolReturn("search", 5, "ok", 0.1))
    return scene, recorder


def resumed(checkpoint: Path, folder: Path, finished: set[str]) -> Scene:
    scene, recorder = recorded(folder)
    scene.now_s = 5_000.0
    saved = load(checkpoint)
    carry_over((checkpoint / saved.records).resolve(), saved.position, recorder, scene.session.controller.policy)
    scene.session.restore(saved.session, finished)
    scene.now_s += 60.0  # engines start
    scene.session.attach((0, 1))
    return scene


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Saved amid a step; the run goes on to train `a`, `b` and `c`, and is killed."""
    scene, recorder = begun(tmp_path / "first")
    recorder.engine(SAMPLE)
    folder = tmp_path / "checkpoints" / "global_step_1"
    (folder / "actor").mkdir(parents=True)
    save(folder, scene.session.state(), recorder.position(), recorder.folder)
    scene.done("c", (0, 5))
    recorder.engine(SAMPLE)
    scene.session.ended(Ended("c", "completed", 1.0))
    scene.session.step_done(StepDone(1, ("a", "b", "c"), 1, 0.5, 0.1, 0.0))
    return folder


def test_engines_samples_up_to_the_checkpoint_are_kept(checkpoint: Path, tmp_path: Path) -> None:
    resumed(checkpoint, tmp_path / "second", {"a"}).session.controller.recorder.flush()
    assert read_engines(tmp_path / "second") == [SAMPLE]


def test_lost_trajectories_start_again_and_each_is_trained_once(checkpoint: Path, tmp_path: Path) -> None:
    scene = resumed(checkpoint, tmp_path / "second", {"a"})
    scene.whole("b", version=1)
    scene.whole("c", version=1)
    scene.session.step_done(StepDone(1, ("a", "b", "c"), 1, 0.5, 0.1, 0.0))
    scene.session.close()
    steps, rows = read_rows(tmp_path / "second")
    assert [row.step for row in steps] == [0, 1]
    found = sorted((row.trajectory, row.trained_step) for row in rows)
    assert found == [(0, 0), (1, 1), (2, -1), (3, -1), (4, 1), (5, 1)]
    assert [row.trajectory for row in rows if row.status == "aborted"] == [3]


def test_the_log_is_one_run_that_a_fresh_policy_answers_alike(checkpoint: Path, tmp_path: Path) -> None:
    scene = resumed(checkpoint, tmp_path / "second", {"a"})
    scene.whole("b", version=1)
    scene.session.controller.recorder.flush()
    found = list(decisions(tmp_path / "second" / "live.jsonl.zst"))
    fresh = Scene().session.controller.policy
    assert all(tuple(fresh.decide(event)) == commands for event, commands in found)
    times = [event.t_s for event, _ in found]
    assert times == sorted(times)
    assert times[-1] < 60.0  # the time that was lost is no time of the run
    kinds = [type(event) for event, _ in found]
    assert kinds.count(TrajectoryStart) == kinds.count(TrajectoryEnd) == 5
    assert kinds.count(AllocationChanged) == 2


def test_steps_are_timed_from_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    scene = resumed(checkpoint, tmp_path / "second", {"a", "b"})
    scene.whole("c", version=1)
    scene.session.step_done(StepDone(1, ("a", "b", "c"), 1, 0.5, 0.1, 0.0))
    (before, row), _ = read_rows(tmp_path / "second")
    assert row.start_s == pytest.approx(before.end_s + 3.0)
    assert row.end_s == pytest.approx(row.start_s + 1.0)


def test_a_policy_that_answers_otherwise_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    saved = load(checkpoint)
    (tmp_path / "second").mkdir()
    other = Scene(sizes=(1, 1)).session.controller.policy
    with pytest.raises(PolicyError, match="event 0"):
        carry_over(tmp_path / "first", saved.position, AttemptRecorder(tmp_path / "second"), other)


def test_records_that_were_cut_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "first" / "rows.jsonl").write_bytes(b"")
    with pytest.raises(StoreError, match="0 rows are left of"):
        resumed(checkpoint, tmp_path / "second", {"a"})
    assert (tmp_path / "first" / TIMES_NAME).exists()


def test_a_checkpoint_is_complete_when_it_holds_both_parts(checkpoint: Path) -> None:
    folder = checkpoint.parent
    assert checkpoints(folder) == []
    (checkpoint / "actor" / "model.pt").touch()
    (folder / "global_step_20" / "actor").mkdir(parents=True)
    (folder / "global_step_20" / "actor" / "model.pt").touch()
    assert checkpoints(folder) == [checkpoint]
    (checkpoint / "libra.json").write_text("{}")
    with pytest.raises(StoreError, match="cannot resume"):
        load(checkpoint)
