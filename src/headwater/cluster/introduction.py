"""How a connection between nodes begins: who it is for, which door it wants, and a proof that it knows the secret.

Owns these bytes and the check. Sans-IO, except for `Introducing`, which is the side that connects. Never seen again on
the connection: after it, the bytes are those of the door. What a request costs does not change.

    GET /__headwater/members HTTP/1.1           HTTP/1.1 101 Switching Protocols
    upgrade: headwater-<door>
    headwater-to: <id of the node>              or, for whatever is not right, what anybody gets for
    headwater-proof: <hex>                      a page that is not there: HTTP/1.1 404 Not Found

The proof is made from the secret for one node and one door: whoever listens at an address where that node was before
learns nothing that another node would accept.
"""

from __future__ import annotations

import asyncio
import hmac

DOOR_PREFIX = b"headwater-"
BYTES_MAX = 2048
ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: headwater\r\n\r\n"
REFUSED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_REQUEST = b"GET /__headwater/members HTTP/1.1\r\n"
_NO_PROOF = b"-"


def introduction(secret: bytes, node_id: str, door: str) -> bytes:
    lines = (
        b"host: " + node_id.encode(),
        b"connection: upgrade",
        b"upgrade: " + DOOR_PREFIX + door.encode(),
        b"headwater-to: " + node_id.encode(),
        b"headwater-proof: " + _proof(secret, node_id, door),
    )
    return _REQUEST + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def wanted_door(head: bytes, secret: bytes, node_id: str) -> str | None:
    """The door that a whole introduction asks for; None when it is not for this node, or does not know the secret."""
    headers = dict(line.partition(b": ")[::2] for line in head.split(b"\r\n")[1:])
    door = headers.get(b"upgrade", b"").removeprefix(DOOR_PREFIX).decode("latin-1")
    proof = headers.get(b"headwater-proof", _NO_PROOF)
    is_proven = hmac.compare_digest(proof, _proof(secret, node_id, door))
    is_meant = headers.get(b"headwater-to") == node_id.encode()
    return door if is_proven and is_meant and head.startswith(_REQUEST) else None


def _proof(secret: bytes, node_id: str, door: str) -> bytes:
    said = f"headwater members 1\n{node_id}\n{door}".encode()
    return hmac.digest(secret, said, "sha256").hex().encode()


class Introducing(asyncio.Protocol):
    """Introduces a connection. `done` ends when the other side lets it in, or with ConnectionRefusedError; `hand_over`
    then gives the connection to `protocol`, which writes at once. Whoever waited for `done` and gave up may therefore
    say that nothing was sent."""

    def __init__(self, introduced: bytes, protocol: asyncio.Protocol) -> None:
        self._introduced = introduced
        self._protocol = protocol
        self._transport: asyncio.Transport | None = None
        self._answer = b""
        self._lost = False
        self.was_refused = False
        """Somebody is there, and said no."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hand_over(self) -> None:
        """After `done`. Raises ConnectionRefusedError when the connection has ended since; then nothing was sent."""
        transport = self._transport
        if transport is None or self._lost or transport.is_closing():
            raise ConnectionRefusedError("it closed the connection")
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
        if rest := self._answer[len(ACCEPTED) :]:
            self._protocol.data_received(rest)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not asyncio's by class
        self._transport.write(self._introduced)  # type: ignore[union-attr]

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self._transport is None or self.done.done():
            return
        if self._answer.startswith(ACCEPTED):
            self.done.set_result(None)
        elif not ACCEPTED.startswith(self._answer):
            self.was_refused = True
            self._refuse("it does not know this cluster's secret, or is another node than the one that was meant")
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._refuse("it closed the connection")

    def _refuse(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionRefusedError(why))
