"""What `libra train` shows: its stages, then a row for each training step; a table on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from experiments.launch import Progress
from libra.backends.live.curve import entries
from libra.backends.live.records import last_records
from libra.results.schemas import StepRow
from libra.runtime.attempt import read_rows

COLUMNS = ("step", "reward", "held out", "step s", "rollout s", "train s", "sync s", "gen tok/s", "rollout bubble",
           "train bubble", "staleness")  # fmt: skip
SHOWN = 12
"""Last steps in the table."""


class LiveView:
    """A context manager that is called with each `Progress` of the one cell in `folder`."""

    def __init__(self, console: Console, folder: Path, num_steps: int) -> None:
        self._console, self._folder, self._num_steps = console, folder, num_steps
        self._rows: list[tuple[str, ...]] = []
        self._told = 0
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> LiveView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._look(final=True)
        if self._live:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        self._look()

    def _look(self, *, final: bool = False) -> None:
        attempts = sorted(self._folder.glob("logs/attempt_*"), key=lambda path: path.stat().st_mtime)
        if not attempts:
            return
        stages = attempts[-1] / "stages.txt"
        lines = stages.read_text().splitlines() if stages.exists() else []
        for line in lines[self._told :]:
            self._print(line)
        self._told = len(lines)
        steps, _ = read_rows(last_records(attempts[-1]))
        rewards = dict(self._rewards())
        for row in steps[len(self._rows) :]:
            if row.step + 1 not in rewards and not final:
                break  # its reward comes with verl's own metrics, a moment or an evaluation later
            self._add(row, *rewards.get(row.step + 1, ("", "")))
        if self._live:
            self._live.update(self._table())

    def _rewards(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """By verl's step: mean training reward, held-out reward. verl logs a step after we have its row."""
        for entry in entries(self._folder / "live"):
            train = entry["data"].get("critic/score/mean")
            held = [value for name, value in entry["data"].items() if name.endswith("reward/mean@1")]
            yield int(entry["step"]), (f"{train:.3f}" if train is not None else "", f"{held[0]:.3f}" if held else "")

    def _add(self, row: StepRow, reward: str, held_out: str) -> None:
        wall_s = max(1e-9, row.end_s - row.start_s)
        cells = (
            f"{row.step + 1}/{self._num_steps}", reward, held_out, f"{wall_s:.1f}", f"{row.rollout_s:.1f}",
            f"{row.train_s:.1f}", f"{row.sync_s:.1f}", f"{row.generated_tok / wall_s:.0f}",
            f"{1 - row.rollout_busy_gpu_s / max(1e-9, row.rollout_pool_gpu_s):.0%}",
            f"{1 - row.train_busy_gpu_s / max(1e-9, row.train_pool_gpu_s):.0%}", str(row.max_staleness),
        )  # fmt: skip
        if not self._rows and not self._live:
            self._print("  ".join(COLUMNS))
        self._rows.append(cells)
        if not self._live:
            named = zip(COLUMNS, cells, strict=True)
            self._print("  ".join(cell.rjust(len(name)) for name, cell in named))

    def _print(self, line: str) -> None:
        target = self._live.console if self._live else self._console
        target.print(line, markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None)
        for name in COLUMNS:
            table.add_column(name, justify="right")
        for cells in self._rows[-SHOWN:]:
            table.add_row(*cells)
        return table
