"""The object store that a setting names.

Owns the reading of its URL. Never connects: `probe` does.
"""

from __future__ import annotations

import os
from urllib.parse import quote, unquote, urlsplit

from headwater.lake.local import LocalStore
from headwater.lake.store import MemoryStore, ObjectStore, StoreRefused


def open_store(
    url: str,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
) -> ObjectStore:
    """The store a setting names: `file:///path`, a plain path, `memory:` or `s3://bucket/prefix`.

    The options are S3's alone; what is not given there comes from the environment's `AWS_…` or the machine's role.
    Opens nothing yet: `probe` does. Raises StoreRefused for what can never work.
    """
    parts = urlsplit(url if "://" in url or url == "memory:" else f"file://{quote(os.path.abspath(url))}")
    if parts.scheme == "s3":
        # Imported here: a node without S3 does not pay for loading its client.
        from headwater.lake.s3 import S3Store

        return S3Store(
            parts.netloc,
            parts.path,
            endpoint=endpoint,
            region=region,
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            session_token=session_token,
        )
    if any((endpoint, region, access_key_id, secret_access_key, session_token)):
        raise StoreRefused(f"endpoint, region and credentials are for s3://… alone, and the lake is {url!r}")
    if parts.scheme == "memory":
        return MemoryStore()
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return LocalStore(unquote(parts.path))
    raise StoreRefused(f"{url!r} names no lake: use a directory, file:///path, memory: or s3://bucket/prefix")
