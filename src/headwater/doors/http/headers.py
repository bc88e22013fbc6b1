"""Request headers and query parameters into values, with the refusals they can earn.

Owns their syntax. Never looks at a stream.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from headwater.errors import BadHeader, BadName, BadQuery
from headwater.model import content_types, moments, names, offsets
from headwater.model.commands import Durability, Fork, Producer, Retention
from headwater.model.producers import NUMBER_MAX

_TTL = re.compile(rb"0|[1-9][0-9]{0,11}")
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,15}")
_DURABILITY = {b"fsync": Durability.FSYNC, b"disk": Durability.DISK, b"memory": Durability.MEMORY}

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
FLAT_PREFIX = "/v1/stream/"

APPEND_ONLY = ("Producer-Id", "Producer-Epoch", "Producer-Seq", "Stream-Seq", "If-Match")
"""They judge one append."""

Headers = dict[bytes, bytes]


def text(name: str, value: bytes, bytes_max: int) -> str:
    if len(value) > bytes_max:
        raise BadHeader(name, f"at most {bytes_max} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadHeader(name, "not valid UTF-8") from None


def number(name: str, value: bytes) -> int:
    if _NUMBER.fullmatch(value) is None or (parsed := int(value)) > NUMBER_MAX:
        raise BadHeader(name, "expected an integer from 0 to 2^53-1, without sign or leading zeros")
    return parsed


def producer(headers: Headers, id_bytes_max: int) -> Producer | None:
    name = headers.get(b"producer-id")
    epoch = headers.get(b"producer-epoch")
    seq = headers.get(b"producer-seq")
    if name is None and epoch is None and seq is None:
        return None
    if name is None or epoch is None or seq is None:
        raise BadHeader("Producer-Id", "Producer-Id, Producer-Epoch and Producer-Seq go together")
    if not name:
        raise BadHeader("Producer-Id", "it is empty")
    return Producer(
        text("Producer-Id", name, id_bytes_max), number("Producer-Epoch", epoch), number("Producer-Seq", seq)
    )


def refuse(headers: Headers, names: tuple[str, ...], reason: str) -> None:
    """Raises BadHeader for a header that would change what the request means, and that it cannot have."""
    for name in names:
        if name.lower().encode() in headers:
            raise BadHeader(name, reason)


def content_type(value: bytes, bytes_max: int) -> str:
    """The content type, lower case and without parameters. Raises BadContentType."""
    return content_types.check(value.decode("latin-1"), bytes_max)


def flag(headers: Headers, name: bytes) -> bool:
    """A boolean header: only `true` counts."""
    value = headers.get(name)
    return value is not None and value.lower() == b"true"


def expiry(headers: Headers) -> tuple[int | None, int | None]:
    """(ttl_ms, expires_ms), at most one of them set."""
    ttl = headers.get(b"stream-ttl")
    expires = headers.get(b"stream-expires-at")
    if ttl is not None and expires is not None:
        raise BadHeader("Stream-TTL", "not together with Stream-Expires-At")
    if ttl is not None:
        if _TTL.fullmatch(ttl) is None:
            raise BadHeader("Stream-TTL", "expected whole seconds, at most 12 digits without sign or leading zeros")
        return int(ttl) * 1000, None
    if expires is not None:
        at_ms = moments.parse(expires.decode("latin-1"))
        if at_ms is None:
            why = "expected an RFC 3339 timestamp from 1970 to 9999, such as 2030-01-31T12:00:00Z"
            raise BadHeader("Stream-Expires-At", why)
        return None, at_ms
    return None, None


def retention(headers: Headers) -> Retention | None:
    age = headers.get(b"stream-retention-age")
    size = headers.get(b"stream-retention-bytes")
    records = headers.get(b"stream-retention-records")
    if age is None and size is None and records is None:
        return None
    found = [
        None if value is None else number(name, value)
        for name, value in (
            ("Stream-Retention-Age", age),
            ("Stream-Retention-Bytes", size),
            ("Stream-Retention-Records", records),
        )
    ]
    if found[2] == 0:
        raise BadHeader("Stream-Retention-Records", "keep at least one record")
    return Retention(None if found[0] is None else found[0] * 1000, found[1], found[2])


def fork(headers: Headers, name_bytes_max: int) -> Fork | None:
    source = headers.get(b"stream-forked-from")
    offset = headers.get(b"stream-fork-offset")
    sub = headers.get(b"stream-fork-sub-offset")
    if source is None:
        if offset is not None or sub is not None:
            raise BadHeader("Stream-Fork-Offset", "a fork point needs Stream-Forked-From")
        return None
    try:
        at = None if offset is None else offsets.parse(offset.decode("latin-1"))
        key = stream_key(path_text(source), name_bytes_max)
    except BadQuery as bad:
        raise BadHeader("Stream-Fork-Offset", bad.reason) from None
    except BadName as bad:
        raise BadHeader("Stream-Forked-From", bad.reason) from None
    if at is not None and at < 0:
        at = 0 if at == offsets.START else None
    return Fork(key, at, 0 if sub is None else number("Stream-Fork-Sub-Offset", sub))


def stream_key(path: str, name_bytes_max: int) -> str:
    """The key of a stream named by any of its paths: /v1/stream/..., /ds/bucket/stream or /bucket/stream."""
    if path.startswith(FLAT_PREFIX):
        return names.flat_key(path[len(FLAT_PREFIX) :], name_bytes_max)
    # No bucket is called `ds`: it would be too short.
    bucket, slash, stream = path.removeprefix("/ds/").removeprefix("/").partition("/")
    if not slash:
        raise BadName("expected the path of a stream, such as /v1/stream/name")
    return names.bucketed_key(bucket, stream)


def durability(headers: Headers) -> Durability | None:
    value = headers.get(b"stream-durability")
    if value is None:
        return None
    found = _DURABILITY.get(value.lower())
    if found is None:
        raise BadHeader("Stream-Durability", "expected fsync, disk or memory")
    return found


def path_text(path: bytes) -> str:
    """A percent-decoded path. Raises BadName when it is not UTF-8."""
    if b"%" in path and _BAD_ESCAPE.search(path) is not None:
        raise BadName("a % in a path is followed by two hexadecimal digits")
    raw = unquote_to_bytes(path) if b"%" in path else path
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadName("the path is not valid UTF-8") from None


def query(raw: bytes, single: tuple[str, ...]) -> dict[str, str]:
    """Query parameters; those in `single` may stand only once. Unknown ones are kept and ignored by the callers."""
    found: dict[str, str] = {}
    if not raw:
        return found
    for part in raw.split(b"&"):
        name_raw, _, value_raw = part.partition(b"=")
        try:
            name = unquote_to_bytes(name_raw).decode()
            value = unquote_to_bytes(value_raw.replace(b"+", b" ")).decode()
        except UnicodeDecodeError:
            raise BadQuery("?", "not valid UTF-8") from None
        if name in found and name in single:
            raise BadQuery(name, "given more than once")
        found[name] = value
    return found


def whole(wanted: dict[str, str], name: str, default: int, high: int) -> int:
    """A query parameter that is a whole number up to `high`."""
    text = wanted.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > high:
        raise BadQuery(name, f"expected a whole number up to {high}")
    return int(text)
