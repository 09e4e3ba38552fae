"""The launcher `processes`: single-worker pools side by side, so that the death of a worker is that of one cell."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from experiments.launch import Board, Job
from experiments.resolve import Resolver
from experiments.run import run_cell
from libra.core.errors import ConfigError, StoreError
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.lock import InUseError
from libra.results.store import State, Status, Store

POLL_S = 0.5
"""Between looks at the progress of running cells; ends of cells are noticed at once."""

GRACE_S = 10.0
"""What a worker gets to mark its cell cancelled before it is killed: it only has to write one small file."""

PARENT_CHECK_S = 1.0
"""Between looks whether the launcher still lives."""

WORKER_DIED = "worker died (killed, or out of memory)"


class _Slot:
    """A place for one cell at a time, with a worker process that is replaced when it dies."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, job: Job, store: Store, registry: Registry) -> Future[Status]:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker)
        self.job = job
        return self._pool.submit(_work, job.cell, job.code, store.root, registry.plugins)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None


def run_in_processes(jobs: Sequence[Job], store: Store, registry: Registry, workers: int, board: Board) -> None:
    """Run jobs on `workers` processes. Raises KeyboardInterrupt and `StoreError` after stopping them all."""
    if workers < 1:
        raise ConfigError("at least one worker process", where="--workers", value=workers)
    others = set(multiprocessing.active_children())
    slots = [_Slot() for _ in range(min(workers, len(jobs)))]
    running: dict[Future[Status], _Slot] = {}
    try:
        _feed(deque(jobs), slots, running, store, registry, board)
    except BaseException:
        _stop(running, others, store, board)
        raise
    finally:
        for slot in slots:
            slot.close()


def _feed(
    queue: deque[Job],
    slots: list[_Slot],
    running: dict[Future[Status], _Slot],
    store: Store,
    registry: Registry,
    board: Board,
) -> None:
    free = list(reversed(slots))
    while queue or running:
        while queue and free:
            slot, job = free.pop(), queue.popleft()
            running[slot.submit(job, store, registry)] = slot
            board.step(job)
        over, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
        for future in over:
            slot = running[future]
            _end(slot, future, store, board)
            del running[future]
            free.append(slot)
        for slot in running.values():
            if slot.job is not None and (status := store.status(slot.job.id)).state == "running":
                board.step(slot.job, status.step, status.num_steps)


def _end(slot: _Slot, future: Future[Status], store: Store, board: Board) -> None:
    """Enter a finished job into the board. Raises what stops the whole launch."""
    job = slot.job
    assert job is not None, "a running slot has a job"
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        slot.close()
        _mark(job, "failed", WORKER_DIED, store)
        return board.end(job, "failed", WORKER_DIED)
    if isinstance(error, KeyboardInterrupt):  # somebody stopped this worker, not us
        return board.end(job, "cancelled", "interrupted")
    if isinstance(error, InUseError):
        return board.end(job, "running elsewhere", error.what)
    status = future.result()
    board.end(job, "done" if status.state == "done" else "failed", status.reason)


def _mark(job: Job, state: State, reason: str, store: Store, keep: Sequence[State] = ("done",)) -> None:
    """Say how a cell ended that a dead worker left `running`; a cell that somebody else has taken by now is theirs.

    A cell whose state is one of `keep` had ended before its worker did.
    """
    with suppress(InUseError), store.claim(job.cell, job.code) as cell_dir:
        if cell_dir.status.state not in keep:
            cell_dir.set(state, reason)


def _stop(running: dict[Future[Status], _Slot], others: set[BaseProcess], store: Store, board: Board) -> None:
    """Ask our workers to stop, kill those that do not, and leave their cells cancelled."""
    mine = [child for child in multiprocessing.active_children() if child not in others]
    for child in mine:
        child.terminate()
    wait(running, timeout=GRACE_S)
    for child in mine:
        if child.is_alive() and any(not future.done() for future in running):
            child.kill()
    for future, slot in running.items():
        job = slot.job
        if job is None or job.id in board.summary.outcomes:
            continue
        if future.done() and future.exception() is None:
            _end(slot, future, store, board)
            continue
        slot.close()
        with suppress(StoreError):  # on a full disk the cell stays as it is, and reads as cancelled
            _mark(job, "cancelled", "interrupted", store, keep=("done", "failed", "timeout"))
        board.end(job, "cancelled", "interrupted")


# -- in the worker -------------------------------------------------------------------------------------------------


def _start_worker() -> None:
    """Ctrl-C reaches the whole process group; only the launcher answers it. A worker outlives no launcher."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        while True:
            time.sleep(PARENT_CHECK_S)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _work(cell: Cell, code: str, root: Path, plugins: tuple[Path, ...]) -> Status:
    """Run a cell as the launcher named it: a worker that starts after an edit of the sources would run other code."""
    registry = _registry(plugins)
    if Resolver(registry).code(cell) != code:
        raise ConfigError(
            "the sources or input files changed after the launch began",
            where=cell.label,
            mend="run again: what is finished is kept",
        )
    return run_cell(cell, Store(root, create=False), registry)


@functools.cache
def _registry(plugins: tuple[Path, ...]) -> Registry:
    """One registry a worker: plug-ins are imported once."""
    return Registry(plugins)
