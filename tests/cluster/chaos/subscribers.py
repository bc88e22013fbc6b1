"""Subscribers of a chaos run: one that waits on a wake stream and claims, one that is called by webhooks.

Owns what counts as having been told of a stream's tail. A subscriber acts only when it was woken: what no wake-up
tells of it never hears of, and the checker finds it.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.cluster.chaos import relay
from tests.cluster.chaos.connections import AGAIN_S, Address, Asker, NotSent, Unanswered, code_of
from tests.cluster.chaos.history import History, Strange
from tests.support.http import Response

JSON = {"Content-Type": "application/json"}
LEASE_MS = 3_000
WAIT_S_MAX = 6.0
FAILS_SHARE = 0.05
"""Of the webhooks that the receiver answers with a failure, so that they are repeated."""
HOOK_PORT = relay.PORT
EXPECTED = {"ALREADY_CLAIMED", "NO_PENDING_WORK", "FENCED"}


def subscribe(asker: Asker, name: str, body: dict[str, Any]) -> None:
    """Returns when the subscription is there."""
    path = f"/v1/stream/__ds/subscriptions/{name}"
    response = asker.insist("PUT", path, JSON, json.dumps({"lease_ttl_ms": LEASE_MS, **body}).encode())
    if response.status not in (200, 201):
        raise AssertionError(f"subscription {name}: {response.status} {response.body!r}")


class PullSubscriber(threading.Thread):
    """Follows its wake stream. Claims when it was woken, until it has acknowledged, or another wake-up is due."""

    def __init__(
        self, name: str, streams: Sequence[str], addresses: Sequence[Address], history: History, seed: int
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.streams = list(streams)
        self.asker = Asker(addresses, random.Random(f"{seed} {name}"))
        self.stopping = threading.Event()
        self.wake_stream = f"wakes/{name}"
        self._offset = "-1"
        history.subscribed[name] = self.streams

    def subscribe(self) -> None:
        made = self.asker.insist("PUT", f"/v1/stream/{self.wake_stream}", JSON)
        if made.status not in (200, 201):
            raise AssertionError(f"{self.wake_stream}: {made.status} {made.body!r}")
        subscribe(
            self.asker,
            self.name,
            {"type": "pull-wake", "streams": self.streams, "wake_stream": self.wake_stream},
        )

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                if self._woken():
                    self._work()
        finally:
            self.asker.close()

    def _woken(self) -> bool:
        path = f"/v1/stream/{self.wake_stream}?offset={self._offset}&live=long-poll"
        response = self._ask("GET", path, None, WAIT_S_MAX)
        if response is None or response.status not in (200, 204):
            self.stopping.wait(AGAIN_S)
            return False
        self._offset = response.header("stream-next-offset") or self._offset
        return response.status == 200 and bool(response.json())

    def _work(self) -> None:
        """Claims and acknowledges what it is given. A lease that passes makes another wake-up."""
        while not self.stopping.is_set():
            response = self._call("claim", {"worker": self.name})
            if response is None or response.status == 503:
                self.stopping.wait(AGAIN_S)
                continue
            if response.status != 200:
                self._note(response)
                return
            claimed = response.json()
            tails = {one["path"]: one["tail_offset"] for one in claimed["streams"] if one["has_pending"]}
            acks = [{"stream": path, "offset": tail} for path, tail in tails.items()]
            body = {"wake_id": claimed["wake_id"], "generation": claimed["generation"], "acks": acks, "done": True}
            answer = self._call("ack", body, claimed["token"])
            for path, tail in tails.items():
                self.history.was_told(self.name, path, int(tail))
            if answer is not None and answer.status not in (200, 503):
                self._note(answer)
            return

    def _note(self, response: Response) -> None:
        if code_of(response) not in EXPECTED:
            what = f"{response.status} {response.body!r}"
            self.history.strange.append(Strange(self.wake_stream, self.name, 0.0, what))

    def _call(self, action: str, body: dict[str, Any], token: str | None = None) -> Response | None:
        headers = JSON | ({"Authorization": f"Bearer {token}"} if token else {})
        path = f"/v1/stream/__ds/subscriptions/{self.name}/{action}"
        return self._ask("POST", path, json.dumps(body).encode(), headers=headers)

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        answer_s_max: float = WAIT_S_MAX,
        headers: dict[str, str] | None = None,
    ) -> Response | None:
        try:
            return self.asker.ask(self.asker.any(), method, path, headers or {}, body, answer_s_max)
        except (NotSent, Unanswered):
            return None


class Hooks:
    """Receives the webhooks of one subscription; some calls fail, so that they are repeated."""

    def __init__(self, name: str, streams: Sequence[str], history: History, seed: int, host: str = "127.0.0.1") -> None:
        self.name = name
        self.streams = list(streams)
        self.history = history
        rng = random.Random(f"{seed} {name}")
        hooks = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fails = rng.random() < FAILS_SHARE
                if not fails:
                    hooks.received(said)
                body = b"{}" if fails else b'{"done": true}'
                try:
                    self.send_response(500 if fails else 200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # whoever called is gone

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((host, HOOK_PORT if host != "127.0.0.1" else 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        history.subscribed[name] = self.streams

    @property
    def url(self) -> str:
        """As nodes call it: on their own loopback, see `network`."""
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def subscribe(self, asker: Asker) -> None:
        subscribe(asker, self.name, {"type": "webhook", "streams": self.streams, "webhook": {"url": self.url}})

    def received(self, said: dict[str, Any]) -> None:
        for one in said["streams"]:
            if one["has_pending"]:
                self.history.was_told(self.name, one["path"], int(one["tail_offset"]))

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
