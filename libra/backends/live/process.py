"""The verl job as a child process: started with a mark in its environment, watched, and ended with all its kin.

Ray and vLLM start processes of their own sessions, so a process group doesn't hold them together; the mark does. It is
kept in the job's folder too: what outlived a killed launcher is ended, and its temporary files go, before the next job
starts there.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from libra.backends.live import temporary
from libra.core.errors import LibraError

MARK, MARK_FILE = "LIBRA_RUN", "mark"
PROGRAM = ("-m", "libra.integrations.verl.main")
DIE_WITH_US = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()
"""The kernel tells the job when we are killed."""
GRACE_S = 15.0
"""From SIGTERM to SIGKILL: Ray takes five seconds to go by itself."""
POLL_S = 0.5
TAIL_BYTES = 200_000
_ERROR = re.compile(r"^\s*((?:[\w.]+\.)?\w*(?:Error|Exception)(?:\(\w+\))?(?::.*)?)$")
_ACTOR = re.compile(r"^(?:\x1b\[\d+m)?\([^)]*\)(?:\x1b\[0m)?\s?")


class JobFailed(LibraError):
    """The job ended with an error; its text is the last one in the log."""


def run_job(arguments: list[str], folder: Path, log: Path, env: Mapping[str, str], watch: Callable[[], None]) -> None:
    """Run verl to its end; `watch` is called while it runs. Raises `JobFailed`; on any exit nothing is left running."""
    end_earlier(folder)
    mark = uuid.uuid4().hex
    temp = temporary.folder_of(mark)
    (folder / MARK_FILE).write_text(f"{mark}\n{temp}")
    temp.mkdir(0o700)
    command = [*DIE_WITH_US, sys.executable, *PROGRAM, *arguments]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temp), "RAY_TMPDIR": str(temp), **env, MARK: mark}, start_new_session=True,
        )  # fmt: skip
        try:
            while process.poll() is None:
                watch()
                time.sleep(POLL_S)
            watch()
        finally:
            end_all(mark, process)
            if process.returncode != 0:
                temporary.keep_ray_logs(temp, log.parent)
            temporary.remove(temp)
    if process.returncode != 0:
        raise JobFailed(f"the verl job ended with status {process.returncode}: {last_error(log)}; log: {log}")


def end_earlier(folder: Path) -> None:
    """End what is left of the last job in this folder, whose launcher was killed, and remove its temporary files."""
    path = folder / MARK_FILE
    mark, _, temp = path.read_text().partition("\n") if path.exists() else ("", "", "")
    while mark and any(True for _ in marked(mark)):
        _signal(mark, signal.SIGKILL)
        time.sleep(POLL_S)
    if temp:
        temporary.remove(Path(temp))


def marked(mark: str) -> Iterator[int]:
    """Processes of a job, by its mark."""
    needle = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def end_all(mark: str, process: subprocess.Popen[bytes]) -> None:
    """Ask the job's processes to end, then make them."""
    deadline = time.monotonic() + GRACE_S
    if process.poll() is None:
        process.terminate()
    while time.monotonic() < deadline and (process.poll() is None or any(True for _ in marked(mark))):
        time.sleep(POLL_S)
        if process.poll() is not None:
            _signal(mark, signal.SIGTERM)
    _signal(mark, signal.SIGKILL)
    process.wait()


def _signal(mark: str, number: signal.Signals) -> None:
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def last_error(log: Path) -> str:
    """The last line of a log that names an error; actors' prefixes and Ray's wrappers are left out."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    found = [match.group(1) for line in lines if (match := _ERROR.match(_ACTOR.sub("", line)))]
    plain = [text for text in found if not text.startswith("ray.exceptions")]
    return (plain or found or ["no error was printed"])[-1][:300]
