"""The store: one folder a cell, one writer, whole files only; failures are rows. Reads need nothing but JSON.

    store.json  studies/<study>.json  cells/<id>/{cell,status,provenance,workload,timing_model,metrics,timing}.json,
    {steps,trajectories,decisions}.parquet, {engines,versions}.parquet (live), events.jsonl.zst, logs/attempt_<n>/

`cell.json` comes first and never changes. A study's index names its cells in order; a cell that is run again under
changed code replaces the older one in the index, while the older folder stays.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from libra.core.errors import ConfigError, StoreError, nearest_match
from libra.results import lock as locks
from libra.results.atomic import TEMP_PREFIX, make_folder, store_errors, write_bytes
from libra.results.cell import Cell
from libra.results.schemas import SCHEMA_VERSION, Facts

State = Literal["pending", "running", "done", "failed", "timeout", "cancelled"]
STATES: tuple[State, ...] = ("pending", "running", "done", "failed", "timeout", "cancelled")

_STUDY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESULTS = (
    "metrics.json",
    "timing.json",
    "steps.parquet",
    "trajectories.parquet",
    "decisions.parquet",
    "engines.parquet",
    "versions.parquet",
)


VALIDATION_FILE = "validation.json"
FIDELITY_FILE = "fidelity.json"
"""What `libra validate` leaves in a store's root."""


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a cell stands. `heartbeat` is Unix time of the last sign of life; `step` counts finished steps."""

    state: State = "pending"
    reason: str = ""
    attempts: int = 0
    heartbeat: float = 0.0
    step: int = 0
    num_steps: int = 0


class Metrics(msgspec.Struct, frozen=True):
    """`metrics.json`. `absent` says why a metric is not defined for this run; `facts` are what the run really had.

    `definitions` is the fingerprint of the definitions that the values follow.
    """

    metrics: dict[str, float]
    absent: dict[str, str]
    facts: Facts
    definitions: str = ""


class Entry(msgspec.Struct, frozen=True):
    """`cell.json`, and one line of a study's index."""

    id: str
    code: str
    cell: Cell
    schema: int = SCHEMA_VERSION


class Index(msgspec.Struct, frozen=True):
    """`studies/<study>.json`."""

    study: str
    cells: tuple[Entry, ...]
    schema: int = SCHEMA_VERSION


class StoredCell(msgspec.Struct, frozen=True):
    """A cell as a reader sees it. `cell.study` is the study that was asked for; `metrics` is None unless it is
    done, and then `facts` holds the run's `num_gpus`, `pipeline` (kind), `staleness`, `in_flight_cap`, `bounds_tok`."""

    id: str
    cell: Cell
    code: str
    status: Status
    metrics: dict[str, float] | None
    absent: dict[str, str]
    facts: dict[str, str | int]
    path: Path

    @property
    def sources(self) -> str:
        """Fingerprint of the product's own sources: rows of different ones are not comparable."""
        return self.code.partition("-")[0]


class CellDir:
    """A claimed cell: the only writer of its folder until `release`. A context manager."""

    def __init__(self, path: Path, entry: Entry, status: Status) -> None:
        self.path, self.id, self.cell, self.status = path, entry.id, entry.cell, status
        self._writing = threading.Lock()

    def __enter__(self) -> CellDir:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    @property
    def attempt_dir(self) -> Path:
        """Logs of the present attempt."""
        return self.path / "logs" / f"attempt_{self.status.attempts}"

    def start(self) -> None:
        """Begin an attempt: counts it, forgets results of an unfinished one, makes its log folder."""
        with store_errors(self.path):
            for name in (*_RESULTS, "events.jsonl.zst"):
                (self.path / name).unlink(missing_ok=True)
        self._write_status(Status("running", attempts=self.status.attempts + 1, heartbeat=time.time()))
        make_folder(self.attempt_dir)

    def beat(self, step: int, num_steps: int) -> None:
        """Sign of life from a running attempt; another thread may call it. Not durable, and a failure is no error."""
        with self._writing:
            if self.status.state != "running":
                return
            status = msgspec.structs.replace(self.status, heartbeat=time.time(), step=step, num_steps=num_steps)
            with suppress(StoreError):
                write_bytes(self.path / "status.json", msgspec.json.encode(status), durable=False)
                self.status = status
            locks.beat(self.path / "lock")

    def set(self, state: State, reason: str = "") -> None:
        """End (or mark) the cell. Raises `StoreError`."""
        self._write_status(msgspec.structs.replace(self.status, state=state, reason=reason, heartbeat=time.time()))

    def write(self, name: str, data: bytes) -> None:
        """One whole file of the cell. Raises `StoreError`."""
        write_bytes(self.path / name, data)

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")

    def release(self) -> None:
        locks.release(self.path / "lock")

    def _write_status(self, status: Status) -> None:
        with self._writing:
            write_bytes(self.path / "status.json", msgspec.json.encode(status))
            self.status = status


