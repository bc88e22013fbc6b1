"""How the clients of a chaos run ask a node, and what they may conclude from what comes back.

Owns the one retry policy: another node after a pause, for as long as the request certainly changed nothing, or may be
repeated. Never repairs an answer: what nothing explains is recorded as strange.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import TABLE
from tests.support.http import BadResponse, Connection, ConnectionEnded, Headers, Response

CONNECT_S_MAX = 1.0
ANSWER_S_MAX = 4.0
AGAIN_S = 0.1
NO_EFFECT = {row.code: row.no_effect for row in TABLE.values()}
RETRYABLE = {row.code for row in TABLE.values() if row.retryable}
KEPT_SHARE = 0.7
"""Of the requests that use a connection which the client has open already."""


@dataclass(frozen=True, slots=True)
class Address:
    name: str
    host: str
    port: int


class NotSent(Exception):
    """There is no connection: the request never left."""


class Unanswered(Exception):
    """It was sent, and no answer came. It may have taken effect."""


def now_s() -> float:
    return time.monotonic()


def code_of(response: Response) -> str:
    """The code of a refusal; the bare status when the body has none."""
    try:
        return str(response.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return str(response.status)


def is_certain(response: Response) -> bool:
    """Whether a refusal says that nothing was changed."""
    return NO_EFFECT.get(code_of(response), False)


class Asker:
    """The connections of one client. For one thread."""

    def __init__(self, addresses: Sequence[Address], rng: random.Random) -> None:
        self.addresses = addresses
        self.rng = rng
        self._kept: dict[str, Connection] = {}
        self._last: Address | None = None
        self._failed: Address | None = None

    def any(self) -> Address:
        """Any node; after `failed` any other."""
        self._last = self.rng.choice([one for one in self.addresses if one is not self._failed] or self.addresses)
        self._failed = None
        return self._last

    def failed(self) -> None:
        """The node that was asked last did not take it: the next one asked is another."""
        self._failed = self._last

    def connect(self, address: Address, answer_s_max: float = ANSWER_S_MAX) -> Connection:
        """Raises NotSent."""
        try:
            made = Connection(address.host, address.port, CONNECT_S_MAX)
        except OSError as error:
            raise NotSent(str(error)) from error
        made.socket.settimeout(answer_s_max)
        return made

    def ask(
        self,
        address: Address,
        method: str,
        path: str,
        headers: Headers = (),
        body: bytes | None = None,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> Response:
        """Raises NotSent, Unanswered."""
        kept = self._kept.pop(address.name, None)
        if kept is not None and self.rng.random() > KEPT_SHARE:
            kept.close()
            kept = None
        connection = kept or self.connect(address, answer_s_max)
        connection.socket.settimeout(answer_s_max)
        try:
            response = connection.request(method, path, headers, body)
        except (OSError, ConnectionEnded, BadResponse) as error:
            connection.close()
            raise Unanswered(f"{type(error).__name__}: {error}") from error
        except BaseException:
            connection.close()
            raise
        if response.closes:
            connection.close()
        else:
            self._kept[address.name] = connection
        return response

    def insist(
        self, method: str, path: str, headers: Headers = (), body: bytes | None = None, within_s: float = 60.0
    ) -> Response:
        """Asks one node after the other until one does not refuse for now. For what may be repeated."""
        deadline_s = now_s() + within_s
        while True:
            try:
                response = self.ask(self.any(), method, path, headers, body)
                if response.status < 500 and code_of(response) not in RETRYABLE:
                    return response
                last = f"{response.status} {response.body!r}"
            except (NotSent, Unanswered) as error:
                last = str(error)
            if now_s() > deadline_s:
                raise TimeoutError(f"{method} {path}: no node took it within {within_s} s; the last answer: {last}")
            time.sleep(AGAIN_S)

    def close(self) -> None:
        for connection in self._kept.values():
            connection.close()
        self._kept.clear()
