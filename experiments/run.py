"""Runs one cell and leaves a row behind, whatever happens: done, failed with its reason, or cancelled."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from experiments.resolve import Resolver, Setup
from libra.core.errors import StoreError
from libra.core.policy import Policy
from libra.core.registry import Registry
from libra.results.atomic import write_bytes
from libra.results.cell import Cell
from libra.results.provenance import provenance, summary_fingerprint
from libra.results.store import CellDir, Metrics, Status, Store, read_json

if TYPE_CHECKING:
    from libra.backends.sim.engine import Simulator

OnStep = Callable[[int, int], None]

HEARTBEAT_S = 5.0
"""Between signs of life: short for a reader who waits, and a file of 100 bytes is cheap."""

MAX_REASON = 300
"""Characters of a failure's reason in tables; the traceback stands in the attempt's log."""


def run_cell(cell: Cell, store: Store, registry: Registry, on_step: OnStep | None = None) -> Status:
    """Run a cell unless it is done, and return its status. `on_step(step, num_steps)` is called after each step.

    Raises `ConfigError` for names that mean nothing, `InUseError` when another run has the cell, `StoreError` when
    results cannot be written, and KeyboardInterrupt (also on SIGTERM) after marking the cell cancelled. Any other
    failure is a row in the store.
    """
    resolver = Resolver(registry)
    setup, code = resolver.setup(cell), resolver.code(cell)
    with sigterm_interrupts(), store.claim(cell, code) as cell_dir:
        if cell_dir.status.state != "done":
            _attempt(cell_dir, setup, registry.plugins, on_step)
        return cell_dir.status


def build_policy(cell: Cell, registry: Registry) -> Policy:
    """A fresh policy as the cell's run had it, for replay. Raises `ConfigError` for names that mean nothing."""
    return Resolver(registry).setup(cell).build_policy()


def refresh_metrics(cell: Cell, store: Store, code: str) -> None:
    """Recompute the metrics of a finished cell from its tables, if their definitions have changed since.

    A cell whose results cannot be read is marked failed, so that it runs again.
    """
    path = store.path(cell.identity(code))
    with suppress(StoreError):
        if read_json(path / "metrics.json", Metrics).definitions == summary_fingerprint():
            return
    from libra.results.summary import summarise
    from libra.results.tables import TABLES, read_table

    with store.claim(cell, code) as cell_dir:
        try:
            facts = read_json(path / "metrics.json", Metrics).facts
            steps, trajectories, decisions = (read_table(path, name) for name in TABLES)
            found = summarise(steps, trajectories, decisions, facts)
        except StoreError as error:
            cell_dir.set("failed", f"damaged: {error.what}")
            return
        cell_dir.write_json("metrics.json", Metrics(found.metrics, found.absent, facts, summary_fingerprint()))


def _attempt(cell_dir: CellDir, setup: Setup, plugins: tuple[Path, ...], on_step: OnStep | None) -> None:
    cell_dir.start()
    progress = Progress(on_step)
    try:
        cell_dir.write_json("provenance.json", provenance(is_live=cell_dir.cell.backend == "live"))
        with _heartbeat(cell_dir, progress):
            if cell_dir.cell.backend == "live":
                _go_live(cell_dir, setup, plugins, progress)
            else:
                _simulate(cell_dir, setup, progress)
    except KeyboardInterrupt:
        cell_dir.set("cancelled", "interrupted")
        raise
    except StoreError as error:
        with suppress(StoreError):  # the disk that just failed may fail again; an unfinished cell reads as cancelled
            cell_dir.set("failed", error.what)
        raise
    except (Exception, SystemExit) as error:
        write_bytes(cell_dir.attempt_dir / "traceback.txt", traceback.format_exc().encode())
        cell_dir.set("failed", _reason(error))
    else:
        cell_dir.set("done")


def _simulate(cell_dir: CellDir, setup: Setup, progress: Progress) -> None:
    from libra.backends.sim.engine import make_simulator
    from libra.runtime.controller import Controller
    from libra.runtime.recorder import FileRecorder

    started_s = time.perf_counter()
    workload, policy = setup.build_workload(), setup.build_policy()
    cell_dir.write_json("workload.json", {"warnings": workload.warnings, "parameters": workload.parameters()})
    simulator = make_simulator(
        setup.cluster,
        setup.model,
        workload,
        setup.pipeline,
        uses_oracle=setup.policy.uses_oracle,
        options=setup.sim_options,
    )
    _write_timing_model(cell_dir, simulator)
    recorder = FileRecorder(cell_dir, setup.cluster.num_gpus, setup.pipeline, progress)
    with closing(recorder), closing(simulator):
        simulator.run(Controller(policy, recorder, clock=time.perf_counter))
        recorder.finish(time.perf_counter() - started_s)
    _write_timing_model(cell_dir, simulator)


def _go_live(cell_dir: CellDir, setup: Setup, plugins: tuple[Path, ...], progress: Progress) -> None:
    from libra.backends.live.backend import LiveRun

    def say(line: str) -> None:
        with (cell_dir.attempt_dir / "stages.txt").open("a") as file:
            file.write(line + "\n")

    cell_dir.write_json("workload.json", {"warnings": [], "parameters": []})
    LiveRun(cell_dir, setup.cluster, setup.pipeline, setup.live_options, plugins, progress, say).run()


def _write_timing_model(cell_dir: CellDir, simulator: Simulator) -> None:
    """Constants, and how far the run left what they were measured on: once before the plans are known, once after."""
    from libra.backends.sim.gpus import provenance_of
    from libra.backends.sim.range import outside

    plans, longest_tok = simulator.fleet.plans, simulator.workload.max_context_tok
    warnings = outside(simulator.cluster, simulator.model, plans, longest_tok)
    cell_dir.write_json("timing_model.json", {"warnings": warnings, "constants": provenance_of(simulator.cluster.gpu)})


def _reason(error: BaseException) -> str:
    """First line of what went wrong, with the kind of error where it is no error of ours."""
    text = next(iter(str(error).splitlines()), "")
    name = "" if hasattr(error, "mend") else f"{type(error).__name__}: "
    return (name + text)[:MAX_REASON].rstrip(": ") or type(error).__name__


class Progress:
    """Steps done so far, for the heartbeat and for whoever watches."""

    def __init__(self, on_step: OnStep | None) -> None:
        self.step = self.num_steps = 0
        self._on_step = on_step

    def __call__(self, step: int, num_steps: int) -> None:
        self.step, self.num_steps = step, num_steps
        if self._on_step is not None:
            self._on_step(step, num_steps)


@contextmanager
def _heartbeat(cell_dir: CellDir, progress: Progress) -> Iterator[None]:
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT_S):
            cell_dir.beat(progress.step, progress.num_steps)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        cell_dir.beat(progress.step, progress.num_steps)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM (a cluster's pre-emption, a launcher that stops) acts as Ctrl-C does. Only the main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt("SIGTERM")

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
