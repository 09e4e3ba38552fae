"""Printing: rich tables on a terminal, plain text when piped, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPED_WIDTH = 200
"""Columns when the output is no terminal: wide enough that no cell of our tables wraps."""


def console(*, err: bool = False) -> Console:
    """A console; plain and wide when the output is not a terminal."""
    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return Console(stderr=err, highlight=False, width=width, soft_wrap=not stream.isatty())


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=str))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table whose numeric cells are right-aligned by the caller's formatting."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*("" if cell is None else escape(str(cell)) for cell in row))
    return made


def warnings_of(cell_dir: Path) -> list[str]:
    """What a run had to assume about its workload, and where it left the calibrated range; empty without files."""
    files = [cell_dir / name for name in ("workload.json", "timing_model.json")]
    return [text for file in files if file.exists() for text in json.loads(file.read_bytes()).get("warnings", ())]


def figure(value: float) -> str:
    """A number as a table shows it: four significant digits, no exponent for everyday sizes."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def constant(value: float | tuple[float, ...]) -> str:
    """A timing constant; of a whole table only its length."""
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(f"{each:.4g}" for each in values) if len(values) < 4 else f"{len(values)} values"