class Store:
    """A folder of cells. `create=False` only reads. Raises `StoreError` when it cannot be used."""

    def __init__(self, root: Path | str, *, create: bool = True) -> None:
        self.root = Path(root)
        marker = self.root / "store.json"
        with store_errors(self.root, "use"):
            if not marker.exists():
                self._create(marker, create)
        _check_schema(marker, _read(marker, msgspec.json.decode))

    def _create(self, marker: Path, create: bool) -> None:
        others = (entry.name for entry in self.root.iterdir()) if self.root.is_dir() else ()
        if any(not name.startswith(".") and name not in (VALIDATION_FILE, FIDELITY_FILE) for name in others):
            raise StoreError(
                "a folder with other things in it",
                where=str(self.root),
                mend="name an empty or new folder with --store",
            )
        if not create:
            raise StoreError("no store there", where=str(self.root), mend="`libra run STUDY --store FOLDER` makes one")
        make_folder(self.root)
        write_bytes(marker, msgspec.json.encode({"schema": SCHEMA_VERSION}))

    # -- writing ---------------------------------------------------------------------------------------------------

    def claim(self, cell: Cell, code: str) -> CellDir:
        """Become the only writer of a cell. A dead writer's lock is taken over; a live one's raises `InUseError`."""
        entry = Entry(cell.identity(code), code, cell)
        path = self.path(entry.id)
        make_folder(path)
        locks.acquire(path / "lock", self.root / ".guard")
        try:
            for leftover in path.glob(f"{TEMP_PREFIX}*"):
                leftover.unlink(missing_ok=True)
            self._keep_identity(path / "cell.json", entry)
            return CellDir(path, entry, _read_status(path))
        except BaseException:
            locks.release(path / "lock")
            raise

    def _keep_identity(self, file: Path, entry: Entry) -> None:
        if not file.exists():
            return write_bytes(file, msgspec.json.encode(entry))
        known = _read(file, msgspec.json.Decoder(Entry).decode)
        _check_schema(file, {"schema": known.schema})
        if known.cell.identity(known.code) != entry.id:
            raise StoreError("holds another cell", where=str(file), value=known.cell.label, mend="remove its folder")

    def add_to_study(self, study: str, cells: Iterable[tuple[Cell, str]]) -> list[str]:
        """Put (cell, code) pairs into a study's index, first and in this order; returns their ids.

        Other cells of the index stay, except those that a pair supersedes: the same cell under other code.
        """
        if not _STUDY_NAME.fullmatch(study):
            raise ConfigError("a study's name is letters, digits, dots, hyphens and underscores", value=study)
        entries = {cell.key: Entry(cell.identity(code), code, cell) for cell, code in cells}
        file = self.root / "studies" / f"{study}.json"
        make_folder(file.parent)
        with store_errors(file), locks.guarded(self.root / ".guard"):
            ids = {entry.id for entry in entries.values()}
            kept = [old for old in self._index(study) if old.cell.key not in entries and old.id not in ids]
            index = Index(study, (*entries.values(), *kept))
            write_bytes(file, msgspec.json.format(msgspec.json.encode(index), indent=1) + b"\n")
        return [entry.id for entry in entries.values()]

    # -- reading ---------------------------------------------------------------------------------------------------

    def path(self, cell_id: str) -> Path:
        """Folder of a cell, whether or not it is there."""
        return self.root / "cells" / cell_id

    def studies(self) -> list[str]:
        """Names of the studies that have cells here, sorted."""
        return sorted(file.stem for file in (self.root / "studies").glob("*.json") if not file.name.startswith("."))

    def cells(self, study: str | None = None) -> list[StoredCell]:
        """Cells of one study in its order; without `study` of all, so a cell that two studies share comes twice.

        Raises `StoreError` for a study that has no cells here.
        """
        names = self.studies() if study is None else [study]
        if study is not None and study not in self.studies():
            raise StoreError(
                "no cells of this study", where=str(self.root), value=study, allowed=self.studies(),
                nearest=nearest_match(study, self.studies()),
                mend="`libra run` makes cells of the studies that `libra list study` shows",
            )  # fmt: skip
        return [self._stored(entry, name) for name in names for entry in self._index(name)]

    def find(self, id_prefix: str) -> StoredCell:
        """The cell whose id starts with these digits. Raises `StoreError` for none or several."""
        found = {cell.id: cell for cell in self.cells() if id_prefix and cell.id.startswith(id_prefix)}
        if len(found) != 1:
            what = "several cells begin so" if found else "no such cell"
            raise StoreError(what, where=str(self.root), value=id_prefix, allowed=found, mend="see `libra status`")
        return next(iter(found.values()))

    def status(self, cell_id: str) -> Status:
        """Status as it stands; a `running` cell whose process is gone reads as `cancelled`."""
        path = self.path(cell_id)
        status = _read_status(path)
        if status.state != "running":
            return status
        owner = locks.read_owner(path / "lock")
        if owner is not None and locks.is_alive(path / "lock", owner):
            return status
        status = _read_status(path)  # it may have ended between the two looks
        if status.state != "running":
            return status
        reason = f"interrupted: {owner} is gone" if owner else "interrupted"
        return msgspec.structs.replace(status, state="cancelled", reason=reason)

    def _index(self, study: str) -> Sequence[Entry]:
        file = self.root / "studies" / f"{study}.json"
        if not file.exists():
            return ()
        _check_schema(file, _read(file, msgspec.json.decode))
        return _read(file, msgspec.json.Decoder(Index).decode).cells

    def _stored(self, entry: Entry, study: str) -> StoredCell:
        path = self.path(entry.id)
        status, found = self.status(entry.id), None
        if status.state == "done":
            try:
                found = _read(path / "metrics.json", msgspec.json.Decoder(Metrics).decode)
            except StoreError as error:
                status = msgspec.structs.replace(status, state="failed", reason=f"damaged: {error.what}")
        cell = msgspec.structs.replace(entry.cell, study=study)
        if found is None:
            return StoredCell(entry.id, cell, entry.code, status, None, {}, {}, path)
        return StoredCell(entry.id, cell, entry.code, status, found.metrics, found.absent, _plain(found.facts), path)


