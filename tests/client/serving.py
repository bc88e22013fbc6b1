"""A small HTTP/1.1 server on loopback for tests: a function from requests to answers, in a thread per connection.
Owns the sockets and threads; it decides nothing about any answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Told:
    status: int
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""


@contextmanager
def serving(answer: Callable[[Asked], Told | None]) -> Iterator[str]:
    """Its URL. None instead of an answer ends the connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            told = answer(Asked(self.command, self.path, dict(self.headers.items()), body))
            if told is None:
                self.close_connection = True
                return
            self.send_response_only(told.status)
            for name, value in told.headers:
                self.send_header(name, value)
            if told.status not in (204, 304):
                self.send_header("Content-Length", str(len(told.body)))
            self.end_headers()
            self.wfile.write(told.body if self.command != "HEAD" else b"")

        do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = handle_one

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(30)
