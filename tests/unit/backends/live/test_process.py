"""The job's process and all its kin end with it, and its last error is found in a noisy log."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from libra.backends.live import process, temporary

LEAVES_FILES = """
import os, pathlib, socket, sys, tempfile
folder = pathlib.Path(tempfile.gettempdir())
assert os.environ["RAY_TMPDIR"] == str(folder)
session = folder / "ray" / "session_2026-12-03_04-03-47_752763_4194304"
(session / "sockets").mkdir(parents=True)
socket.socket(socket.AF_UNIX).bind(str(session / "sockets" / "plasma_store.sock"))
(session / "logs").mkdir()
(session / "logs" / "raylet.out").write_text("no memory left")
pathlib.Path("seen").write_text(str(folder))
sys.exit(int(sys.argv[1]))
"""


def test_the_last_error_is_found_among_actors_prefixes(tmp_path: Path) -> None:
    log = tmp_path / "verl.log"
    log.write_text(
        "ValueError: an old one\n"
        "\x1b[36m(LibraRouter pid=7)\x1b[0m libra.core.errors.ConfigError: unknown policy (got 'x')\n"
        "ray.exceptions.RayTaskError(ConfigError): wrapped\n"
        "Error executing job with overrides: ['a=b']\n"
        "Training Progress: 0%\n"
    )
    assert process.last_error(log) == "libra.core.errors.ConfigError: unknown policy (got 'x')"
    log.write_text("all quiet\n")
    assert process.last_error(log) == "no error was printed"


def test_children_in_sessions_of_their_own_are_ended_too() -> None:
    mark = uuid.uuid4().hex
    program = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    program += "start_new_session=True); time.sleep(600)"
    env = {**os.environ, process.MARK: mark}
    parent = subprocess.Popen([sys.executable, "-c", program], env=env, start_new_session=True)
    deadline = time.monotonic() + 20
    while len(list(process.marked(mark))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(list(process.marked(mark))) == 2
    process.end_all(mark, parent)
    assert parent.poll() is not None
    assert [pid for pid in process.marked(mark) if Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"] == []


def test_what_outlived_a_killed_launcher_is_ended_before_the_next_job(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    left = subprocess.Popen(["sleep", "600"], env={**os.environ, process.MARK: mark}, start_new_session=True)
    process.end_earlier(tmp_path)
    assert left.poll() is None
    (tmp_path / process.MARK_FILE).write_text(mark)
    process.end_earlier(tmp_path)
    assert left.wait(20) == -9


@pytest.mark.parametrize("status", [0, 3])
def test_a_jobs_temporary_files_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(process, "PROGRAM", ("-c", LEAVES_FILES))
    log = tmp_path / "logs" / "verl.log"
    log.parent.mkdir()
    try:
        process.run_job([str(status)], tmp_path, log, {}, lambda: None)
    except process.JobFailed:
        assert status == 3
    assert (tmp_path / "seen").exists(), log.read_text()
    assert not Path((tmp_path / "seen").read_text()).exists()
    kept = [path.read_text() for path in log.parent.glob("ray/*")]
    assert kept == (["no memory left"] if status else [])


def test_a_killed_jobs_temporary_files_go_before_the_next_one(tmp_path: Path) -> None:
    mine, other = temporary.folder_of(uuid.uuid4().hex), tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
        (folder / "file").touch()
        (tmp_path / process.MARK_FILE).write_text(f"{uuid.uuid4().hex}\n{folder}")
        process.end_earlier(tmp_path)
    assert (mine.exists(), other.exists()) == (False, True)


def test_a_deep_temporary_folder_is_no_place_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/short")
    assert temporary.folder_of("0123456789abcdef") == Path("/short/libra-01234567")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("deep" * 10)))
    assert temporary.folder_of("0123456789abcdef").parent == Path("/tmp")
