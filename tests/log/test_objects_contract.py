"""The log in objects keeps what every log promises, in a directory and in a real S3."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headwater.log.medium import Entries
from headwater.log.object_places import DirectoryPlace, S3Place
from headwater.log.objects import ObjectEntries
from tests.log.quorum_contract import QuorumContract
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY, seaweed, weed_binary

_folders = count()


class TestInADirectory(QuorumContract):
    async def medium(self, place: Path) -> Entries:
        return ObjectEntries(DirectoryPlace(place), "log/3")

    async def destroy(self, place: Path) -> None:
        shutil.rmtree(place / "log")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    if weed_binary() is None:
        pytest.skip("SeaweedFS is not installed")
    with seaweed(tmp_path_factory.mktemp("weed")) as running:
        running.make_bucket("logs")
        yield running


class TestInS3(QuorumContract):
    @pytest.fixture
    def place(self, server: S3) -> S3Place:
        return S3Place(
            "logs",
            f"test-{next(_folders)}",
            endpoint=server.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
        )

    async def medium(self, place: Any) -> Entries:
        return ObjectEntries(place, "log/3")

    async def destroy(self, place: Any) -> None:
        await place.delete(await place.keys("log/3"))
