"""Launching: each cell once, failures kept, dead workers are rows, and any interrupt leaves a store to go on from."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import msgspec
import pytest

from experiments import workers
from experiments.launch import Board, Launcher, Progress, launch, plan
from experiments.resolve import Resolver
from libra.core.errors import ConfigError, StoreError
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.store import Status, Store

MakeCell = Callable[..., Cell]
BOTH = pytest.mark.parametrize("launcher", ["inline", "processes"])


def states(store: Store) -> list[str]:
    return [cell.status.state for cell in store.cells("test")]


@BOTH
def test_cells_run_once_and_failures_are_kept(
    launcher: Launcher, store: Store, registry: Registry, make_cell: MakeCell
) -> None:
    cells = [make_cell(0), make_cell(1, crash_at=3), make_cell(2)]
    seen: list[Progress] = []
    first = launch(cells, store, registry, launcher=launcher, workers=2, on_progress=seen.append)
    assert list(first.outcomes.values()) == ["done", "failed", "done"]
    assert list(first.reasons.values()) == ["RuntimeError: planned crash"]
    assert first.exit_code == 1
    assert states(store) == ["done", "failed", "done"]
    ends = [each for each in seen if each.outcome != "running"]
    assert [each.finished for each in ends] == [1, 2, 3] and ends[-1].total == 3
    second = launch(cells, store, registry, launcher=launcher)
    assert list(second.outcomes.values()) == ["skipped", "failed before", "skipped"]
    assert second.exit_code == 1
    third = launch(cells, store, registry, launcher=launcher, retry_failed=True)
    assert list(third.outcomes.values()) == ["skipped", "failed", "skipped"]
    assert [cell.status.attempts for cell in store.cells("test")] == [1, 2, 1]
    assert launch([cells[0]], store, registry).exit_code == 0


def test_processes_and_inline_give_the_same_bytes(tmp_path: Path, registry: Registry, make_cell: MakeCell) -> None:
    stores = [Store(tmp_path / "a"), Store(tmp_path / "b")]
    launch([make_cell()], stores[0], registry)
    launch([make_cell()], stores[1], registry, launcher="processes")
    one, other = (store.cells("test")[0].path for store in stores)
    for name in ("events.jsonl.zst", "trajectories.parquet", "steps.parquet", "decisions.parquet", "metrics.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_equal_cells_of_two_studies_are_one_job(store: Store, registry: Registry, make_cell: MakeCell) -> None:
    cells = [make_cell(0), make_cell(0, study="other"), make_cell(0)]
    assert len(plan(cells, store, registry)) == 1
    assert launch(cells, store, registry).count("done") == 1
    assert [(each.cell.study, each.status.state) for each in store.cells()] == [("other", "done"), ("test", "done")]


def test_a_mistake_in_any_cell_stops_before_the_first_runs(
    store: Store, registry: Registry, make_cell: MakeCell
) -> None:
    with pytest.raises(ConfigError, match="did you mean 'crash_at'"):
        launch([make_cell(0), make_cell(1, crash_a=1)], store, registry)
    assert store.studies() == []
    with pytest.raises(ConfigError, match="unknown launcher"):
        launch([], store, registry, launcher="process")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least one worker"):
        launch([make_cell(0)], store, registry, launcher="processes", workers=0)


@BOTH
def test_a_cell_that_another_run_has_is_left_to_it(
    launcher: Launcher, store: Store, registry: Registry, make_cell: MakeCell
) -> None:
    with store.claim(make_cell(0), Resolver(registry).code(make_cell(0))) as other:
        other.start()
        summary = launch([make_cell(0), make_cell(1)], store, registry, launcher=launcher)
        assert list(summary.outcomes.values()) == ["running elsewhere", "done"]
        assert summary.exit_code == 0
        assert store.status(other.id).state == "running"


def test_a_killed_worker_fails_its_cell_and_no_other(
    store: Store, registry: Registry, make_cell: MakeCell, tmp_path: Path
) -> None:
    hang_file = tmp_path / "hangs"
    cells = [make_cell(0, hang_at=2, hang_file=str(hang_file)), *(make_cell(seed) for seed in range(1, 5))]

    def kill(progress: Progress) -> None:
        if hang_file.exists():
            os.kill(int(hang_file.read_text()), signal.SIGKILL)
            hang_file.unlink()

    summary = launch(cells, store, registry, launcher="processes", workers=2, on_progress=kill)
    assert list(summary.outcomes.values()) == ["failed", "done", "done", "done", "done"]
    assert summary.reasons == {store.cells("test")[0].id: "worker died (killed, or out of memory)"}
    assert states(store) == ["failed", "done", "done", "done", "done"]
    assert store.cells("test")[0].status.reason == "worker died (killed, or out of memory)"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@BOTH
def test_a_full_disk_stops_the_launch_and_loses_nothing(
    launcher: Launcher, small_disk: Path, registry: Registry, make_cell: MakeCell
) -> None:
    store, cells = Store(small_disk / "runs"), [make_cell(seed) for seed in range(3)]
    launch(cells[:1], store, registry)
    before = (store.cells("test")[0].path / "trajectories.parquet").read_bytes()
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * (free.f_bavail * free.f_bsize - 24_000))
    with pytest.raises(StoreError, match=r"No space left on device(.|\n)*finished cells are kept"):
        launch(cells, store, registry, launcher=launcher)
    assert states(store)[0] == "done" and "running" not in states(store)
    assert (store.cells("test")[0].path / "trajectories.parquet").read_bytes() == before
    (small_disk / "ballast").unlink()
    launch(cells, store, registry, retry_failed=True)
    assert states(store) == ["done", "done", "done"]


SCRIPT = """
import json, sys
from pathlib import Path
import msgspec
from experiments.launch import launch
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.store import Store

