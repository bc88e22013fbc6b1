"""Deleted records at the S3P door: READ passes over them, also for those who waited."""

from __future__ import annotations

from headwater.doors.s3p.replies import records
from headwater.model.commands import DeleteRecords
from headwater.model.holes import Run
from tests.doors.s3p.client import append_request as append
from tests.doors.s3p.client import read_request
from tests.doors.s3p.hand import Door, played

KEY = "_default/s"
MS = 1_000_000


def test_a_read_has_no_trace_of_them() -> None:
    async def play() -> None:
        door = Door()
        door.create(KEY)
        peer = door.peer()
        peer.send(b"".join(append(b"s", payload) for payload in (b"a", b"b", b"c", b"d")))
        await door.synced()
        peer.taken()
        door.submit(DeleteRecords([Run(1, 2, 1, 2), Run(3, 4, 3, 4)]), KEY)
        for command, found in (
            (read_request(b"s"), [(MS, 0, b"a"), (MS, 2, b"c")]),
            (read_request(b"s", min_id=f"{MS}-1"), [(MS, 2, b"c")]),
            (read_request(b"s", min_id=f"{MS}-3"), []),
        ):
            peer.send(command)
            await door.settle()
            assert peer.taken() == records(found)

    played(play)
