"""A server that plays a script: per connection, the raw answers to give to one request after the other.
Owns what was received; never answers beyond its script, and ends each connection after its last line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Received:
    """One request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Script:
    url: str
    received: list[Received] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return [request.line for request in self.received]


def answer(status: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b"") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*head, "", ""]).encode() + body


def sse(*events: bytes, extra: str = "", whole: bool = True) -> bytes:
    """An SSE response in chunks; one that is not `whole` breaks off without its last chunk."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n{extra}\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return head.encode() + chunks + (b"0\r\n\r\n" if whole else b"")


@contextmanager
def scripted(*connections: Sequence[bytes], body_bytes_read: int | None = None) -> Iterator[Script]:
    """Play one sequence of answers per connection; an empty one takes a request and hangs up on it.

    `body_bytes_read`: how much is read of each body before it is answered; all of it unless told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        script = Script(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=_play, args=(listener, script, connections, body_bytes_read), daemon=True)
        thread.start()
        try:
            yield script
        finally:
            # Wakes an accept that no client came for; a script that was played to its end has closed already.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)


def _play(
    listener: socket.socket, script: Script, connections: Sequence[Sequence[bytes]], body_bytes_read: int | None
) -> None:
    for answers in connections:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, connection.makefile("rb") as stream:
            connection.settimeout(30)
            for reply in answers or (b"",):
                request = _request(stream, body_bytes_read)
                if request is None:
                    break
                script.received.append(request)
                connection.sendall(reply)
    # Nothing else is answered: a client beyond the script finds nobody there.
    listener.close()


def _request(stream, body_bytes_read: int | None) -> Received | None:  # type: ignore[no-untyped-def]
    line = stream.readline().decode().strip()
    if not line:
        return None
    headers = {}
    while header := stream.readline().decode().strip():
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    return Received(line, headers, stream.read(length if body_bytes_read is None else body_bytes_read))
