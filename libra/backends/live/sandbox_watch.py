"""What the processes of a sandbox use together: kernel limits bind each process alone, and agents fork.

Everything in a PID namespace descends from its process 1, orphans included, so a walk from there misses nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from libra.workloads.tools.sandbox import LimitName, Limits

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MAX_FILES = 2_000
"""More files than this count as a full folder: an agent needs a handful, and a look must stay cheap."""


def children(pid: int) -> list[int]:
    """Living and unreaped children of a single-threaded process; none when it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []


def descendants(pid: int) -> Iterator[int]:
    """`pid` itself, then all below it."""
    todo = [pid]
    while todo:
        yield (current := todo.pop())
        try:
            threads = os.listdir(f"/proc/{current}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                found = Path(f"/proc/{current}/task/{thread}/children").read_text()
            except OSError:
                continue
            todo += [int(child) for child in found.split()]


def limit_hit(init: int, folder: Path, limits: Limits) -> LimitName | None:
    """The limit that process 1 (`init`, its PID out here), those below it, or their folder are past."""
    cpu_s = memory_bytes = 0.0
    unmapped: dict[tuple[int, int], int] = {}
    home = _namespace(init)
    for pid in descendants(init):
        if _namespace(pid) not in (home, None):
            return "namespaces"
        unmapped.update(memory_files(pid))
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # proc(5), counted from the state: utime, stime, cutime, cstime (dead and reaped children), rss.
        cpu_s += sum(int(fields[n]) for n in (11, 12, 13, 14)) / TICKS_PER_S
        memory_bytes += int(fields[21]) * PAGE_BYTES
    if memory_bytes + sum(unmapped.values()) > limits.memory_mb << 20:
        return "memory_mb"
    if cpu_s > limits.cpu_s:
        return "cpu_s"
    return "folder_mb" if is_folder_over(folder, limits.folder_mb << 20) else None


def memory_files(pid: int) -> dict[tuple[int, int], int]:
    """Bytes of what a process holds open by `memfd_create`, by identity: memory that no process's size shows."""
    found = {}
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                if os.readlink(entry.path).startswith("/memfd:"):
                    file = os.stat(entry.path)
                    found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return found


def _namespace(pid: int) -> str | None:
    """Name of a process's user namespace; None when it is gone."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/user")
    return None


def is_folder_over(folder: Path, limit_bytes: int) -> bool:
    """Whether files on disk exceed a size or `MAX_FILES`; what cannot be looked into counts as over."""
    used_bytes = num_files = 0
    todo = [str(folder)]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    num_files += 1
                    if num_files > MAX_FILES:
                        return True
                    found = entry.stat(follow_symlinks=False)
                    used_bytes += found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode):
                        todo.append(entry.path)
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return used_bytes > limit_bytes
