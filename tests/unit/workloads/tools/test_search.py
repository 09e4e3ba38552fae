"""The client against servers that fail in every way we know: always a status, never an exception."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from libra.core.errors import ConfigError
from libra.workloads.tools.search import SearchClient, SearchReturn

GOOD = b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"passages": [{"id": "1", "text": "a"}]}'
HANGS = b"..."
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def search_at(reply: bytes, time_s: float = 30.0) -> SearchReturn:
    """What the client makes of a server that answers `reply` and closes, or, for `HANGS`, stays silent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if reply == HANGS:
            await reader.read()
        writer.write(reply)
        writer.close()

    async def main() -> SearchReturn:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await SearchClient(f"http://127.0.0.1:{port}", top_k=2, time_s=time_s).search("firm Kitu")

    return asyncio.run(main())


def test_a_good_reply() -> None:
    found = search_at(GOOD)
    assert [passage.text for passage in found.passages] == ["a"]
    assert (found.status, found.reason) == ("ok", "")
    assert found.latency_s > 0


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.0 500 Oops\r\n\r\n{}",
        GOOD.replace(b"200 OK", b"503 Busy"),
        b"HTTP/1.0 200 OK\r\n\r\n<html>",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b'HTTP/1.0 200 OK\r\n\r\n{"passages": [{"id": 1}]}',
        b"\x00\xff\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * (5 << 20),
    ],
    ids=["nothing", "cut off", "500", "503", "html", "no passages", "bad passage", "garbage", "endless"],
)
def test_a_bad_reply_is_an_error(reply: bytes) -> None:
    found = search_at(reply)
    assert (found.passages, found.status, found.reason) == ((), "error", "search failed")


def test_finding_nothing_is_an_error_with_a_reason() -> None:
    found = search_at(b'HTTP/1.0 200 OK\r\n\r\n{"passages": []}')
    assert (found.passages, found.status, found.reason) == ((), "error", "nothing found")


def test_a_server_that_hangs_is_a_timeout() -> None:
    found = search_at(HANGS, time_s=0.2)
    assert (found.passages, found.status, found.reason) == ((), "timeout", "search took too long")
    assert found.latency_s >= 0.2


def test_no_server_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        client = SearchClient(f"http://127.0.0.1:{taken.getsockname()[1]}", top_k=2)
        assert asyncio.run(client.search("firm Kitu")).status == "error"


def test_a_query_that_is_no_text_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = SearchClient(f"http://127.0.0.1:{server.getsockname()[1]}", top_k=2)
        assert asyncio.run(client.search("\ud800")).status == "error"


@pytest.mark.parametrize(
    "url", ["", "localhost:80", "https://localhost:80", "http://localhost", "http://a:b", "http://:80"]
)
def test_a_bad_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no address of a search server"):
        SearchClient(url, top_k=2)
