"""Pages of the streams that patterns take in: whatever the patterns and the streams, each match once and in order.
A slow model looks at every stream; pages are two streams long."""

from __future__ import annotations

import asyncio
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.checkpoint import checkpoint
from headwater.model import glob
from headwater.model.commands import Create, Delete
from headwater.model.subscriptions import key_of
from headwater.subscriptions import local_streams
from headwater.subscriptions.local_streams import LocalStreams
from tests.support.processes import Processes

segments = st.sampled_from(["a", "a0", "b", "a-b"])
paths = st.lists(segments, min_size=1, max_size=3).map("/".join)
patterns = st.lists(st.one_of(segments, st.sampled_from(["*", "**"])), min_size=1, max_size=3).map("/".join)


async def all_pages(streams: LocalStreams, wanted: list[str]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    after: str | None = ""
    while after is not None:
        rows, after = streams.page(wanted, after, sorted(streams._engine.owned))
        found += [(path, tail) for path, _, tail, _ in rows]
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.sets(paths, max_size=12), st.sets(paths, max_size=12), st.sets(paths, max_size=4), st.lists(patterns, max_size=4)
)
def test_pages_hold_every_match_once_in_the_order_of_keys(
    old: set[str], new: set[str], gone: set[str], wanted: list[str]
) -> None:
    async def body() -> None:
        processes = Processes(lambda process: LocalStreams(process.engine), count=1, groups_count=2)
        process = processes.start(0)
        for path in old:
            await processes.submit(key_of(path), Create(key_of(path), "text/plain", [b"one"]))
        for owned in process.engine.owned.values():
            await checkpoint(owned.group)  # these are in the catalog, and the others are not yet
            owned.reads.close()
        for path in new - old:
            await processes.submit(key_of(path), Create(key_of(path), "text/plain", [b"three"]))
        for path in gone & (old | new):
            await processes.submit(key_of(path), Delete())
        there = {path: 3 for path in old} | {path: 5 for path in new - old}
        expected = [
            (path, there[path])
            for path in sorted(there.keys() - gone, key=key_of)
            if any(glob.matches(pattern, path) for pattern in wanted)
        ]
        with mock.patch.object(local_streams, "SLICE_STREAMS", 2):
            assert await all_pages(process.part, wanted) == expected

    asyncio.run(body())
