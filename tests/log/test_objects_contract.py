"""The log in objects keeps what every log promises, in a directory and in a real S3."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headwater.log.medium import Entries, Unavailable
from headwater.log.object_places import DirectoryPlace, S3Place, probe
from headwater.log.objects import ObjectEntries
from headwater.log.quorum import QuorumLog
from headwater.log.quorum_entries import Claim
from tests.log import numbered
from tests.log.contract import Running
from tests.log.quorum_contract import QuorumContract
from tests.support.s3 import ACCESS_KEY, READER_KEY, READER_SECRET, S3, SECRET_KEY, Fault, FaultProxy

_folders = count()


class TestInADirectory(QuorumContract):
    async def medium(self, place: Path) -> Entries:
        return ObjectEntries(DirectoryPlace(place), "log/3")

    async def destroy(self, place: Path) -> None:
        shutil.rmtree(place / "log")


def s3_place(endpoint: str, **options: Any) -> S3Place:
    keys = {"region": "us-east-1", "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    return S3Place("logs", f"test-{next(_folders)}", endpoint=endpoint, **{**keys, **options})


class TestInS3(QuorumContract):
    @pytest.fixture
    def place(self, s3: S3) -> S3Place:
        return s3_place(s3.endpoint)

    async def medium(self, place: Any) -> Entries:
        return ObjectEntries(place, "log/3")

    async def destroy(self, place: Any) -> None:
        await place.delete(await place.keys("log/3"))


# ---- a real S3 behind a proxy that misbehaves -----------------------------------------------------------------------


LOST_ANSWERS = {
    "cut before": Fault("PUT", "/log/", status=None),
    "cut after": Fault("PUT", "/log/", status=None, after_forwarding=True),
    "500 before": Fault("PUT", "/log/", status=500),
    "500 after": Fault("PUT", "/log/", status=500, after_forwarding=True),
    "429": Fault("PUT", "/log/", status=429),
    "412 after": Fault("PUT", "/log/", status=412, after_forwarding=True),
}


@pytest.mark.parametrize("fault", LOST_ANSWERS.values(), ids=LOST_ANSWERS)
def test_what_became_of_a_put_is_found_out_by_reading_it_back(s3: S3, fault: Fault) -> None:
    events = numbered(12)

    async def body(proxy: FaultProxy) -> None:
        place = s3_place(proxy.endpoint)
        log = QuorumLog(ObjectEntries(place, "log/3"))
        await log.load()
        proxy.faults.append(replace(fault))
        await log.claim(Claim("a", ""))
        running = Running(log)
        for event in events:
            proxy.faults.append(replace(fault))
            await running.put(event)
        assert log.failure is None
        await log.closed()
        assert not any(fault.times for fault in proxy.faults)
        again = QuorumLog(ObjectEntries(place, "log/3"))
        await again.load()
        assert [event for _, event in again.replay()] == events

    with FaultProxy(s3.port).running() as proxy:
        asyncio.run(body(proxy))


def test_a_store_that_refuses_is_known_to_have_stored_nothing(s3: S3) -> None:
    async def body() -> None:
        place = s3_place(s3.endpoint, access_key_id=READER_KEY, secret_access_key=READER_SECRET)
        log = QuorumLog(ObjectEntries(place, "log/3"), patience_ms=0)
        await log.load()
        with pytest.raises(Unavailable):
            await log.claim(Claim("a", ""))

    asyncio.run(body())


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_the_probe_passes_where_a_log_can_be_kept(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async def body() -> None:
        place = DirectoryPlace(tmp_path) if kind == "directory" else s3_place(request.getfixturevalue("s3").endpoint)
        await probe(place, "token")
        assert await place.keys("_probe") == []

    asyncio.run(body())
