"""What tests of the lake share: a proxy before S3, and stores that do not see each other.
It decides nothing about a test's content."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.lake.local import LocalStore
from headwater.lake.s3 import S3Store
from headwater.lake.store import MemoryStore, ObjectStore
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY, FaultProxy

_numbers = itertools.count()


def s3_store(endpoint: str, prefix: str | None = None, bucket: str = "lake", **options: object) -> S3Store:
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": "us-east-1"}
    name = f"test-{next(_numbers)}" if prefix is None else prefix
    return S3Store(bucket, name, endpoint=endpoint, **{**keys, **options})  # type: ignore[arg-type]


@pytest.fixture
def proxy(s3: S3) -> Iterator[FaultProxy]:
    with FaultProxy(s3.port).running() as proxy:
        yield proxy


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Every kind of store, for the contract."""
    return _make(request.param, request, tmp_path)


@pytest.fixture(params=["memory", "local"])
def either_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """One whose objects are fetched, and one whose files Arrow reads by itself."""
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path)


@pytest.fixture(params=["local", "s3"])
def lasting_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """The stores that others can open too."""
    return _make(request.param, request, tmp_path)


def _make(kind: str, request: pytest.FixtureRequest, folder: Path) -> ObjectStore:
    if kind == "memory":
        return MemoryStore()
    if kind == "local":
        return LocalStore(folder / "lake")
    return s3_store(request.getfixturevalue("s3").endpoint)
