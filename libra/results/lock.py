"""One writer per cell: a lock file that names its owner, and the rule by which a dead owner's lock is taken over.

The file is made and replaced only under a short `flock` on the store's guard, so that two runs that find the same dead
lock cannot both take it. Ownership itself is the file, which also holds between machines on a shared file system.
"""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from libra.core.errors import StoreError
from libra.results.atomic import store_errors

STALE_AFTER_S = 600.0
"""A lock of another machine without a heartbeat for so long is dead. Owners beat every few seconds; the rest is slack
for clocks that differ and file servers that cache (assumed)."""


class InUseError(StoreError):
    """A cell that another run is writing."""


class Owner(msgspec.Struct, frozen=True):
    """Who holds a lock. `born` tells a process from a later one with the same number; "" where it is unknown."""

    pid: int
    host: str
    born: str = ""

    @classmethod
    def me(cls) -> Owner:
        return cls(os.getpid(), platform.node(), _born(os.getpid()))

    def __str__(self) -> str:
        return f"pid {self.pid}" + ("" if self.host == platform.node() else f" on {self.host}")


def acquire(lock: Path, guard: Path) -> Owner | None:
    """Take the lock; returns the dead owner it was taken from, if any. Raises `InUseError`."""
    with store_errors(lock), guarded(guard):
        before = read_owner(lock)
        if before is not None and is_alive(lock, before):
            raise InUseError(
                f"in use by {before}",
                where=str(lock.parent),
                mend="let that run finish, or stop it; what it has finished is kept",
            )
        with suppress(FileNotFoundError):
            lock.unlink()
        _create(lock)
    return before


def _create(lock: Path) -> None:
    handle = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        os.write(handle, msgspec.json.encode(Owner.me()))
    except OSError:
        lock.unlink()
        raise
    finally:
        os.close(handle)


def release(lock: Path) -> None:
    """Give the lock back, if it is still ours."""
    if read_owner(lock) == Owner.me():
        with suppress(OSError):
            lock.unlink()


def beat(lock: Path) -> None:
    """Heartbeat for readers on other machines; a lock that is gone is no error here."""
    with suppress(OSError):
        os.utime(lock)


def read_owner(lock: Path) -> Owner | None:
    """Owner named in the file; None where there is none or where its writer died (or its disk was full) before."""
    try:
        return msgspec.json.decode(lock.read_bytes(), type=Owner)
    except (OSError, msgspec.DecodeError):
        return None


def is_alive(lock: Path, owner: Owner) -> bool:
    """On this machine: whether the process lives. Of another one: whether its heartbeat is recent."""
    if owner.host != platform.node():
        with suppress(OSError):
            return time.time() - lock.stat().st_mtime < STALE_AFTER_S
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not owner.born or _born(owner.pid) == owner.born


@contextmanager
def guarded(guard: Path) -> Iterator[None]:
    """Hold the store's guard; the system gives it back when a process dies."""
    handle = os.open(guard, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _born(pid: int) -> str:
    """Start time of a process in clock ticks since boot (Linux), "dead" for a zombie, "" where the system hides it."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "dead" if after_name[0] in "ZX" else after_name[19]
