"""Progress of a launch: a live table on a terminal, one plain line a finished cell elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Table

from experiments.launch import Progress

PLAIN_EVERY_S = 20.0
"""Between signs of life in plain output while no cell ends."""


class ProgressView:
    """A context manager that is called with each `Progress`."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console, self._now = console, now
        self._started_s = self._told_s = now()
        self._running: dict[str, Progress] = {}
        self._last: Progress | None = None
        self._done: list[Progress] = []
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> ProgressView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        self._last = progress
        if progress.outcome == "running":
            self._running[progress.id] = progress
            if self._live is None and self._now() - self._told_s > PLAIN_EVERY_S:
                self._tell(f"  {progress.cell.label}: step {progress.step}/{progress.num_steps}")
        else:
            self._running.pop(progress.id, None)
            if progress.outcome not in ("skipped",):
                reason = f"  ({progress.reason})" if progress.reason else ""
                self._tell(f"{self._counts()} {progress.outcome:>9}  {progress.cell.label}{reason}")
        if self._live:
            self._live.update(self._table())

    def _tell(self, line: str) -> None:
        self._told_s = self._now()
        target = self._live.console if self._live else self._console
        target.print(line, markup=False, highlight=False)

    def _counts(self) -> str:
        assert self._last is not None, "called with progress"
        return f"[{self._last.finished}/{self._last.total}]"

    def _table(self) -> Table:
        elapsed_s = self._now() - self._started_s
        table = Table(box=None, title=f"{self._counts()} cells, {elapsed_s:.0f} s", title_justify="left")
        table.add_column("running")
        table.add_column("step", justify="right")
        for progress in self._running.values():
            table.add_row(progress.cell.label, f"{progress.step}/{progress.num_steps or '?'}")
        return table
