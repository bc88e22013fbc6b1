"""The PyPI client, sync and async, against a real node: writing, reading, following, and coming back after a kill.
It has no producer of its own; retries are guarded by its `seq`, as its documentation has it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.proxy import Proxy, proxying
from tests.support.node import Node

durable_streams = pytest.importorskip("durable_streams")

FLAGS = ("--long-poll-timeout-ms", "300", "--checkpoint-interval-ms", "200")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), flags=FLAGS) as node:
        yield node
        assert "Traceback" not in node.stderr(), node.output()


@pytest.fixture
def line(node: Node) -> Iterator[Proxy]:
    with proxying(node.port) as proxy:
        yield proxy


def kill_and_return(node: Node, line: Proxy) -> None:
    line.target = None
    node.kill()
    line.drop_all()
    node.start()
    line.target = node.port


# --- sync ---------------------------------------------------------------------------------------------------


def test_what_is_appended_is_read_back(node: Node) -> None:
    url = f"{node.url}/v1/stream/py/events"
    with durable_streams.DurableStream.create(url, content_type="application/json", ttl_seconds=3600) as handle:
        for n in range(20):
            assert handle.append({"n": n}).next_offset
        head = handle.head()
        assert (head.exists, head.content_type) == (True, "application/json")
        with handle.stream(live=False) as response:
            assert response.read_json() == [{"n": n} for n in range(20)]
        with durable_streams.stream(url, offset=head.offset, live=False) as response:
            assert response.read_json() == []
        handle.delete()
    with pytest.raises(durable_streams.StreamNotFoundError):
        durable_streams.DurableStream.connect(url)


def test_bytes_and_text_come_back_as_they_went(node: Node) -> None:
    blob = bytes(range(256)) * 10
    with durable_streams.DurableStream.create(f"{node.url}/v1/stream/py/bytes", content_type="image/png") as handle:
        handle.append(blob)
        with handle.stream(live=False) as response:
            assert response.read_bytes() == blob
    with durable_streams.DurableStream.create(f"{node.url}/v1/stream/py/text", content_type="text/plain") as handle:
        handle.append("grün ")
        handle.append("🙂")
        with handle.stream(live=False) as response:
            assert response.read_text() == "grün 🙂"


def test_many_threads_share_a_handle(node: Node) -> None:
    url = f"{node.url}/v1/stream/py/threads"
    with durable_streams.DurableStream.create(url, content_type="application/json") as handle:
        threads = [threading.Thread(target=lambda n=n: handle.append({"n": n})) for n in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with handle.stream(live=False) as response:
            assert sorted(one["n"] for one in response.read_json()) == list(range(40))


def test_refusals_are_the_errors_the_client_knows(node: Node) -> None:
    url = f"{node.url}/v1/stream/py/refused"
    with durable_streams.DurableStream.create(url, content_type="text/plain") as handle:
        handle.append("a", seq="002")
        with pytest.raises(durable_streams.SeqConflictError):
            handle.append("a", seq="001")
        with pytest.raises(durable_streams.StreamExistsError):
            durable_streams.DurableStream.create(url, content_type="application/json")
        assert node.request("PUT", "/py-bucket").status == 201
        path = "/py-bucket/snapped"
        assert node.request("PUT", path, {"Content-Type": "text/plain"}, b"abc").status == 201
        assert node.request("PUT", f"{path}/snapshot/{3:020d}", {}, b"state").status == 204
        with pytest.raises(durable_streams.RetentionGoneError):
            durable_streams.stream(f"{node.url}{path}", live=False).read_text()


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_live_reader_gets_what_is_written_meanwhile(node: Node, live: str) -> None:
    url = f"{node.url}/v1/stream/py/live-{live}"
    with durable_streams.DurableStream.create(url, content_type="application/json") as handle:
        handle.append({"n": 0})
        seen = []
        with durable_streams.stream(url, offset="-1", live=live) as response:
            for item in response.iter_json():
                seen.append(item["n"])
                if item["n"] == 9:
                    break
                handle.append({"n": item["n"] + 1})
        assert seen == list(range(10))


def test_a_reader_comes_back_after_a_kill_with_its_offset(node: Node, line: Proxy) -> None:
    url = f"{line.url}/v1/stream/py/killed"
    seen: list[int] = []
    offset = "-1"
    with durable_streams.DurableStream.create(url, content_type="application/json") as handle:
        for turn in range(3):
            for n in range(turn * 5, turn * 5 + 5):
                handle.append({"n": n}, seq=f"{n:06d}")
            with durable_streams.stream(url, offset=offset, live="long-poll") as response:
                for event in response.iter_events(mode="json"):
                    seen += [one["n"] for one in event.data]
                    offset = event.next_offset
                    if seen and seen[-1] == turn * 5 + 4:
                        break
            kill_and_return(node, line)
            # A retry of what was acknowledged before the kill is recognised after it.
            with pytest.raises(durable_streams.SeqConflictError):
                handle.append({"n": -1}, seq=f"{turn * 5 + 4:06d}")
    assert seen == list(range(15))


# --- async --------------------------------------------------------------------------------------------------


def test_async_appends_are_batched_and_lose_nothing(node: Node) -> None:
    async def act() -> list[int]:
        url = f"{node.url}/v1/stream/py/async"
        handle = await durable_streams.AsyncDurableStream.create(url, content_type="application/json")
        async with handle:
            await asyncio.gather(*(handle.append({"n": n}) for n in range(100)))
            async with handle.stream(live=False) as response:
                return [one["n"] for one in await response.read_json()]

    assert sorted(asyncio.run(act())) == list(range(100))


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_async_readers_follow_an_async_writer(node: Node, live: str) -> None:
    async def follow(url: str, last: int) -> list[int]:
        seen: list[int] = []
        async with durable_streams.astream(url, offset="-1", live=live) as response:
            async for item in response.iter_json():
                seen.append(item["n"])
                if item["n"] == last:
                    break
        return seen

    async def act() -> list[list[int]]:
        url = f"{node.url}/v1/stream/py/async-{live}"
        handle = await durable_streams.AsyncDurableStream.create(url, content_type="application/json")
        async with handle:
            readers = [asyncio.create_task(follow(url, 29)) for _ in range(5)]
            for n in range(30):
                await handle.append({"n": n})
            return await asyncio.gather(*readers)

    assert asyncio.run(act()) == [list(range(30))] * 5


def test_an_async_reader_comes_back_after_a_kill_with_its_offset(tmp_path: Path) -> None:
    async def act(node: Node, line: Proxy) -> list[int]:
        url = f"{line.url}/v1/stream/killed"
        seen: list[int] = []
        offset = "-1"
        handle = await durable_streams.AsyncDurableStream.create(url, content_type="application/json")
        async with handle:
            for turn in range(2):
                await asyncio.gather(*(handle.append({"n": turn * 10 + n}) for n in range(10)))
                async with durable_streams.astream(url, offset=offset, live="sse") as response:
                    async for event in response.iter_events(mode="json"):
                        seen += [one["n"] for one in event.data or ()]
                        offset = event.next_offset
                        if len(seen) == turn * 10 + 10:
                            break
                await asyncio.to_thread(kill_and_return, node, line)
        return seen

    with Node.started(tmp_path, flags=FLAGS) as node, proxying(node.port) as line:
        assert sorted(asyncio.run(act(node, line))) == list(range(20))