T = TypeVar("T")


def read_json(path: Path, kind: type[T]) -> T:
    """One JSON file of the store as a struct. Raises `StoreError` when it is missing or damaged."""
    return _read(path, msgspec.json.Decoder(kind).decode)


def _read(path: Path, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise StoreError(f"cannot read: {error.strerror or error}", where=str(path)) from error
    except msgspec.MsgspecError as error:
        mend = "remove the file; its cell runs again" if path.parent.parent.name == "cells" else "remove the file"
        raise StoreError(f"{path.name} is damaged: {error}", where=str(path), mend=mend) from error


def _read_status(path: Path) -> Status:
    """`pending` where nothing ran yet; a damaged file reads as a failure, so that one cell never hides the others."""
    if not (path / "status.json").exists():
        return Status()
    try:
        return read_json(path / "status.json", Status)
    except StoreError as error:
        return Status("failed", reason=error.what)


def _plain(facts: Facts) -> dict[str, str | int]:
    """Facts for tables: of the bounds the last ones, as text."""
    pipeline = facts.pipeline
    bounds = facts.bounds[-1].bounds_tok if facts.bounds else ()
    return {
        "num_gpus": facts.num_gpus,
        "pipeline": pipeline.kind,
        "staleness": pipeline.staleness,
        "in_flight_cap": pipeline.in_flight_cap,
        "bounds_tok": ", ".join(map(str, bounds)),
    }


def _check_schema(file: Path, content: Any) -> None:
    found = content.get("schema") if isinstance(content, dict) else None
    if found != SCHEMA_VERSION:
        raise StoreError(
            f"schema version {found}; this version of libra reads {SCHEMA_VERSION}",
            where=str(file),
            mend="name another folder with --store, or use the version of libra that wrote this one",
        )
