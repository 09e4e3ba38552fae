"""The server as its own process: what it answers, what it refuses, and that it never outlives its owner."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from libra.core.errors import ConfigError
from libra.workloads.tools.corpus import Passage, write_corpus
from libra.workloads.tools.search import SearchClient
from libra.workloads.tools.search_process import is_healthy, running_server

COMMAND = [sys.executable, "-m", "libra.workloads.tools.search_server"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("bm25s", reason="the server finds passages by bm25s")
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    write_corpus(path, [Passage(str(i), f"The firm of Kitu{i} is Zela{i % 7}.") for i in range(50)])
    return path


@pytest.fixture(scope="module")
def url(corpus: Path) -> Iterator[str]:
    with running_server(corpus) as url:
        yield url


def ask(url: str, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_health(url: str) -> None:
    assert ask(url, "GET", "/health") == (200, {"status": "ok", "num_passages": 50})
    assert is_healthy(url)


def test_search(url: str) -> None:
    found = ask(url, "POST", "/search", b'{"query": "firm kitu7", "top_k": 1}')
    assert found == (200, {"passages": [{"id": "7", "text": "The firm of Kitu7 is Zela0."}]})
    assert ask(url, "POST", "/search", b'{"query": "nobody"}') == (200, {"passages": []})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("GET", "/", None, 404, "no such page: /; there are GET /health and POST /search"),
        ("POST", "/health", b"{}", 404, "no such page: /health"),
        ("POST", "/search", b"{}", 400, "missing required field `query`"),
        ("POST", "/search", b"nonsense", 400, "no query: JSON is malformed"),
        ("POST", "/search", b'{"query": 7}', 400, "Expected `str`, got `int`"),
        ("POST", "/search", b'{"query": "a", "k": 7}', 400, "unknown field `k`"),
        ("POST", "/search", b'{"query": "a", "top_k": 0}', 400, "top_k is 0; allowed: 1 to 100"),
        ("POST", "/search", b'{"query": "a", "top_k": 101}', 400, "top_k is 101; allowed: 1 to 100"),
        ("POST", "/search", b"\xff\xfe", 400, "no query"),
    ],
)
def test_errors_are_json(url: str, method: str, path: str, body: bytes | None, status: int, error: str) -> None:
    found, content = ask(url, method, path, body)
    assert found == status
    assert error in content["error"]


def test_lengths_are_checked_before_anything_is_read(url: str) -> None:
    assert ask(url, "POST", "/search", **{"Content-Length": "70000"})[0] == 413
    assert ask(url, "POST", "/search", **{"Content-Length": "-1"})[0] == 411


def test_many_searches_at_once(url: str) -> None:
    async def all_of_them() -> list[str]:
        client = SearchClient(url, top_k=1)
        found = await asyncio.gather(*(client.search(f"kitu{i % 50}") for i in range(200)))
        return [each.passages[0].id for each in found]

    assert asyncio.run(all_of_them()) == [str(i % 50) for i in range(200)]


def test_a_server_ends_with_its_block(corpus: Path) -> None:
    with running_server(corpus) as url:
        assert is_healthy(url)
    assert not is_healthy(url)


def test_a_server_ends_with_the_input_of_its_owner(corpus: Path) -> None:
    server = subprocess.Popen(
        [*COMMAND, "--corpus", str(corpus), "--stop-with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None and server.stdout is not None
    with server.stdout:
        assert server.stdout.readline().startswith(b"http://127.0.0.1:")
        server.stdin.close()  # as when the owner dies
        assert server.wait(60) == 0


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="else that is why it does not start")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError, match="the corpus is empty"), running_server(tmp_path / "empty.jsonl"):
        pass
    with pytest.raises(ConfigError, match="cannot be read: No such file"), running_server(tmp_path / "absent.jsonl"):
        pass


def test_a_busy_port_and_an_impossible_one_are_told_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--corpus", "absent", "--port", str(port)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 2
    assert f"127.0.0.1:{port}: the server cannot listen there: Address already in use" in done.stderr
    done = subprocess.run(
        [*COMMAND, "--corpus", "absent", "--port", "70000"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "the server cannot listen there" in done.stderr
    assert "Traceback" not in done.stderr
