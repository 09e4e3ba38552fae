"""A live run that the test may harm: finds its processes, kills some, and reads what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from libra.backends.live.records import last_records
from libra.runtime.attempt import read_rows

PROGRAM = "from experiments.cli import main; main()"
KINDS = {"engine": "EngineCore", "trainer": "ray::WorkerDict", "router": "ray::LibraRouter"}
"""What their command lines hold."""


class Run:
    """`libra train` with `arguments` into the new store `folder`/runs."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.store, self.log = folder / "runs", folder / "out.txt"
        self._command = [sys.executable, "-c", PROGRAM, "train", *arguments, "--store", str(self.store)]

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self._command, stdout=out, stderr=subprocess.STDOUT)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(90)

    def steps(self) -> int:
        """Trained so far, by the newest records."""
        attempts = sorted(self.store.glob("cells/*/logs/attempt_*"), key=lambda path: int(path.name[8:]))
        return len(read_rows(last_records(attempts[-1]))[0]) if attempts else 0

    def processes(self, kind: str) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                except OSError:
                    continue
                if KINDS[kind].encode() in command and str(self.store).encode() in environ:
                    found.append(int(entry.name))
        return found

    def kill(self, kind: str, limit_s: float) -> None:
        """One process of a kind, as soon as there is one."""
        self.wait_for(lambda: bool(self.processes(kind)), limit_s)
        os.kill(min(self.processes(kind)), signal.SIGKILL)

    def wait_for(self, what: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not what():
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            time.sleep(0.5)

    def trained(self) -> Counter[int]:
        """Trajectories by the step that trained them. Each sample of each group is trained once at most."""
        import pyarrow.parquet as pq

        (cell,) = (self.store / "cells").iterdir()
        rows = [row for row in pq.read_table(cell / "trajectories.parquet").to_pylist() if row["trained_step"] >= 0]
        assert len({(row["group"], row["sample"]) for row in rows}) == len(rows)
        assert max(row["version_trained"] - row["version_start"] for row in rows) <= 1
        return Counter(row["trained_step"] for row in rows)
