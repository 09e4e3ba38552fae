"""A job's own folder for temporary files (Ray's session, engines' sockets, verl's locks, episodes) goes with the job.

verl 0.9.1 puts its sockets for weights into `/tmp` by name, and takes them away itself.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

PREFIX = "libra-"
SOCKET_CHARS = 107
"""The longest path of a Unix socket (unix(7))."""
BELOW_CHARS = 72
"""The longest one below: Ray's `/ray/session_<time>_<pid>/sockets/plasma_store`, with a pid of seven digits."""
MARK_CHARS = 8
RAY_LOGS = ("raylet", "gcs_server")
"""What is kept of a job that failed: who was ended for want of memory. Workers' logs are in the job's own."""


def folder_of(mark: str) -> Path:
    """Not made yet. In the system's folder for such files, or in `/tmp` where that one's name is too long."""
    name, base = PREFIX + mark[:MARK_CHARS], Path(tempfile.gettempdir())
    is_short = len(str(base / name)) + BELOW_CHARS <= SOCKET_CHARS
    return (base if is_short else Path("/tmp")) / name


def remove(folder: Path) -> None:
    """Of a job that is over. Nothing that is not named as such a folder is removed."""
    if folder.name.startswith(PREFIX) and len(folder.name) == len(PREFIX) + MARK_CHARS:
        shutil.rmtree(folder, ignore_errors=True)


def keep_ray_logs(folder: Path, attempt: Path) -> None:
    for path in folder.glob("ray/session_[0-9]*/logs/*"):
        if path.stem in RAY_LOGS:
            (attempt / "ray").mkdir(exist_ok=True)
            shutil.copy(path, attempt / "ray" / path.name)
