"""Extension spec §1.4: pages of a bucket's streams, on both sides of a checkpoint and across it.
A node that never checkpoints stands beside the one that always does: both must list the same."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.doors.http.extensions.surface import (
    BUCKETED,
    JSON,
    TEXT,
    Stream,
    all_pages,
    await_checkpoint,
    fresh_name,
    listing,
    make_bucket,
    make_stream,
    make_streams,
    names_of,
    stream_count,
)
from tests.support.http import EventStream
from tests.support.node import Node

# Bytewise order differs from the order of UTF-16 and of any locale in several places here.
AWKWARD = ["", "!", "-", "0", "10", "2", "A", "Z", "_", "a", "aa", "ab", "b", "z", "~"]
AWKWARD += ["é", "ｚ", "\uffff", "🙂", "\U0010ffff"]


@pytest.fixture(scope="module")
def idle_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Takes no checkpoint while a test runs: every stream in it is listed from memory alone."""
    flags = ("--checkpoint-interval-ms", "3600000")
    with Node.started(tmp_path_factory.mktemp("idle"), flags=flags) as node:
        yield node


@pytest.fixture(params=["after a checkpoint", "before a checkpoint"])
def settled(request: pytest.FixtureRequest) -> bool:
    return request.param == "after a checkpoint"


@pytest.fixture
def lister(node: Node, idle_node: Node, settled: bool) -> Node:
    return node if settled else idle_node


_filled: dict[tuple[int, tuple[str, ...]], str] = {}


def filled(node: Node, names: list[str], settled: bool) -> str:
    """A bucket with these streams, in the catalog or only in memory; the same one for all tests that ask for them."""
    bucket = _filled.get((node.port, tuple(names)))
    if bucket is not None:
        return bucket
    bucket = _filled[node.port, tuple(names)] = make_bucket(node)
    shuffled = random.Random(7).sample(names, len(names))
    make_streams(node, bucket, shuffled)
    if settled:
        await_checkpoint(node)
    return bucket


def bytewise(names: list[str]) -> list[str]:
    return sorted(names, key=str.encode)


# --- the shape ----------------------------------------------------------------------------------------------


def test_the_body_has_the_fields_of_the_spec__section_1_4(node: Node, surface: str) -> None:
    bucket = make_bucket(node)
    stream = make_stream(node, bucket, "user-1", surface=surface)
    stream.append(b"forty-two")
    make_stream(node, bucket, "user-2", JSON, surface)
    make_stream(node, bucket, "other", surface=surface)
    with node.connect() as connection:
        page = listing(connection, bucket, surface, prefix="user-", limit=1)
        assert (page["bucket_id"], page["prefix"], page["stream_count"]) == (bucket, "user-", 1)
        assert (page["next_cursor"], page["has_more"]) == ("user-1", True)
        (one,) = page["streams"]
        assert (one["stream_id"], one["status"], one["content_type"]) == ("user-1", "Open", "text/plain")
        assert one["tail_offset"] == 9
        assert isinstance(one["created_at_ms"], int) and isinstance(one["last_write_at_ms"], int)
        assert 0 < one["created_at_ms"] <= one["last_write_at_ms"]
        last = listing(connection, bucket, surface, prefix="user-", after=page["next_cursor"])
        assert (names_of(last), last["has_more"], last["next_cursor"]) == (["user-2"], False, None)
        assert last["streams"][0]["content_type"] == "application/json"


def test_an_empty_bucket_lists_nothing__section_1_4(node: Node, bucket: str, surface: str) -> None:
    with node.connect() as connection:
        page = listing(connection, bucket, surface)
    assert (page["streams"], page["stream_count"], page["has_more"]) == ([], 0, False)


def test_status_and_tail_follow_the_stream__section_1_4(lister: Node, settled: bool) -> None:
    bucket = filled(lister, ["s"], settled)
    stream = Stream(lister, f"{BUCKETED}/{bucket}/s", TEXT)
    with lister.connect() as connection:
        for size in (3, 6, 9):
            stream.append(b"abc")
            (one,) = listing(connection, bucket)["streams"]
            assert (one["status"], one["tail_offset"]) == ("Open", size)
        assert lister.request("POST", stream.path, {"Stream-Closed": "true"}).status == 204
        (one,) = listing(connection, bucket)["streams"]
        assert (one["status"], one["tail_offset"]) == ("Closed", 9)
        if settled:
            await_checkpoint(lister)
            assert listing(connection, bucket)["streams"] == [one]


def test_a_listing_counts_who_follows_and_what_is_kept__beyond_the_spec(node: Node, bucket: str) -> None:
    stream = make_stream(node, bucket, "s")
    for _ in range(3):
        stream.append(b"abc")
    with node.connect() as connection, node.connect() as follower:
        (one,) = listing(connection, bucket)["streams"]
        assert (one["records"], one["earliest_offset"], one["followers"]) == (3, 0, 0)
        feed = EventStream.open(follower, f"{stream.path}?offset=-1&live=sse")
        assert feed.head.status == 200
        (one,) = listing(connection, bucket)["streams"]
        assert one["followers"] == 1
        assert stream.publish(stream.ends[1], b"state").status == 204
        (one,) = listing(connection, bucket)["streams"]
        assert (one["records"], one["earliest_offset"], one["tail_offset"]) == (1, 6, 9)


# --- order, prefix, cursor, limit ---------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
def test_pages_hold_every_stream_once_in_bytewise_order__section_1_4(lister: Node, settled: bool, limit: int) -> None:
    names = [f"{name}x" for name in AWKWARD] + [f"user-{n}" for n in range(20)]
    bucket = filled(lister, names, settled)
    with lister.connect() as connection:
        pages = list(all_pages(connection, bucket, limit))
    assert [name for page in pages for name in names_of(page)] == bytewise(names)
    assert all(page["stream_count"] == len(page["streams"]) for page in pages)
    assert all(len(page["streams"]) == limit for page in pages[:-1])


