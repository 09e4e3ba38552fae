"""The job's process and all its kin end with it, and its last error is found in a noisy log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

from libra.backends.live import process


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
