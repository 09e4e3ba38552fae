"""Client of the search server. Whatever the server does, a search ends in time with a status and never raises."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from libra.core.errors import ConfigError
from libra.core.records import ToolStatus
from libra.workloads.tools.corpus import Passage

MAX_REPLY_BYTES = 4 << 20
"""Far above any reply of ours: a server gone mad does not fill the memory."""


class Reply(msgspec.Struct, frozen=True):
    """What the server answers to a search."""

    passages: tuple[Passage, ...]


class SearchReturn(msgspec.Struct, frozen=True):
    """`reason` says why there are no passages; finding none is an `error` too, as the policy gets nothing from it."""

    passages: tuple[Passage, ...]
    status: ToolStatus
    latency_s: float
    reason: str = ""


class SearchClient:
    """One connection a search: a hanging one holds up nobody else."""

    def __init__(self, url: str, top_k: int, time_s: float = 10.0) -> None:
        """Raises `ConfigError` for an address that is none."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port or parts.scheme != "http":
            raise ConfigError(
                "no address of a search server",
                where="search_url",
                value=url,
                mend="http://HOST:PORT, as `python -m libra.workloads.tools.search_server --corpus FILE` prints it",
            )
        self._host, self._port, self._top_k, self._time_s = host, port, top_k, time_s

    async def search(self, query: str) -> SearchReturn:
        """`timeout` after `time_s` for connection and reply together."""
        start_s = time.monotonic()
        passages: Sequence[Passage] = ()
        status: ToolStatus = "error"
        try:
            async with asyncio.timeout(self._time_s):
                passages = await self._ask(query)
            status, reason = ("ok", "") if passages else ("error", "nothing found")
        except TimeoutError:
            status, reason = "timeout", "search took too long"
        except (OSError, EOFError, ValueError, msgspec.MsgspecError):
            reason = "search failed"
        return SearchReturn(tuple(passages), status, time.monotonic() - start_s, reason)

    async def _ask(self, query: str) -> tuple[Passage, ...]:
        body = msgspec.json.encode({"query": query, "top_k": self._top_k})
        head = (
            f"POST /search HTTP/1.0\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(head.encode() + body)
            await writer.drain()
            reply = await _read_all(reader)
        finally:
            writer.close()
        top, separator, content = reply.partition(b"\r\n\r\n")
        status_line = top.split(b"\r\n", 1)[0].split()
        if not separator or len(status_line) < 2 or status_line[1] != b"200":
            raise ValueError(f"no good reply: {status_line}")
        return msgspec.json.decode(content, type=Reply).passages


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """Until the server closes, as it does after each reply in HTTP/1.0."""
    reply = bytearray()
    while piece := await reader.read(65_536):
        reply += piece
        if len(reply) > MAX_REPLY_BYTES:
            raise ValueError("the reply never ends")
    return bytes(reply)
