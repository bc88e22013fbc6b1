"""What tests of whole nodes share: a webhook receiver on this machine, and the subscription calls as a client has them.
It owns the receiver's thread; it never looks inside the server."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.http import Response
from tests.support.node import Node

LOCAL = {"HEADWATER_WEBHOOK_ALLOW_LOCAL": "true"}
WITHIN_S = 60.0
JSON = {"Content-Type": "application/json"}

Said = tuple[int, dict[str, Any]]
Answering = Callable[["Call"], Said]


@dataclass(frozen=True)
class Call:
    """One webhook as it arrived."""

    raw: bytes
    headers: dict[str, str]

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    def tails(self) -> dict[str, str]:
        return {stream["path"]: stream["tail_offset"] for stream in self.body["streams"] if stream["has_pending"]}


class Receiver:
    """`answer` decides each reply; calls are kept in the order in which they arrived."""

    def __init__(self, answer: Answering) -> None:
        self.answer = answer
        self.calls: list[Call] = []
        self._queue: queue.Queue[Call] = queue.Queue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                call = Call(raw, {name.lower(): value for name, value in self.headers.items()})
                receiver.calls.append(call)
                receiver._queue.put(call)
                status, said = receiver.answer(call)
                payload = json.dumps(said).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(payload)))
                    self.end_headers()
                    self.wfile.write(payload)
                except OSError:
                    pass  # the server was killed meanwhile

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def next(self) -> Call:
        return self._queue.get(timeout=WITHIN_S)

    def quiet(self) -> bool:
        """Whether every call that arrived was taken by `next`."""
        return self._queue.empty()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def receiving(answer: Answering | Said = (200, {})) -> Iterator[Receiver]:
    receiver = Receiver(answer if callable(answer) else lambda _: answer)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


class Api:
    """The calls of one client. It asserts nothing but what it is told to expect."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> Response:
        headers = dict(JSON)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        raw = None if body is None else json.dumps(body).encode()
        return self.node.request(method, f"/v1/stream/{path}", headers, raw)

    def subscription(self, method: str, name: str, action: str = "", body: Any = None, token: str | None = None):
        return self.call(method, f"__ds/subscriptions/{quote(name, safe='')}{action}", body, token)

    def stream(self, path: str, *messages: Any) -> None:
        """Creates a JSON stream that holds the messages."""
        answer = self.call("PUT", quote(path), list(messages))
        assert answer.status == 201, answer

    def append(self, path: str, message: Any) -> str:
        answer = self.call("POST", quote(path), message)
        assert answer.status == 204, answer
        return answer.header("stream-next-offset") or ""

    def read(self, path: str) -> list[Any]:
        return self.call("GET", f"{quote(path)}?offset=-1").json()

    def webhook(self, name: str, url: str, **more: Any) -> Response:
        body = {"type": "webhook", "webhook": {"url": url}, **({"pattern": "events/*"} | more)}
        return self.subscription("PUT", name, body=body)

    def pull(self, name: str, wake_stream: str = "wake/pool", **more: Any) -> Response:
        body = {"type": "pull-wake", "wake_stream": wake_stream, **({"pattern": "events/*"} | more)}
        return self.subscription("PUT", name, body=body)

    def show(self, name: str) -> dict[str, Any]:
        answer = self.subscription("GET", name)
        assert answer.status == 200, answer
        return answer.json()

    def cursors(self, name: str) -> dict[str, str]:
        return {stream["path"]: stream["acked_offset"] for stream in self.show(name)["streams"]}

    def claim(self, name: str, worker: str = "worker-1") -> Response:
        return self.subscription("POST", name, "/claim", {"worker": worker})

    def ack(
        self, name: str, claimed: dict[str, Any], acks: dict[str, str], done: bool = False, **other: Any
    ) -> Response:
        """Acts on what a claim, or a webhook's body, handed out; `other` replaces parts of it."""
        shown = claimed | other
        body = {
            "wake_id": shown["wake_id"],
            "generation": shown["generation"],
            "acks": [{"stream": path, "offset": offset} for path, offset in acks.items()],
            "done": done,
        }
        action, token = ("/ack", "token") if "token" in claimed else ("/callback", "callback_token")
        return self.subscription("POST", name, action, body, shown[token])

    def release(self, name: str, claimed: dict[str, Any]) -> Response:
        body = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
        return self.subscription("POST", name, "/release", body, claimed["token"])


def tails_of(claimed: dict[str, Any]) -> dict[str, str]:
    return {stream["path"]: stream["tail_offset"] for stream in claimed["streams"] if stream["has_pending"]}


@contextmanager
def a_node(directory: Path, memory: bool = False, flags: tuple[str, ...] = ()) -> Iterator[tuple[Node, Api]]:
    with Node.started(directory, memory=memory, env=LOCAL, flags=("--s3p", "off", *flags)) as node:
        yield node, Api(node)
