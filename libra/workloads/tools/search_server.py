"""The search tool as a server of its own: `python -m libra.workloads.tools.search_server --corpus FILE --port 0`.

The first line that it prints is its address; only then is it ready. `POST /search` takes `{"query": ..., "top_k": ...}`
and answers `{"passages": [{"id": ..., "text": ...}, ...]}`, `GET /health` answers `{"status": "ok", ...}`; errors are
`{"error": ...}` with a fitting status. The index is built in memory at the start.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

from libra.core.errors import ConfigError
from libra.workloads.tools.bm25 import Bm25Index
from libra.workloads.tools.corpus import read_corpus
from libra.workloads.tools.search import Reply

MAX_QUERY_BYTES = 65_536
"""No query is longer; a policy that rambles is refused, not indexed."""

MAX_TOP_K = 100


class Query(msgspec.Struct, forbid_unknown_fields=True):
    """What a client asks."""

    query: str
    top_k: int = 3


class BadRequest(Exception):
    """Answered with its text and status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """One request; HTTP/1.0, so a connection carries one."""

    timeout = 30.0  # a client that connects and says nothing does not hold its thread for ever

    def __init__(self, index: Bm25Index, *args: object) -> None:
        self._index = index
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, {"status": "ok", "num_passages": len(self._index)})
        else:
            self._answer(404, {"error": f"no such page: {self.path}; there are GET /health and POST /search"})

    def do_POST(self) -> None:
        try:
            query = self._query()
            self._answer(200, Reply(tuple(self._index.search(query.query, query.top_k))))
        except BadRequest as error:
            self._answer(error.status, {"error": str(error)})

    def _query(self) -> Query:
        if self.path != "/search":
            raise BadRequest(404, f"no such page: {self.path}; there are GET /health and POST /search")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise BadRequest(411, "Content-Length is missing")
        if int(length) > MAX_QUERY_BYTES:
            raise BadRequest(413, f"the query is longer than {MAX_QUERY_BYTES} bytes")
        try:
            query = msgspec.json.decode(self.rfile.read(int(length)), type=Query)
        except msgspec.MsgspecError as error:
            raise BadRequest(400, f"no query: {error}") from error
        if not 1 <= query.top_k <= MAX_TOP_K:
            raise BadRequest(400, f"top_k is {query.top_k}; allowed: 1 to {MAX_TOP_K}")
        return query

    def _answer(self, status: int, content: object) -> None:
        body = msgspec.json.encode(content)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: one line a search would drown what matters."""


class Server(ThreadingHTTPServer):
    """`address` is taken before the index is built: a busy port is told at once."""

    request_queue_size = 256  # a whole batch of trajectories searches at the same moment

    def __init__(self, host: str, port: int) -> None:
        try:
            super().__init__((host, port), BaseHTTPRequestHandler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"the server cannot listen there: {getattr(error, 'strerror', None) or error}",
                where=f"{host}:{port}",
                mend="another --port; 0 takes a free one",
            ) from error

    @property
    def url(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://{host}:{port}"


def serve(corpus: Path, host: str, port: int, *, stop_with_stdin: bool) -> None:
    """Until it is interrupted, or until its input ends (so that it never outlives the process that started it)."""
    with Server(host, port) as server:
        server.RequestHandlerClass = partial(Handler, Bm25Index(read_corpus(corpus)))
        if stop_with_stdin:
            threading.Thread(target=_stop_with_stdin, args=(server,), daemon=True).start()
        print(server.url, flush=True)
        server.serve_forever()


def _stop_with_stdin(server: Server) -> None:
    while sys.stdin.buffer.read(4_096):
        pass
    server.shutdown()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="search_server", description="BM25 search over a corpus, as JSON over HTTP.")
    parser.add_argument("--corpus", type=Path, required=True, help="JSON lines with id and text")
    parser.add_argument("--host", default="127.0.0.1", help="address; the default admits this machine only")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input ends")
    args = parser.parse_args(argv)
    try:
        serve(args.corpus, args.host, args.port, stop_with_stdin=args.stop_with_stdin)
    except ConfigError as error:
        print(f"search_server: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
