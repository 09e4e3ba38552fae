"""Measurements on disk, one file each, so that an interrupted benchmark goes on where it stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from experiments.accuracy.cases import Case
from experiments.accuracy.measure import Measured
from experiments.accuracy.worlds import World
from libra.core.errors import CapacityError
from libra.results.atomic import write_bytes

SOURCES = ("libra/backends/sim", "libra/core", "libra/workloads", "libra/routing", "libra/runtime", "libra/clusters",
           "libra/models", "baselines/routers", "experiments/accuracy/measure.py")  # fmt: skip
"""What a measurement depends on: the truth, and never the planner's estimate, since its plan is given."""


def fingerprint() -> str:
    """16 hex digits over these sources."""
    root, digest = Path(__file__).resolve().parents[2], hashlib.blake2b(digest_size=8)
    for source in SOURCES:
        path = root / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".toml", ".csv"):
                digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()


class Kept(msgspec.Struct, frozen=True):
    """A measurement, or why the truth refused the plan."""

    measured: Measured | None
    refused: str = ""


def kept(
    folder: Path, code: str, case: Case, world: World, num_steps: int, measure: Callable[[], Measured]
) -> Measured | None:
    """What `measure` returns, or returned earlier for the same sources, case, world and steps; None if refused."""
    name = msgspec.json.encode((code, case, world, num_steps))
    path = folder / f"{hashlib.sha256(name).hexdigest()[:24]}.msgpack"
    if path.exists():
        return msgspec.msgpack.decode(path.read_bytes(), type=Kept).measured
    try:
        found = Kept(measure())
    except CapacityError as error:
        found = Kept(None, error.what)
    write_bytes(path, msgspec.msgpack.encode(found), durable=False)
    return found.measured
