"""Names of buckets and streams, and how paths map to them.

Owns the identifier rules. Never looks a name up.

A key is `bucket/stream`: buckets hold no slash, so the first slash splits it without doubt.
"""

from __future__ import annotations

import re

from headwater.errors import BadName

DEFAULT_BUCKET = "_default"
BUCKETED_BYTES_MAX = 122
"""Extension spec 1.1: limit of a stream id, and of `bucket/stream` together, on the bucketed surface."""
RESERVED_STREAM = "streams"
SUBSCRIPTIONS = "__ds"

_BUCKET = re.compile(r"[a-z0-9_-]{4,64}")


def is_bucket(name: str) -> bool:
    """True when /{bucket} can name it. Streams below /v1/stream/ may be in others, which nobody can create by name."""
    return _BUCKET.fullmatch(name) is not None and not name.startswith("__")


def check_bucket(bucket: str) -> str:
    """Extension spec 1.1. Names that start with two underscores belong to the server's own routes."""
    if _BUCKET.fullmatch(bucket) is None:
        raise BadName("a bucket is 4 to 64 characters of a-z, 0-9, _ and -")
    if bucket.startswith("__"):
        raise BadName("bucket names that start with __ are reserved")
    return bucket


def flat_key(path: str, bytes_max: int) -> str:
    """The key for a path below /v1/stream/ (already percent-decoded): split at the first slash."""
    if not path:
        raise BadName("the stream path is empty")
    if "\0" in path:
        raise BadName("a stream path holds no NUL")
    size = len(path) if path.isascii() else len(path.encode())
    if size > bytes_max:
        raise BadName(f"a stream path is at most {bytes_max} bytes")
    head, slash, rest = path.partition("/")
    if head == SUBSCRIPTIONS:
        raise BadName("__ds is reserved for subscriptions")
    if not slash:
        if head == "..":
            raise BadName("'..' is not a name")
        return f"{DEFAULT_BUCKET}/{head}"
    if not head or not rest:
        raise BadName("a stream path has no empty first or last part")
    if ".." in path and ".." in path.split("/"):
        raise BadName("'..' is not a name")
    return path


def bucketed_key(bucket: str, stream: str) -> str:
    """The key for /{bucket}/{stream} and /ds/{bucket}/{stream}. Extension spec 1.1."""
    check_bucket(bucket)
    if not stream:
        raise BadName("the stream id is empty")
    if stream == RESERVED_STREAM:
        raise BadName("'streams' is reserved for the bucket's listing")
    if "/" in stream or "\0" in stream or ".." in stream:
        raise BadName("a stream id holds no '/', NUL or '..'")
    key = f"{bucket}/{stream}"
    if len(key.encode()) > BUCKETED_BYTES_MAX:
        raise BadName(f"bucket and stream id together are at most {BUCKETED_BYTES_MAX} bytes")
    return key


def bucket_of(key: str) -> str:
    return key[: key.index("/")]


def stream_of(key: str) -> str:
    return key[key.index("/") + 1 :]
