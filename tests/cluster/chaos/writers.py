"""Clients that append: plain ones, which repeat only what certainly changed nothing, and idempotent producers, which
repeat everything. Owns what becomes of one payload through all its attempts; records it once, when it is over.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from tests.cluster.chaos.connections import AGAIN_S, Address, Asker, NotSent, Unanswered, code_of, is_certain, now_s
from tests.cluster.chaos.history import ACKNOWLEDGED, REFUSED, UNKNOWN, Append, History, Strange
from tests.support.http import Response

NOT_SENT = "not sent"
TEXT = {"Content-Type": "text/plain"}
AGAIN_ONCE_S = 0.4
"""Before the retry of a client that has only so many, unless the answer says how long to wait."""
TRIES_S_MAX = 60.0
"""For how long one payload is tried."""
PADDING_BYTES_MAX = 200
NEW_EPOCH_SHARE = 0.005


class Writer(threading.Thread):
    """Appends to its streams in turn until it is told to stop. What is under way then is brought to an end."""

    def __init__(
        self,
        name: str,
        streams: Sequence[str],
        addresses: Sequence[Address],
        history: History,
        seed: int,
        pause_s: float,
        retries_max: int | None = None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.streams = streams
        self.history = history
        self.rng = random.Random(f"{seed} {name}")
        self.asker = Asker(addresses, self.rng)
        self.pause_s = pause_s
        self.retries_max = retries_max
        """None: as many as there is time for."""
        self.stopping = threading.Event()
        self.sent_count = 0

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.append(self.rng.choice(self.streams))
                self.stopping.wait(self.rng.uniform(0, 2 * self.pause_s))
        finally:
            self.asker.close()

    def append(self, stream: str) -> None:
        raise NotImplementedError

    def payload(self) -> bytes:
        self.sent_count += 1
        padding = "x" * self.rng.randrange(PADDING_BYTES_MAX)
        return f"{self.name}:{self.sent_count}:{padding}\n".encode()

    def attempt(self, stream: str, payload: bytes, headers: dict[str, str]) -> tuple[str, str, Response | None]:
        """The outcome, what was said, and the answer."""
        try:
            response = self.asker.ask(self.asker.any(), "POST", f"/v1/stream/{stream}", TEXT | headers, payload)
        except NotSent:
            self.asker.failed()
            return REFUSED, NOT_SENT, None
        except Unanswered as error:
            self.asker.failed()
            return UNKNOWN, str(error)[:60], None
        if response.status in (200, 204):
            return ACKNOWLEDGED, "", response
        self.asker.failed()
        return (REFUSED if is_certain(response) else UNKNOWN), code_of(response), response

    def is_over(self, start_s: float, codes: Sequence[str]) -> bool:
        """A connection that is refused is no attempt: a client that knows several nodes takes another one."""
        if self.retries_max is not None and len([code for code in codes if code != NOT_SENT]) > self.retries_max:
            return True
        return now_s() - start_s > TRIES_S_MAX

    def wait_again(self, response: Response | None) -> None:
        if self.retries_max is None:
            time.sleep(AGAIN_S)
            return
        told = None if response is None else response.header("retry-after")
        time.sleep(AGAIN_ONCE_S if told is None else float(told))

    def strange(self, stream: str, what: str) -> None:
        self.history.add(Strange(stream, self.name, now_s(), what))


class PlainWriter(Writer):
    def append(self, stream: str) -> None:
        payload = self.payload()
        start_s = now_s()
        codes: list[str] = []
        while True:
            outcome, code, response = self.attempt(stream, payload, {})
            if outcome == ACKNOWLEDGED:
                break
            codes.append(code)
            if outcome == UNKNOWN or self.is_over(start_s, codes):
                break
            if response is not None and response.status != 503:
                self.strange(stream, f"an append was answered {response.status} {code}")
                break
            self.wait_again(response)
        if outcome == UNKNOWN and response is not None and response.status != 503:
            self.strange(stream, f"an append was answered {response.status} {code}")
        next_offset = None
        if outcome == ACKNOWLEDGED and response is not None:
            next_offset = int(response.header("stream-next-offset") or -1)
        told = (outcome, self.name, next_offset)
        made = Append(
            stream,
            payload,
            start_s,
            now_s(),
            *told,
            attempts_count=len(codes) + (outcome == ACKNOWLEDGED),
            codes=tuple(codes),
        )
        self.history.add(made)


class Producer(Writer):
    """One producer id for each stream; now and then it begins a new epoch, as a restarted client does."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self._next = {stream: (0, 0) for stream in self.streams}

    def append(self, stream: str) -> None:
        epoch, seq = self._next[stream]
        payload = self.payload()
        headers = {"Producer-Id": self.name, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}
        start_s = now_s()
        codes: list[str] = []
        unsure = False
        while True:
            outcome, code, response = self.attempt(stream, payload, headers)
            unsure = unsure or outcome == UNKNOWN
            if outcome == ACKNOWLEDGED:
                break
            codes.append(code)
            if self.is_over(start_s, codes):
                break
            if response is not None and response.status != 503:
                self.strange(stream, f"seq {seq} of epoch {epoch} was answered {response.status} {code} after {codes}")
                break
            self.wait_again(response)
        next_offset = None
        if outcome == ACKNOWLEDGED and response is not None and response.status == 200:
            next_offset = int(response.header("stream-next-offset") or -1)
        if outcome == REFUSED and unsure:
            outcome = UNKNOWN
        made = Append(
            *(stream, payload, start_s, now_s(), outcome, self.name, next_offset, self.name, epoch, seq),
            attempts_count=len(codes) + (outcome == ACKNOWLEDGED),
            codes=tuple(codes),
        )
        self.history.add(made)
        restarts = outcome != ACKNOWLEDGED or self.rng.random() < NEW_EPOCH_SHARE
        self._next[stream] = (epoch + 1, 0) if restarts else (epoch, seq + 1)
