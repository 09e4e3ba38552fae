"""Runs the cells of a study, here or in worker processes: what is done is skipped, and every failure is a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from experiments.resolve import Resolver
from experiments.run import refresh_metrics, run_cell, sigterm_interrupts
from libra.core.errors import unknown_name
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.lock import InUseError
from libra.results.store import Store

Launcher = Literal["inline", "processes"]
LAUNCHERS: tuple[Launcher, ...] = ("inline", "processes")

Outcome = Literal["running", "done", "skipped", "failed", "failed before", "cancelled", "running elsewhere"]
"""`skipped` cells were done before; `failed before` ones are kept as they are unless failures are retried."""

_NOT_WELL: tuple[Outcome, ...] = ("failed", "failed before", "cancelled")
INTERRUPTED_EXIT_CODE = 130
"""What shells return for a command that Ctrl-C ended: 128 + SIGINT."""


@dataclass(frozen=True)
class Job:
    """A cell to run, and what it is stored as."""

    cell: Cell
    code: str
    id: str


@dataclass(frozen=True)
class Progress:
    """One sign of progress: a cell's new outcome, or a step of a running one. `finished` of `total` cells are over."""

    id: str
    cell: Cell
    outcome: Outcome
    reason: str = ""
    step: int = 0
    num_steps: int = 0
    finished: int = 0
    total: int = 0


@dataclass
class Summary:
    """How each cell ended, by id, in the study's order; `reasons` of those that did not end well."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def count(self, *outcomes: Outcome) -> int:
        return sum(outcome in outcomes for outcome in self.outcomes.values())

    @property
    def exit_code(self) -> int:
        """0 all well, 1 some cells failed (now or before) or were stopped, 130 interrupted."""
        return INTERRUPTED_EXIT_CODE if self.interrupted else int(self.count(*_NOT_WELL) > 0)


OnProgress = Callable[[Progress], None]


class Board:
    """Collects outcomes for the summary and passes each sign of progress on."""

    def __init__(self, total: int, on_progress: OnProgress | None) -> None:
        self.summary = Summary()
        self._total, self._on_progress = total, on_progress

    def end(self, job: Job, outcome: Outcome, reason: str = "") -> None:
        self.summary.outcomes[job.id] = outcome
        if reason:
            self.summary.reasons[job.id] = reason
        self._tell(job, outcome, reason)

    def step(self, job: Job, step: int = 0, num_steps: int = 0) -> None:
        self._tell(job, "running", step=step, num_steps=num_steps)

    def _tell(self, job: Job, outcome: Outcome, reason: str = "", step: int = 0, num_steps: int = 0) -> None:
        if self._on_progress is not None:
            finished = len(self.summary.outcomes)
            self._on_progress(Progress(job.id, job.cell, outcome, reason, step, num_steps, finished, self._total))


def launch(
    cells: Iterable[Cell],
    store: Store,
    registry: Registry,
    *,
    launcher: Launcher = "inline",
    workers: int = 1,
    retry_failed: bool = False,
    on_progress: OnProgress | None = None,
) -> Summary:
    """Run what is not done yet. Ctrl-C and SIGTERM mark running cells cancelled and return an interrupted summary.

    Raises `ConfigError` before anything runs for a cell whose names mean nothing, and `StoreError` when the store
    cannot be written; whatever was finished by then is kept.
    """
    if launcher not in LAUNCHERS:
        raise unknown_name("launcher", launcher, LAUNCHERS)
    jobs = plan(cells, store, registry)
    board = Board(len(jobs), on_progress)
    todo = [job for job in jobs if _is_due(job, store, retry_failed, board)]
    try:
        with sigterm_interrupts():
            if launcher == "inline":
                _run_inline(todo, store, registry, board)
            else:
                from experiments.workers import run_in_processes

                run_in_processes(todo, store, registry, workers, board)
    except KeyboardInterrupt:
        board.summary.interrupted = True
    board.summary.outcomes = {
        job.id: board.summary.outcomes[job.id] for job in jobs if job.id in board.summary.outcomes
    }
    return board.summary


def plan(cells: Iterable[Cell], store: Store, registry: Registry) -> list[Job]:
    """Check every cell, enter it into its study's index, and name it; equal cells become one job."""
    resolver = Resolver(registry)
    studies: dict[str, list[tuple[Cell, str]]] = {}
    jobs: dict[str, Job] = {}
    for cell in cells:
        resolver.setup(cell)
        code = resolver.code(cell)
        studies.setdefault(cell.study, []).append((cell, code))
        cell_id = cell.identity(code)
        jobs.setdefault(cell_id, Job(cell, code, cell_id))
    for study, pairs in studies.items():
        store.add_to_study(study, pairs)
    return list(jobs.values())


def _is_due(job: Job, store: Store, retry_failed: bool, board: Board) -> bool:
    """Whether a job has to run; enters into the board what does not."""
    if store.status(job.id).state == "done":
        try:
            refresh_metrics(job.cell, store, job.code)
        except InUseError as error:
            board.end(job, "running elsewhere", error.what)
            return False
        if store.status(job.id).state == "done":
            board.end(job, "skipped")
            return False
        return True
    status = store.status(job.id)
    if status.state == "running":
        board.end(job, "running elsewhere")
    elif status.state in ("failed", "timeout") and not retry_failed:
        board.end(job, "failed before", status.reason)
    return job.id not in board.summary.outcomes


def _run_inline(jobs: Sequence[Job], store: Store, registry: Registry, board: Board) -> None:
    for job in jobs:

        def on_step(step: int, num_steps: int, job: Job = job) -> None:
            board.step(job, step, num_steps)

        board.step(job)
        try:
            status = run_cell(job.cell, store, registry, on_step)
        except InUseError as error:
            board.end(job, "running elsewhere", error.what)
        except KeyboardInterrupt:
            board.end(job, "cancelled", "interrupted")
            raise
        else:
            board.end(job, "done" if status.state == "done" else "failed", status.reason)
