"""What kind of request a head begins, as far as its body is taken differently.

Pure. Never judges whether the request may be made: `wire` and the handlers do.
"""

from __future__ import annotations


def is_encoded(headers: dict[bytes, bytes]) -> bool:
    codings = headers[b"content-encoding"].lower().split(b",")
    return any(coding.strip() not in (b"", b"identity") for coding in codings)


def is_snapshot(target: bytes) -> bool:
    """Below /v1/stream/ anything is a stream's name; elsewhere /{bucket}/{stream}/snapshot/{offset} is what it says."""
    path = target.partition(b"?")[0]
    return b"/snapshot/" in path and not path.startswith(b"/v1/")


def is_websocket(method: bytes, target: bytes, headers: dict[bytes, bytes]) -> bool:
    """A request for a WebSocket where there are some: /v0/ws and /v0/topics/{topic}/ws."""
    if method != b"GET" or b"websocket" not in headers[b"upgrade"].lower():
        return False
    path = target.partition(b"?")[0]
    return path.startswith(b"/v0/") and path.endswith(b"/ws")
