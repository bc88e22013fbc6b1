"""Server-sent events out of the chunks of a response.

Pure: it needs no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SseEvent:
    name: str
    data: bytes


def sse_events(chunks: Iterable[bytes]) -> Iterator[SseEvent]:
    """The events of an event stream, however it is cut into chunks; each comes with its last byte.

    Lines end in LF, CR or CRLF; comments, ids and retries are passed over; an event without data is none;
    what the stream leaves unfinished is dropped, as the format demands."""
    name, data = "", list[bytes]()
    for line in _sse_lines(chunks):
        if not line:
            if data:
                yield SseEvent(name or "message", b"\n".join(data))
            name, data = "", []
            continue
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value.decode("utf-8", "replace")


def _sse_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []
    after_cr, at_start = False, True
    for chunk in chunks:
        # A CR ends its line at once; a LF that follows it, perhaps a chunk later, belongs to the same end.
        if after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            after_cr = False
        if not chunk:
            continue
        after_cr = chunk.endswith(b"\r")
        lines = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines[:-1]:
            whole = b"".join([*parts, line])
            parts.clear()
            yield whole.removeprefix(b"\xef\xbb\xbf") if at_start else whole
            at_start = False
        if lines[-1]:
            parts.append(lines[-1])
