"""Our part of a checkpoint: the session's books, and how far its records had come."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from libra.core.errors import StoreError
from libra.integrations.session import SavedSession
from libra.results.atomic import write_bytes
from libra.runtime.attempt import Position

NAME = "libra.json"
"""Written last, so a checkpoint that has it is complete."""


class Saved(msgspec.Struct, frozen=True):
    """`records` is the folder of the event log, seen from the checkpoint's own."""

    session: SavedSession
    position: Position
    records: str


def save(checkpoint: Path, session: SavedSession, position: Position, records: Path) -> None:
    """Raises `StoreError` when the disk is full."""
    seen = os.path.relpath(records.resolve(), checkpoint.resolve())
    write_bytes(checkpoint / NAME, msgspec.json.encode(Saved(session, position, seen)))


def load(checkpoint: Path) -> Saved:
    """Raises `StoreError` for a checkpoint that has no such state, or one of another release."""
    path = checkpoint / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Saved)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"cannot resume from this checkpoint: {error}", where=str(path)) from error


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints of a run, the oldest first."""
    found = [path.parent for path in folder.glob(f"global_step_*/{NAME}") if any((path.parent / "actor").glob("*"))]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Training steps behind it."""
    return int(checkpoint.name.rpartition("_")[2])
