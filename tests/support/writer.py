"""The writer process of the crash tests: several connections that append, close, delete and follow streams.
It journals what it sent and what was acknowledged; it judges single answers, never what a stream holds.

Run as `python -m tests.support.writer --journal DIR --plan FILE`. On its standard input it takes lines `port N` (the
server is here now) and `stop`; on its standard output it says `waiting` when every connection has lost its server.
The journal of a worker is `DIR/NAME.jsonl`, one entry a line, handed to the kernel before the worker goes on:

    {"op": "sent", "ns": [4, 5]}                            about to send these records (or one batch of them)
    {"op": "acked", "ns": [4], "offset": "…", "new": true}  the server said they are durable
    {"op": "refused", "ns": [5], "status": 503}             the server said they are not
    {"op": "begin" | "done", "step": …, "name": …}          a change to a stream's life: create, append, close, delete
    {"op": "seen", "stream": …, "from": …, "to": …, "crc32": …}   a reader was shown these bytes
    {"op": "broken", "why": …}                              the server broke its contract in an answer
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.http import BadResponse, Connection, ConnectionEnded, Response, encode_request
from tests.support.server_place import ServerPlace, Stopped

TEXT = "text/plain"
JSON = "application/json"
LARGE_EVERY = 97
# Lives are short: their records have to be large sooner.
LIFE_LARGE_EVERY = 3
REFUSED_PAUSE_S = 0.02
BROKEN_MAX = 20


def record(writer: str, n: int, large_bytes: int, large_every: int = LARGE_EVERY) -> bytes:
    """Record `n` of a writer, always the same bytes; one in `large_every` is large."""
    size = large_bytes if n % large_every == large_every - 1 else 20 + n % 180
    unit = f"{writer}.{n:x}/"
    return f"{writer} {n} {(unit * (size // len(unit) + 1))[:size]}\n".encode()


def message(writer: str, n: int, large_bytes: int) -> dict[str, Any]:
    """Record `n` of a writer to a JSON stream."""
    return {"writer": writer, "n": n, "filler": record(writer, n, large_bytes).decode()}


class ServerLost(Exception):
    """The connection ended, or could not be made: nothing is known about what was in flight."""


class Journal:
    """An append-only file; an entry is the kernel's before `write` returns, so only a power cut could lose it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._broken = 0

    def write(self, op: str, **facts: Any) -> None:
        os.write(self._fd, (json.dumps({"op": op, **facts}) + "\n").encode())

    def broken(self, why: str, answer: Response) -> None:
        self._broken += 1
        if self._broken <= BROKEN_MAX:
            self.write("broken", why=f"{why}: {answer.status} {answer.headers} {answer.body[:200]!r}")


