"""Files that are either there as a whole or not at all, and I/O errors that say how to mend them."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from libra.core.errors import StoreError

TEMP_PREFIX = ".tmp-"

_MENDS = {
    errno.ENOSPC: "free some space or choose another --store, then run again: finished cells are kept and skipped",
    errno.EDQUOT: "free some of your quota or choose another --store, then run again: finished cells are kept",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), then run again: finished cells are kept",
    errno.EROFS: "choose a --store on a file system that can be written",
    errno.EACCES: "choose a --store that you may write, or mend its permissions",
    errno.EPERM: "choose a --store that you may write, or mend its permissions",
    errno.ENOTDIR: "choose a --store whose path holds no plain file",
    errno.EEXIST: "choose a --store that is a folder",
}


@contextmanager
def store_errors(path: Path, doing: str = "write") -> Iterator[None]:
    """Turns an `OSError` into a `StoreError` that names the file, the system's reason and how to mend it."""
    try:
        yield
    except OSError as error:
        mend = _MENDS.get(error.errno or 0, "check the file system there, then run again")
        raise StoreError(f"cannot {doing}: {error.strerror or error}", where=str(path), mend=mend) from error


def write_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write by temporary file and rename; `durable` waits for the disk. Raises `StoreError`, and the old file stays."""
    temp = path.with_name(f"{TEMP_PREFIX}{path.name}-{os.getpid()}-{threading.get_ident()}")
    with store_errors(path):
        try:
            with temp.open("wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temp.replace(path)
        except BaseException:
            with suppress(OSError):
                temp.unlink()
            raise
        if durable:
            sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Create a folder and its parents. Raises `StoreError`."""
    with store_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def move_into_place(source: Path, target: Path) -> None:
    """Rename a finished file within the store, its content on disk first. Raises `StoreError`."""
    with store_errors(target):
        with source.open("rb") as file:
            os.fsync(file.fileno())
        source.replace(target)
        sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
