"""Judges mathematical answers with math-verify in a pool of processes; one that hangs or dies is replaced."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import queue
import select
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from libra.core.errors import ConfigError

Verdict = Literal["right", "wrong", "failed"]

START_S = 120.0
"""Import of sympy on a busy core, with plenty to spare."""

MAX_ANSWER_CHARS = 1_000
"""No answer is longer; parsing time grows with the text."""

WORKER = (sys.executable, "-P", str(Path(__file__).with_name("math_worker.py")))


class _Worker:
    """One verifier. Used by one thread at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._rest = b""
        assert self._process.stdout is not None
        self._output = select.poll()  # `select` refuses the high descriptors of processes with many open files
        self._output.register(self._process.stdout, select.POLLIN)
        if self._line(START_S) is None:
            self.end()
            raise ConfigError(
                "the verifier of answers does not start",
                where=" ".join(command),
                mend="run that command by hand and read its error; it needs math-verify",
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, answer: str, truth: str, time_s: float) -> Verdict:
        """`failed`: no verdict in time, or none at all; the worker must then be ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"answer": answer, "truth": truth}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return "failed"
        line = self._line(time_s)
        found = json.loads(line) if line else {}
        return "failed" if "right" not in found else "right" if found["right"] else "wrong"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass  # a line that the dead process never read

    def _line(self, time_s: float) -> bytes | None:
        """None when none comes in time, or the process is gone."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + time_s
        while b"\n" not in self._rest:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self._output.poll(1_000 * left_s):
                return None
            piece = os.read(self._process.stdout.fileno(), 65_536)
            if not piece:
                return None
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line


class MathJudge:
    """At most `num_workers` verifiers, started when first needed. Safe to share between coroutines and event loops."""

    def __init__(self, num_workers: int = 1, time_s: float = 15.0, command: Sequence[str] = WORKER) -> None:
        self._time_s, self._command = time_s, tuple(command)
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="math-judge")
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._end = weakref.finalize(self, _end_all, self._idle, self._threads)

    async def verdict(self, answer: str, truth: str) -> Verdict:
        """`answer` and `truth` are LaTeX or plain numbers, without the box."""
        if len(answer) > MAX_ANSWER_CHARS:
            return "wrong"
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._verdict, answer, truth)

    def close(self) -> None:
        """Ends the verifiers; safe to call twice."""
        self._end()

    def _verdict(self, answer: str, truth: str) -> Verdict:
        worker = self._take()
        try:
            found = worker.ask(answer, truth, self._time_s)
        except BaseException:
            worker.end()
            raise
        if found == "failed":
            worker.end()
        else:
            self._idle.put(worker)
        return found

    def _take(self) -> _Worker:
        """An idle one, else a new one: a thread of the pool asks, so there are never too many."""
        while True:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                return _Worker(self._command)
            if worker.is_alive:
                return worker
            worker.end()


def require_math_verify() -> None:
    """Raises `ConfigError` where the library is missing: better at the start than at the first reward."""
    if importlib.util.find_spec("math_verify") is None:
        raise ConfigError(
            "answers are judged by the library math-verify, which is not installed",
            where="dapo-math",
            mend="pip install math-verify (part of the extras `live` and `gpu`)",
        )


def _end_all(idle: queue.SimpleQueue[_Worker], threads: ThreadPoolExecutor) -> None:
    threads.shutdown()
    while not idle.empty():
        idle.get().end()
