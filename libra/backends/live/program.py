"""A program with its output as a stream, started by `subprocess` and not by the event loop.

Python's loop asks the process-wide policy for a child watcher, which is uvloop's in Ray's actors and has none.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Program:
    """A child in a session of its own; what it says as an error is dropped. To be made inside a running loop."""

    def __init__(self, argv: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> None:
        """`stdin` is there in whole, and the program need not read it."""
        with _sealed(stdin) as file:
            self._process = subprocess.Popen(
                argv, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, start_new_session=True
            )
        self.pid = self._process.pid
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    async def output(self) -> asyncio.StreamReader:
        """To be asked for once."""
        reader = asyncio.StreamReader()
        loop, pipe = asyncio.get_running_loop(), self._process.stdout
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        return reader

    @property
    def returncode(self) -> int | None:
        """Negative: the signal that ended it. None while it runs."""
        return self._process.returncode

    async def wait(self) -> None:
        await self._ended.wait()

    def kill(self) -> None:
        self._process.kill()

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        self._ended.set()


@contextmanager
def _sealed(content: bytes) -> Iterator[int]:
    """A file in memory that nobody can change."""
    file = os.memfd_create("stdin", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as writer:
            writer.write(content)
        os.lseek(file, 0, os.SEEK_SET)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        yield file
    finally:
        os.close(file)
