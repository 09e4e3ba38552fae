"""The edit tool, and the reading of files that an agent may have replaced: on the host, inside one folder, never
through a link.

No process of the agent is alive while these run, so what was looked at is what is written.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_BYTES = 1 << 20
"""Of a file to read or edit: sources are far smaller, and what an agent leaves behind must not fill our memory."""
CALL = re.compile(r"\s*([^:\n]+):(\d{1,9}):([^\n]*)\n?\s*")


class ToolError(Exception):
    """What the agent is told; the call's status is "error"."""


def edit_line(folder: Path, call: str) -> None:
    """`FILE:LINE: new text` replaces a line; its indentation and ending stay. Raises `ToolError`."""
    parsed = CALL.fullmatch(call)
    if parsed is None:
        raise ToolError("not FILE:LINE: text")
    number = int(parsed[2])
    with opened(folder, parsed[1].strip(), os.O_RDWR) as file:
        lines = _text(file).splitlines(keepends=True)
        if not 1 <= number <= len(lines):
            raise ToolError(f"no line {number}")
        old = lines[number - 1]
        indentation = old[: len(old) - len(old.lstrip(" \t"))]
        ending = old[len(old.rstrip("\r\n")) :]
        lines[number - 1] = indentation + parsed[3].strip() + ending
        content = "".join(lines).encode(errors="replace")
        os.ftruncate(file, 0)
        os.pwrite(file, content, 0)


def read_inside(folder: Path, name: str) -> str | None:
    """A file's text; None when it is no plain file of a bearable size in there."""
    try:
        with opened(folder, name, os.O_RDONLY) as file:
            return _text(file)
    except ToolError:
        return None


@contextmanager
def opened(folder: Path, name: str, flags: int) -> Iterator[int]:
    """Descriptor of a plain file below the folder, reached without following a link. Raises `ToolError`."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or not parts or "\0" in name:
        raise ToolError("not in the folder")
    held = []
    try:
        held.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
        for part in parts[:-1]:
            held.append(os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=held[-1]))
        # Not to wait for the other end of a pipe that is called like a source.
        held.append(os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=held[-1]))
        found = os.fstat(held[-1])
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise ToolError("no plain file")
        if found.st_size > MAX_BYTES:
            raise ToolError("too large")
        yield held[-1]
    except (OSError, ValueError) as error:
        raise ToolError("no such file" if isinstance(error, FileNotFoundError) else "cannot be opened") from error
    finally:
        for descriptor in held:
            os.close(descriptor)


def _text(file: int) -> str:
    return os.pread(file, MAX_BYTES, 0).decode(errors="replace")
