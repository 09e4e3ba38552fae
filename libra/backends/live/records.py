"""Where the starts of an attempt's job keep their records: the attempt's own folder, then one a restart."""

from __future__ import annotations

from pathlib import Path


def new_records(attempt: Path, start: int) -> Path:
    """Folder for the records of a start, counted from 0."""
    folder = attempt / f"restart_{start}" if start else attempt
    folder.mkdir(exist_ok=True)
    return folder


def last_records(attempt: Path) -> Path:
    """Of the latest start."""
    restarts = sorted(attempt.glob("restart_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    return restarts[-1] if restarts else attempt
