"""Clients that read: in pieces from anywhere, by long-poll and by server-sent events, through any node.

Owns what of an answer counts as seen. A reader that follows a stream goes on where it was, whatever became of the node
that it asked; how far it has come is in `History.tails`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

from tests.cluster.chaos.connections import (
    AGAIN_S,
    ANSWER_S_MAX,
    RETRYABLE,
    Address,
    Asker,
    NotSent,
    Unanswered,
    code_of,
    now_s,
)
from tests.cluster.chaos.history import History, Read, Strange
from tests.support.http import BadResponse, ConnectionEnded, EventStream, Response

PIECE_BYTES_MAX = 64 * 1024
SILENCE_S_MAX = 6.0
"""An event stream that is silent for longer is given up: nodes of a run break a silence after a second."""
LINEARIZABLE = "consistency=linearizable"


class Reader(threading.Thread):
    def __init__(
        self, name: str, streams: Sequence[str], addresses: Sequence[Address], history: History, seed: int
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.streams = streams
        self.history = history
        self.rng = random.Random(f"{seed} {name}")
        self.asker = Asker(addresses, self.rng)
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                if not self.read():
                    self.stopping.wait(AGAIN_S)
        finally:
            self.asker.close()

    def read(self) -> bool:
        """False: nothing came of it, and a pause is due."""
        raise NotImplementedError

    def strange(self, stream: str, what: str) -> None:
        self.history.add(Strange(stream, self.name, now_s(), what))

    def fetch(self, stream: str, offset: int, query: str = "", answer_s_max: float = ANSWER_S_MAX) -> Read | None:
        """One answer, recorded; None when there was none."""
        start_s = now_s()
        shown = "-1" if offset == 0 else f"{offset:020}"
        path = f"/v1/stream/{stream}?offset={shown}&max_bytes={PIECE_BYTES_MAX}{query}"
        try:
            response = self.asker.ask(self.asker.any(), "GET", path, answer_s_max=answer_s_max)
        except (NotSent, Unanswered):
            return None
        read = self._understood(stream, offset, start_s, LINEARIZABLE in query, response)
        if read is not None:
            self.history.add(read)
        return read

    def _understood(
        self, stream: str, offset: int, start_s: float, linearizable: bool, response: Response
    ) -> Read | None:
        if response.status in (200, 204):
            up_to_date = response.header("stream-up-to-date") == "true"
            told = int(response.header("stream-next-offset") or -1)
            seen = (offset, response.body, up_to_date, True, linearizable, told)
            return Read(stream, self.name, start_s, now_s(), *seen)
        code = code_of(response)
        if code == "offset_beyond_tail":
            # It says that the stream ends before a place that this reader has seen: at most one byte before it.
            return Read(stream, self.name, start_s, now_s(), offset - 1, b"", True, True, linearizable)
        if code not in RETRYABLE:
            self.strange(stream, f"a read from {offset} on was answered {response.status} {code}")
        return None


class CatchUp(Reader):
    """Reads any stream from a place that it knows to its end, over and over."""

    def __init__(
        self,
        name: str,
        streams: Sequence[str],
        addresses: Sequence[Address],
        history: History,
        seed: int,
        pause_s: float,
        linearizable_share: float = 0.0,
    ) -> None:
        super().__init__(name, streams, addresses, history, seed)
        self.pause_s = pause_s
        self.linearizable_share = linearizable_share
        self._known = {stream: [0] for stream in streams}

    def read(self) -> bool:
        stream = self.rng.choice(self.streams)
        known = self._known[stream]
        # Seldom from the beginning: a run's streams grow long.
        offset = 0 if self.rng.random() < 0.02 else self.rng.choice(known[-8:])
        query = f"&{LINEARIZABLE}" if self.rng.random() < self.linearizable_share else ""
        while not self.stopping.is_set():
            read = self.fetch(stream, offset, query)
            if read is None:
                return False
            offset = read.from_offset + len(read.data)
            if read.data:
                known.append(offset)
            if read.up_to_date:
                break
        del known[1:-8]
        self.stopping.wait(self.rng.uniform(0, 2 * self.pause_s))
        return True


class LongPoll(Reader):
    def __init__(self, name: str, stream: str, addresses: Sequence[Address], history: History, seed: int) -> None:
        super().__init__(name, [stream], addresses, history, seed)
        history.tails[name, stream] = 0

    def read(self) -> bool:
        (stream,) = self.streams
        offset = self.history.tails[self.name, stream]
        read = self.fetch(stream, offset, "&live=long-poll", SILENCE_S_MAX)
        if read is None or read.from_offset != offset:
            return False
        self.history.tails[self.name, stream] = offset + len(read.data)
        return True


class Events(Reader):
    """Server-sent events, on one connection for as long as a node keeps it."""

    def __init__(self, name: str, stream: str, addresses: Sequence[Address], history: History, seed: int) -> None:
        super().__init__(name, [stream], addresses, history, seed)
        history.tails[name, stream] = 0

    def read(self) -> bool:
        (stream,) = self.streams
        offset = self.history.tails[self.name, stream]
        shown = "-1" if offset == 0 else f"{offset:020}"
        start_s = now_s()
        try:
            connection = self.asker.connect(self.asker.any(), SILENCE_S_MAX)
        except NotSent:
            return False
        with connection:
            try:
                events = EventStream.open(connection, f"/v1/stream/{stream}?offset={shown}&live=sse")
                if events.head.status == 200:
                    return self._follow(stream, events, start_s)
                body = b"".join(connection.body_pieces(events.head))
                response = Response(events.head.status, events.head.reason, events.head.headers, (), body)
            except (OSError, ConnectionEnded, BadResponse):
                return False
        read = self._understood(stream, offset, start_s, False, response)
        if read is not None:
            self.history.add(read)
        return False

    def _follow(self, stream: str, events: EventStream, start_s: float) -> bool:
        """Records at each control event what came before it, until the connection ends."""
        offset = self.history.tails[self.name, stream]
        data = b""
        fresh = True
        for event in events:
            if event.name == "data":
                data += event.data.encode()
            elif event.name == "control":
                said = event.json()
                told, up_to_date = int(said["streamNextOffset"]), bool(said.get("upToDate"))
                seen = (offset, data, up_to_date, fresh, False, told)
                self.history.add(Read(stream, self.name, start_s, now_s(), *seen))
                offset += len(data)
                self.history.tails[self.name, stream] = offset
                data, fresh = b"", False
            if self.stopping.is_set():
                break
        return fresh is False


def read_whole(asker: Asker, stream: str, query: str = "") -> bytes | None:
    """All of a stream as it is now, in answers that fit each other; None when it is not there."""
    data = b""
    while True:
        shown = "-1" if not data else f"{len(data):020}"
        response = asker.insist("GET", f"/v1/stream/{stream}?offset={shown}{query}")
        if response.status == 404:
            return None
        if response.status != 200:
            raise AssertionError(f"{stream} cannot be read from {shown} on: {response.status} {response.body!r}")
        data += response.body
        if response.header("stream-up-to-date") == "true":
            return data
