"""Server-Sent Events: records into events, once per event however many follow.

Owns the text format and its chunk framing. Never reads a stream and never writes to a socket.
"""

from __future__ import annotations

from binascii import b2a_base64

from headwater.engine.read_plan import Slice
from headwater.model.json_mode import array

KEEP_ALIVE = b"2\r\n:\n\r\n"
"""A comment line as a chunk."""
LAST_CHUNK = b"0\r\n\r\n"


def is_text(media: str) -> bool:
    """Content types whose bytes go out as they are; everything else is base64."""
    return media.startswith("text/") or media == "application/json"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def content(chunks: bytes) -> bytes:
    """What chunks hold: HTTP/1.0 has none, there the end of the connection ends the body."""
    found: list[bytes] = []
    while chunks:
        line, _, chunks = chunks.partition(b"\r\n")
        size = int(line, 16)
        found.append(chunks[:size])
        chunks = chunks[size + 2 :]
    return b"".join(found)


def headers(version: str) -> list[tuple[str, str]]:
    """Those of every answer that is a stream of events."""
    plain = [("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no")]
    return plain if version == "1.0" else [*plain, ("Transfer-Encoding", "chunked")]


def data_event(part: Slice) -> bytes:
    stream = part.stream
    if stream.is_json:
        body = array(part.payloads)
    elif is_text(stream.media):
        body = b"".join(part.payloads)
    else:
        return b"event: data\ndata:" + b2a_base64(b"".join(part.payloads), newline=False) + b"\n\n"
    return b"event: data\ndata:" + lines(body) + b"\n\n"


def lines(body: bytes) -> bytes:
    """Every line of the body after a `data:` of its own: no payload can end or start an event."""
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\n" in body:
        body = body.replace(b"\n", b"\ndata:")
    # A reader strips one space after the colon: a line that begins with one needs another in front of it.
    if body.startswith(b" ") or b"\ndata: " in body:
        body = body.replace(b"\ndata: ", b"\ndata:  ")
        if body.startswith(b" "):
            body = b" " + body
    return body


def control_event(end: int, cursor: int, up_to_date: bool, closed: bool) -> bytes:
    if closed:
        return b'event: control\ndata:{"streamNextOffset":"%020d","upToDate":true,"streamClosed":true}\n\n' % end
    tail = b',"upToDate":true}\n\n' if up_to_date else b"}\n\n"
    return b'event: control\ndata:{"streamNextOffset":"%020d","streamCursor":"%d"%b' % (end, cursor, tail)


def events(part: Slice, cursor: int) -> bytes:
    """A chunk with the data of `part`, if any, and its control event."""
    control = control_event(part.end, cursor, part.up_to_date, part.closed)
    return chunk(data_event(part) + control if part.payloads else control)
