"""Recordings of our own live runs, shipped as canonical traces; README.md in this folder says how each was made."""

from __future__ import annotations

from pathlib import Path

from libra.core.errors import unknown_name

PREFIX = "recorded:"
NAMES = ("search-r1", "r2e-gym", "dapo-math")
FOLDER = Path(__file__).parent


def trace_path(name: str | Path) -> Path:
    """The canonical trace that is meant: a recording, by its name with or without `recorded:`, or else a file.

    Raises `ConfigError` for a name that is neither; that a file is there and whole, `read_trace` finds out.
    """
    text = str(name)
    if text.removeprefix(PREFIX) in NAMES:
        return FOLDER / f"{text.removeprefix(PREFIX)}.jsonl.gz"
    path = Path(name)
    is_word = path.name == text and not path.suffix and not path.exists()
    if is_word or text.startswith(PREFIX):
        mend = "name one of these, or a file (.jsonl.gz or .parquet)"
        raise unknown_name("recording", text.removeprefix(PREFIX), NAMES, mend=mend)
    return path


def recording_in(path: Path) -> str | None:
    """Name of the recording that a path leads to; None for any other file."""
    return next((name for name in NAMES if path == trace_path(name)), None)