class Worker:
    """One thread with one connection. A subclass does one unit of work in `work`, and may be cut off anywhere."""

    def __init__(self, name: str, server: ServerPlace, journal: Journal, plan: dict[str, Any]) -> None:
        self.name = name
        self.server = server
        self.journal = journal
        self.stream = "/v1/stream/" + str(plan.get("stream", ""))
        self.depth = int(plan.get("depth", 1))
        self.large_bytes = int(plan.get("large_bytes", 4096))
        self.content_type = str(plan.get("content_type", TEXT))
        self._generation = 0
        self._connection: Connection | None = None

    def run(self) -> None:
        try:
            while not self.server.stopping:
                try:
                    if self._connection is None:
                        port, self._generation = self.server.after(self._generation)
                        self._connect(port)
                        self.reconnected()
                    self.work()
                except ServerLost:
                    self._disconnect()
            self.settle()
        except (Stopped, ServerLost):
            pass
        except BaseException as failure:
            # A worker that died silently would make every later check weaker than it looks.
            self.journal.write("broken", why=f"the writer itself failed: {failure!r}")
            os._exit(3)
        finally:
            self._disconnect()

    def work(self) -> None:
        raise NotImplementedError

    def reconnected(self) -> None:
        """The first thing on a new server: what a client does that cannot know what became of its last request."""

    def settle(self) -> None:
        """The last thing before the end, on a server that runs: resolve whatever is still unknown."""

    def exchange(self, requests: Sequence[bytes], method: str = "POST") -> list[Response]:
        """Send all at once, read all answers. `ServerLost` carries no answers: see `answers` for those that came."""
        self.answers: list[Response] = []
        connection = self._connection
        assert connection is not None
        try:
            connection.send(b"".join(requests))
            for _ in requests:
                self.answers.append(connection.read_response(method))
        except (ConnectionEnded, OSError) as lost:
            raise ServerLost from lost
        except BadResponse as bad:
            self.journal.write("broken", why=f"not HTTP: {bad}")
            raise ServerLost from bad
        return self.answers

    def post(self, headers: dict[str, str], body: bytes, path: str | None = None) -> bytes:
        typed = {"Content-Type": self.content_type, **headers} if body else headers
        return encode_request("POST", path or self.stream, typed, body)

    def _connect(self, port: int) -> None:
        try:
            self._connection = Connection("127.0.0.1", port)
        except OSError as lost:
            raise ServerLost from lost

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PlainWriter(Worker):
    """Appends without a producer: what is cut off stays unknown, and is never sent again.

    On a JSON stream `batch` messages travel in one array, and are all there or none.
    """

    def __init__(self, name: str, server: ServerPlace, journal: Journal, plan: dict[str, Any]) -> None:
        super().__init__(name, server, journal, plan)
        self.batch = int(plan.get("batch", 1))
        self.n = 0

    def work(self) -> None:
        groups = [
            list(range(self.n + i, self.n + i + self.batch)) for i in range(0, self.depth * self.batch, self.batch)
        ]
        self.n = groups[-1][-1] + 1
        requests = [self.post({}, self._body(ns)) for ns in groups]
        for ns in groups:
            self.journal.write("sent", ns=ns)
        try:
            self.exchange(requests)
        finally:
            for ns, answer in zip(groups, self.answers, strict=False):
                self._note(ns, answer)

    def _body(self, ns: list[int]) -> bytes:
        if self.content_type == JSON:
            return json.dumps([message(self.name, n, self.large_bytes) for n in ns]).encode()
        return b"".join(record(self.name, n, self.large_bytes) for n in ns)

    def _note(self, ns: list[int], answer: Response) -> None:
        if answer.status == 204:
            self.journal.write("acked", ns=ns, offset=answer.header("stream-next-offset"), new=True)
        elif answer.status == 503:
            self.journal.write("refused", ns=ns, status=503)
            time.sleep(REFUSED_PAUSE_S)
        else:
            self.journal.broken(f"append {ns}", answer)


class ProducerWriter(Worker):
    """Appends as an idempotent producer: what is cut off is sent again with the same tuple until it is answered."""

    def __init__(self, name: str, server: ServerPlace, journal: Journal, plan: dict[str, Any]) -> None:
        super().__init__(name, server, journal, plan)
        self.first_unknown = 0
        self.first_unsent = 0

    def reconnected(self) -> None:
        if self.first_unknown:
            # The last acknowledged tuple once more: a server that forgot it would append it twice.
            n = self.first_unknown - 1
            answer = self.exchange([self._request(n)])[0]
            if answer.status != 204 or not self._covers(answer, n):
                self.journal.broken(f"acknowledged tuple {n} sent again", answer)
            self.journal.write("again", ns=[n], status=answer.status)

    def work(self) -> None:
        ns = list(range(self.first_unknown, self.first_unknown + self.depth))
        self.journal.write("sent", ns=ns)
        first_unsent, self.first_unsent = self.first_unsent, max(self.first_unsent, ns[-1] + 1)
        try:
            self.exchange([self._request(n) for n in ns])
        finally:
            for n, answer in zip(ns, self.answers, strict=False):
                if not self._note(n, answer, retried=n < first_unsent):
                    break

    def settle(self) -> None:
        while self.first_unknown < self.first_unsent:
            self.work()

    def _request(self, n: int) -> bytes:
        headers = {"Producer-Id": self.name, "Producer-Epoch": "0", "Producer-Seq": str(n)}
        if self.content_type == JSON:
            return self.post(headers, json.dumps(message(self.name, n, self.large_bytes)).encode())
        return self.post(headers, record(self.name, n, self.large_bytes))

    def _note(self, n: int, answer: Response, retried: bool) -> bool:
        """Whether `n` is settled, and the next one may be looked at."""
        if answer.status == 503:
            time.sleep(REFUSED_PAUSE_S)
            return False
        expected = (200, 204) if retried else (200,)
        if answer.status not in expected or not self._covers(answer, n):
            self.journal.broken(f"append {n} (retried: {retried})", answer)
        new = answer.status == 200
        self.journal.write("acked", ns=[n], offset=answer.header("stream-next-offset"), new=new)
        self.first_unknown = n + 1
        return True

    @staticmethod
    def _covers(answer: Response, n: int) -> bool:
        seq = answer.header("producer-seq")
        return seq is not None and seq.isdigit() and int(seq) >= n