if __name__ == "__main__":
    cells = msgspec.json.decode(sys.argv[1], type=list[Cell])
    summary = launch(cells, Store(sys.argv[2]), Registry((Path(sys.argv[3]),)), launcher=sys.argv[4], workers=2)
    print(json.dumps(list(summary.outcomes.values())))
    sys.exit(summary.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@BOTH
def test_an_interrupted_launch_goes_on_where_it_stopped(
    launcher: Launcher,
    number: signal.Signals,
    store: Store,
    registry: Registry,
    make_cell: MakeCell,
    tmp_path: Path,
    project_root: Path,
) -> None:
    """Ctrl-C as a terminal sends it, to the whole process group; SIGTERM and SIGKILL to the launcher alone."""
    hang_file, script = tmp_path / "hangs", tmp_path / "script.py"
    script.write_text(SCRIPT)
    cells = [make_cell(0), make_cell(1, hang_at=2, hang_file=str(hang_file)), make_cell(2, crash_at=1)]
    arguments = [msgspec.json.encode(cells).decode(), str(store.root), str(registry.plugins[0]), launcher]
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        cwd=project_root, stdout=subprocess.PIPE, start_new_session=True, text=True,
        env={**os.environ, "PYTHONPATH": str(project_root)},
    )  # fmt: skip
    third = "failed" if launcher == "processes" else "pending"
    until(lambda: hang_file.exists() and states(store) == ["done", "running", third])
    worker = int(hang_file.read_text())
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    until(lambda: not alive(worker))
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert json.loads(output)[:2] == ["done", "cancelled"]
    assert states(store) == ["done", "cancelled", third]
    assert not list(store.root.glob("cells/*/lock")) or number == signal.SIGKILL
    done, stopped, _ = store.cells("test")
    assert (done.status.attempts, stopped.status.attempts) == (1, 1)
    with store.claim(stopped.cell, stopped.code) as again:
        again.start()
        assert again.status.attempts == 2


def test_a_cell_that_failed_just_before_the_launch_was_stopped_stays_failed(
    store: Store, registry: Registry, make_cell: MakeCell
) -> None:
    """Its worker had written the end and was stopped before it could say so."""
    launch([make_cell(0, crash_at=1)], store, registry)
    (job,), slot = plan([make_cell(0, crash_at=1)], store, registry), workers._Slot()
    slot.job, lost = job, Future[Status]()
    lost.set_exception(BrokenProcessPool())
    workers._stop({lost: slot}, set(multiprocessing.active_children()), store, Board(1, None))
    assert states(store) == ["failed"]


def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "did not come about"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").exists() or " Z " not in Path(f"/proc/{pid}/stat").read_text()