@pytest.mark.parametrize("prefix", AWKWARD)
def test_a_prefix_selects_by_the_bytes_it_names__section_1_4(lister: Node, settled: bool, prefix: str) -> None:
    names = [first + second for first in AWKWARD for second in ("", "a", "\U0010ffff") if first + second]
    bucket = filled(lister, sorted(set(names)), settled)
    wanted = bytewise([name for name in set(names) if name.startswith(prefix)])
    with lister.connect() as connection:
        found = [name for page in all_pages(connection, bucket, 3, prefix=prefix) for name in names_of(page)]
        assert found == wanted
        assert listing(connection, bucket, prefix=prefix)["prefix"] == prefix


@pytest.mark.parametrize("after", [*AWKWARD, "zzz", "user-", "user-3", "user-3\x01"])
def test_after_is_exclusive_and_need_not_exist__section_1_4(lister: Node, settled: bool, after: str) -> None:
    names = [name for name in AWKWARD if name] + [f"user-{n}" for n in range(5)]
    bucket = filled(lister, names, settled)
    wanted = bytewise([name for name in names if name.encode() > after.encode()])
    with lister.connect() as connection:
        assert names_of(listing(connection, bucket, after=after)) == wanted
        users = [name for name in wanted if name.startswith("user-")]
        assert names_of(listing(connection, bucket, after=after, prefix="user-")) == users


def test_a_page_holds_1000_streams_unless_told_otherwise__section_1_4(lister: Node, settled: bool) -> None:
    names = [f"s{n:05d}" for n in range(1003)]
    bucket = filled(lister, names, settled)
    with lister.connect() as connection:
        page = listing(connection, bucket)
        assert (names_of(page), page["has_more"]) == (names[:1000], True)
        rest = listing(connection, bucket, after=page["next_cursor"])
        assert (names_of(rest), rest["has_more"]) == (names[1000:], False)
        exact = listing(connection, bucket, limit=1000, after="s00002")
        assert (names_of(exact), exact["has_more"]) == (names[3:], False)
    assert stream_count(lister, bucket) == len(names)


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "", "x", "1.0", "1e2", "0010000", "9" * 40, "٣"])
def test_a_limit_outside_1_to_1000_is_400__section_1_4(node: Node, bucket: str, surface: str, limit: str) -> None:
    assert node.request("GET", f"{surface}/{bucket}/streams?limit={limit}").status == 400


@pytest.mark.parametrize("query", ["prefix=%ff", "after=%ed%a0%80", "limit=1&limit=2", "prefix=a&prefix=b"])
def test_query_parameters_that_are_not_text_or_repeated_are_400__section_1_4(
    node: Node, bucket: str, surface: str, query: str
) -> None:
    assert node.request("GET", f"{surface}/{bucket}/streams?{query}").status == 400


def test_a_listing_of_an_unknown_bucket_is_404__section_1_4(node: Node, surface: str) -> None:
    assert node.request("GET", f"{surface}/{fresh_name('never')}/streams").status == 404


# --- while things change ------------------------------------------------------------------------------------


def test_every_page_is_right_while_streams_come_and_go_across_checkpoints__section_1_4(node: Node) -> None:
    """What was acknowledged is listed and what was deleted is not, whatever the catalog has seen of it so far."""
    bucket = make_bucket(node)
    other = make_bucket(node)
    rng = random.Random(11)
    names = [f"{rng.choice('abc')}{n:03d}" for n in range(60)]
    alive: set[str] = set()
    with node.connect() as connection:
        for turn in range(240):
            name = rng.choice(names)
            path = f"{BUCKETED}/{bucket}/{name}"
            if name in alive:
                assert connection.request("DELETE", path).status == 204
                alive.remove(name)
            else:
                assert connection.request("PUT", path, TEXT).status == 201
                alive.add(name)
            assert connection.request("PUT", f"{BUCKETED}/{other}/{name}", TEXT).status in (200, 201)
            prefix = rng.choice(("", "a", "b", "b0"))
            pages = all_pages(connection, bucket, rng.choice((2, 9, 1000)), prefix=prefix)
            found = [one for page in pages for one in names_of(page)]
            assert found == sorted(one for one in alive if one.startswith(prefix)), turn
            if turn % 40 == 0:
                await_checkpoint(node)
            if turn % 20 == 0:
                assert stream_count(node, bucket) == len(alive)


def test_expired_streams_are_neither_listed_nor_counted__section_1_4(lister: Node, settled: bool) -> None:
    bucket = filled(lister, ["stays"], settled)
    gone = Stream(lister, f"{BUCKETED}/{bucket}/goes", TEXT)
    assert gone.create(stream_expires_at="2000-01-01T00:00:00Z").status == 201
    with lister.connect() as connection:
        while gone.head().status != 404:
            pass
        assert names_of(listing(connection, bucket)) == ["stays"]
    assert stream_count(lister, bucket) == 1


def test_flat_names_appear_in_the_bucket_of_their_first_segment__section_1_4(node: Node) -> None:
    bucket = fresh_name()
    assert node.request("PUT", f"/v1/stream/{bucket}/deep/er", TEXT).status == 201
    assert node.request("PUT", f"/v1/stream/{bucket}/flat", TEXT).status == 201
    with node.connect() as connection:
        assert names_of(listing(connection, bucket)) == ["deep/er", "flat"]
        assert names_of(listing(connection, bucket, prefix="deep/")) == ["deep/er"]