class SequencedWriter(Worker):
    """Appends with Stream-Seq: one writer, each number once; a repeated number is a conflict, also after a crash."""

    def __init__(self, name: str, server: ServerPlace, journal: Journal, plan: dict[str, Any]) -> None:
        super().__init__(name, server, journal, plan)
        self.n = 0
        self.unknown = False

    def reconnected(self) -> None:
        if self.n:
            answer = self.exchange([self._request(self.n - 1)])[0]
            if answer.status != 409:
                self.journal.broken(f"acknowledged Stream-Seq {self.n - 1} sent again", answer)

    def work(self) -> None:
        self.journal.write("sent", ns=[self.n])
        retried, self.unknown = self.unknown, True
        answer = self.exchange([self._request(self.n)])[0]
        if answer.status == 503:
            time.sleep(REFUSED_PAUSE_S)
            return
        # A conflict on a retry says that the first try was written.
        if answer.status == 204 or (retried and answer.status == 409):
            self.unknown = False
            new = answer.status == 204
            self.journal.write("acked", ns=[self.n], offset=answer.header("stream-next-offset"), new=new)
            self.n += 1
        else:
            self.journal.broken(f"append with Stream-Seq {self.n} (retried: {retried})", answer)

    def settle(self) -> None:
        while self.unknown:
            self.work()

    def _request(self, n: int) -> bytes:
        return self.post({"Stream-Seq": f"{n:012d}"}, record(self.name, n, self.large_bytes))


