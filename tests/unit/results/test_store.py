"""One writer per cell, whole files only, failures are rows, and nothing stored is ever lost."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from libra.core.errors import ConfigError, StoreError
from libra.core.events import PipelineSpec
from libra.results.cell import Cell
from libra.results.lock import STALE_AFTER_S, InUseError, Owner
from libra.results.schemas import Bounds, Facts
from libra.results.store import CellDir, Metrics, Store

CODE = "c0de"


def cell(seed: int = 0, study: str = "smoke") -> Cell:
    return Cell.make(study, "search-r1", "a800x48", "qwen3-14b", "libra", seed=seed)


def finish(store: Store, each: Cell, value: float = 1.0, code: str = CODE) -> CellDir:
    with store.claim(each, code) as cell_dir:
        cell_dir.start()
        facts = Facts(48, PipelineSpec(), (Bounds(0.0, (4096, 32768)),))
        cell_dir.write_json("metrics.json", Metrics({"makespan_s": value}, {}, facts))
        cell_dir.set("done")
    return cell_dir


def dead_owner(host: str | None = None) -> Owner:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return Owner(process.pid, host or platform.node())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def test_a_cell_from_claim_to_reading(store: Store) -> None:
    [cell_id] = store.add_to_study("smoke", [(cell(), CODE)])
    [pending] = store.cells("smoke")
    assert (pending.id, pending.status.state, pending.metrics) == (cell_id, "pending", None)
    with store.claim(cell(), CODE) as cell_dir:
        cell_dir.start()
        cell_dir.beat(3, 10)
        running = store.cells("smoke")[0].status
        assert (running.state, running.step, running.num_steps, running.attempts) == ("running", 3, 10, 1)
        assert cell_dir.attempt_dir == cell_dir.path / "logs" / "attempt_1"
        assert cell_dir.attempt_dir.is_dir()
    finish(store, cell(), 7.5)
    [done] = store.cells("smoke")
    assert done.cell == cell()
    assert (done.status.state, done.status.attempts, done.metrics) == ("done", 2, {"makespan_s": 7.5})
    assert done.facts == {
        "num_gpus": 48, "pipeline": "barrier", "staleness": 1, "in_flight_cap": 0, "bounds_tok": "4096, 32768",
    }  # fmt: skip
    assert store.find(cell_id[:6]).id == cell_id


def test_a_live_writer_keeps_others_out_and_cells_apart(store: Store) -> None:
    with store.claim(cell(0), CODE):
        with pytest.raises(InUseError, match=f"in use by pid {os.getpid()}"):
            store.claim(cell(0), CODE)
        store.claim(cell(1), CODE).release()
    store.claim(cell(0), CODE).release()


def test_a_dead_writer_is_taken_over_and_counted(store: Store) -> None:
    with store.claim(cell(), CODE) as cell_dir:
        cell_dir.start()
    owner = dead_owner()
    (cell_dir.path / "lock").write_bytes(msgspec.json.encode(owner))
    (cell_dir.path / ".tmp-metrics.json-1-1").write_text("half")
    status = store.status(cell_dir.id)
    assert (status.state, status.reason) == ("cancelled", f"interrupted: pid {owner.pid} is gone")
    with store.claim(cell(), CODE) as again:
        again.start()
        assert again.status.attempts == 2
        assert not list(again.path.glob(".tmp-*"))


def test_a_number_that_another_process_got_since_is_dead(store: Store) -> None:
    path = store.claim(cell(), CODE).path
    (path / "lock").write_bytes(msgspec.json.encode(Owner(os.getpid(), platform.node(), "born long ago")))
    with store.claim(cell(), CODE) as claimed:
        assert claimed.path == path


def test_another_machine_is_believed_while_its_heart_beats(store: Store) -> None:
    path = store.claim(cell(), CODE).path
    lock = path / "lock"
    lock.write_bytes(msgspec.json.encode(dead_owner("elsewhere")))
    with pytest.raises(InUseError, match="on elsewhere"):
        store.claim(cell(), CODE)
    past = lock.stat().st_mtime - STALE_AFTER_S - 60
    os.utime(lock, (past, past))
    store.claim(cell(), CODE).release()


def test_a_lock_that_its_writer_could_not_fill_is_dead(store: Store) -> None:
    path = store.claim(cell(), CODE).path
    (path / "lock").write_bytes(b"")
    with store.claim(cell(), CODE) as claimed:
        assert claimed.path == path


def test_running_without_a_lock_reads_as_cancelled(store: Store) -> None:
    with store.claim(cell(), CODE) as cell_dir:
        cell_dir.start()
    assert store.status(cell_dir.id).state == "cancelled"


def test_beats_after_the_end_change_nothing(store: Store) -> None:
    cell_dir = finish(store, cell())
    cell_dir.beat(1, 2)
    assert store.status(cell_dir.id).state == "done"


def test_cell_json_comes_first_and_never_changes(store: Store) -> None:
    first = store.claim(cell(study="smoke"), CODE)
    content = (first.path / "cell.json").read_bytes()
    assert sorted(path.name for path in first.path.iterdir()) == ["cell.json", "lock"]
    first.release()
    store.claim(cell(study="other"), CODE).release()
    assert (first.path / "cell.json").read_bytes() == content


def test_two_studies_share_a_cell_and_each_names_it(store: Store) -> None:
    store.add_to_study("smoke", [(cell(), CODE)])
    store.add_to_study("other", [(cell(study="other"), CODE)])
    finish(store, cell())
    assert [(each.cell.study, each.status.state) for each in store.cells()] == [("other", "done"), ("smoke", "done")]
    assert store.studies() == ["other", "smoke"]


def test_the_index_keeps_order_unites_and_replaces_what_newer_code_supersedes(store: Store) -> None:
    store.add_to_study("smoke", [(cell(0), CODE), (cell(1), CODE), (cell(2), CODE)])
    finish(store, cell(0))
    store.add_to_study("smoke", [(cell(2), CODE), (cell(1), "newer"), (cell(3), CODE)])
    found = [(each.cell.seed, each.code) for each in store.cells("smoke")]
    assert found == [(2, CODE), (1, "newer"), (3, CODE), (0, CODE)]
    assert store.path(cell(0).identity(CODE)).is_dir()


def test_unknown_studies_cells_and_bad_names_say_what_there_is(store: Store) -> None:
    store.add_to_study("smoke", [(cell(), CODE)])
    with pytest.raises(StoreError, match="did you mean 'smoke'"):
        store.cells("smok")
    with pytest.raises(StoreError, match="no such cell"):
        store.find("zzzz")
    with pytest.raises(ConfigError, match="study's name"):
        store.add_to_study("../evil", [])


def test_reading_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store there"):
        Store(tmp_path / "absent", create=False)
    assert not (tmp_path / "absent").exists()


def test_another_schema_version_is_refused_and_kept(store: Store) -> None:
    (store.root / "store.json").write_text('{"schema": 99}')
    with pytest.raises(StoreError, match=r"schema version 99(.|\n)*to mend"):
        Store(store.root)
    assert (store.root / "store.json").read_text() == '{"schema": 99}'


def test_a_folder_with_other_things_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StoreError, match="other things in it"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_place_that_cannot_be_a_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"Not a directory(.|\n)*to mend"):
        Store(tmp_path / "file" / "runs")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match=r"Permission denied(.|\n)*to mend"):
        Store(tmp_path / "runs")


def test_damaged_files_of_one_cell_do_not_hide_the_others(store: Store) -> None:
    store.add_to_study("smoke", [(cell(seed), CODE) for seed in range(3)])
    dirs = [finish(store, cell(seed)) for seed in range(3)]
    (dirs[0].path / "metrics.json").write_text("{")
    (dirs[1].path / "status.json").write_bytes(b"\x00\xff")
    states = [each.status.state for each in store.cells("smoke")]
    assert states == ["failed", "failed", "done"]
    assert "damaged" in store.cells("smoke")[0].status.reason


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    store = Store(small_disk / "runs")
    store.add_to_study("smoke", [(cell(0), CODE), (cell(1), CODE)])
    finish(store, cell(0), 7.5)
    with store.claim(cell(1), CODE) as cell_dir:
        cell_dir.start()
        with pytest.raises(StoreError, match=r"No space left on device(.|\n)*free some space"):
            cell_dir.write("steps.parquet", b"x" * 100_000)
        assert not (cell_dir.path / "steps.parquet").exists()
        assert not list(cell_dir.path.glob(".tmp-*"))
        (small_disk / "ballast").write_bytes(b"x" * _free_bytes(small_disk))
        with pytest.raises(StoreError, match="No space left"):
            cell_dir.set("failed", "the disk is full")
    done, stopped = store.cells("smoke")
    assert (done.status.state, done.metrics) == ("done", {"makespan_s": 7.5})
    assert stopped.status.state == "cancelled"
    (small_disk / "ballast").unlink()
    finish(store, cell(1))
    assert [each.status.state for each in store.cells("smoke")] == ["done", "done"]


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_bsize


def test_a_limit_on_file_sizes_is_a_clear_error(store: Store) -> None:
    finish(store, cell(0), 7.5)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with store.claim(cell(1), CODE) as cell_dir:
        cell_dir.start()
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        try:
            with pytest.raises(StoreError, match=r"File too large(.|\n)*ulimit"):
                cell_dir.write("steps.parquet", b"x" * 100_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(cell_dir.path.glob(".tmp-*"))
    assert store.status(cell(0).identity(CODE)).state == "done"
