"""Starts the search server as a process, waits until it answers, and ends it."""

from __future__ import annotations

import http.client
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from libra.core.errors import ConfigError

START_S = 120.0
"""Reading and indexing a few million passages on a busy machine; larger corpora need more."""

END_S = 5.0
"""Between asking a server to end and killing it; it has nothing to save."""


@contextmanager
def running_server(corpus: Path, start_s: float = START_S) -> Iterator[str]:
    """The address of a healthy server on `corpus`, for as long as the block runs.

    Raises `ConfigError` with the server's own words where it does not start.
    """
    command = [sys.executable, "-m", "libra.workloads.tools.search_server", "--corpus", str(corpus), "--port", "0"]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, "--stop-with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            url = _address(process, start_s)
            if not url or not is_healthy(url):
                raise ConfigError(
                    "the search server does not start: " + _words(process, errors),
                    where=str(corpus),
                    mend=f"run it by hand: {' '.join(command)}",
                )
            yield url
        finally:
            _end(process)


def is_healthy(url: str, time_s: float = 10.0) -> bool:
    """Whether a server there answers."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=time_s)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _address(process: subprocess.Popen[bytes], start_s: float) -> str:
    """The first line; empty where the process ends or says nothing in time."""
    assert process.stdout is not None
    output = select.poll()
    output.register(process.stdout, select.POLLIN)
    if not output.poll(1_000 * start_s):
        return ""
    return process.stdout.readline().decode().strip()


def _words(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    """Why it failed, as far as it said."""
    _end(process)
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip()
    return said[-2_000:] or "it was not ready in time and said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