class LifeWriter(Worker):
    """Creates, fills, closes, deletes and recreates a few streams of its own, each step repeated until answered."""

    NAMES = 4

    def __init__(self, name: str, server: ServerPlace, journal: Journal, plan: dict[str, Any]) -> None:
        super().__init__(name, server, journal, plan)
        self.rng = random.Random(f"{plan.get('seed', 0)} {name}")
        self.lives = 0
        # What is known of each stream: None, or the life it is in and how many records that has.
        self.state: dict[str, dict[str, Any] | None] = {f"{name}-{i}": None for i in range(self.NAMES)}
        self.step: dict[str, Any] | None = None
        self.tried = False

    def work(self) -> None:
        if self.step is None:
            self.step, self.tried = self._choose(), False
            self.journal.write("begin", **self.step)
        retried, self.tried = self.tried, True
        step = self.step
        answer = self.exchange([self._request(step)], "PUT")[0]
        if answer.status == 503:
            time.sleep(REFUSED_PAUSE_S)
            return
        if answer.status not in self._expected(step, retried):
            self.journal.broken(f"{step} (retried: {retried})", answer)
        elif step["step"] == "poke" and answer.header("stream-closed") != "true":
            self.journal.broken(f"{step}: the conflict does not say Stream-Closed", answer)
        self._apply(step)
        self.journal.write("done", **step)
        self.step = None

    def settle(self) -> None:
        while self.step is not None:
            self.work()

    def _choose(self) -> dict[str, Any]:
        name = self.rng.choice(sorted(self.state))
        life = self.state[name]
        if life is None:
            self.lives += 1
            return {"step": "create", "name": name, "life": self.lives, "n": 0}
        facts = {"name": name, "life": life["life"], "n": life["count"]}
        if life["closed"]:
            return {"step": self.rng.choice(("poke", "delete")), **facts}
        return {"step": self.rng.choice(("append",) * 6 + ("close", "append-and-close", "delete")), **facts}

    def _request(self, step: dict[str, Any]) -> bytes:
        path = self.stream + step["name"]
        match step["step"]:
            case "create":
                return encode_request("PUT", path, {"Content-Type": TEXT})
            case "delete":
                return encode_request("DELETE", path)
            case "close":
                return self.post({"Stream-Closed": "true"}, b"", path)
            case kind:
                producer = f"{self.name}-{step['life']}"
                headers = {"Producer-Id": producer, "Producer-Epoch": "0", "Producer-Seq": str(step["n"])}
                if kind == "append-and-close":
                    headers["Stream-Closed"] = "true"
                return self.post(headers, record(producer, step["n"], self.large_bytes, LIFE_LARGE_EVERY), path)

    @staticmethod
    def _expected(step: dict[str, Any], retried: bool) -> tuple[int, ...]:
        match step["step"]:
            case "create":
                return (200, 201) if retried else (201,)
            case "delete":
                return (204, 404) if retried else (204,)
            case "close":
                return (204,)
            case "poke":
                return (409,)
            case _:
                return (200, 204) if retried else (200,)

    def _apply(self, step: dict[str, Any]) -> None:
        name = step["name"]
        life = self.state[name]
        match step["step"]:
            case "create":
                self.state[name] = {"life": step["life"], "count": 0, "closed": False}
            case "delete":
                self.state[name] = None
            case kind if kind != "poke":
                assert life is not None
                life["count"] += kind != "close"
                life["closed"] = kind != "append"


class Observer(Worker):
    """Follows a byte stream by long-poll and journals what it was shown: all of it must stay."""

    def __init__(self, name: str, server: ServerPlace, journal: Journal, plan: dict[str, Any]) -> None:
        super().__init__(name, server, journal, plan)
        self.offset = "-1"

    def work(self) -> None:
        request = encode_request("GET", f"{self.stream}?offset={self.offset}&live=long-poll")
        answer = self.exchange([request], "GET")[0]
        if answer.status == 503:
            time.sleep(REFUSED_PAUSE_S)
            return
        following = answer.header("stream-next-offset")
        if answer.status not in (200, 204) or following is None:
            self.journal.broken(f"long-poll at {self.offset}", answer)
            time.sleep(REFUSED_PAUSE_S)
            return
        if answer.body:
            facts = {"from": self.offset, "to": following, "crc32": zlib.crc32(answer.body)}
            self.journal.write("seen", stream=self.stream, **facts)
        self.offset = following


KINDS: dict[str, type[Worker]] = {
    "plain": PlainWriter,
    "producer": ProducerWriter,
    "sequenced": SequencedWriter,
    "life": LifeWriter,
    "observer": Observer,
}


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--journal", type=Path, required=True)
    arguments.add_argument("--plan", type=Path, required=True)
    options = arguments.parse_args()
    plans: list[dict[str, Any]] = json.loads(options.plan.read_text())
    server = ServerPlace(len(plans), lambda: print("waiting", flush=True))
    threads = []
    for plan in plans:
        worker = KINDS[plan["kind"]](plan["name"], server, Journal(options.journal / f"{plan['name']}.jsonl"), plan)
        threads.append(threading.Thread(target=worker.run, name=worker.name, daemon=True))
    for thread in threads:
        thread.start()
    for line in sys.stdin:
        command, _, value = line.strip().partition(" ")
        if command == "port":
            server.moved(int(value))
        elif command == "stop":
            server.stop()
            # An observer has nothing to settle, and may be in the middle of a long poll.
            for thread, plan in zip(threads, plans, strict=True):
                if plan["kind"] != "observer":
                    thread.join()
            return 0
    # The test is gone: so is the reason to write.
    return 1


if __name__ == "__main__":
    sys.exit(main())
