"""Forks beyond the official suite: a source that is trimmed, expires or goes while forks live, and forks of forks.
Every story is told twice, by a node that keeps running and by one that is killed between any two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.doors.http.extensions.surface import (
    BYTES,
    JSON,
    TEXT,
    WAIT_S,
    Stream,
    await_checkpoint,
    listing,
    make_bucket,
    metric,
    names_of,
    parts_of,
    stream_count,
    token,
)
from tests.support.http import EventStream
from tests.support.node import Node
from tests.support.waiting import until

FLAGS = ("--checkpoint-interval-ms", "50", "--long-poll-timeout-ms", "150")

Pause = Callable[[], None]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("farm"), flags=FLAGS) as node:
        yield node
        assert node.running, node.output()
        assert "Traceback" not in node.stderr(), node.output()


@dataclass
class Farm:
    """A bucket of its own for each test, and what the node held in memory before."""

    node: Node
    bucket: str
    hot_bytes: int

    def stream(self, name: str, headers: dict[str, str] = TEXT) -> Stream:
        return Stream(self.node, f"/ds/{self.bucket}/{name}", headers)

    def source(self, count: int = 4) -> Stream:
        """`source`, with `count` records of three bytes."""
        stream = self.stream("source")
        assert stream.create().status == 201
        for n in range(count):
            stream.append(b"s%d;" % n)
        return stream

    def fork(self, source: Stream, name: str, at: str | None = None, **headers: str) -> Stream:
        fork = self.stream(name, source.headers)
        if at is not None:
            headers["stream_fork_offset"] = at
        answer = fork.create(stream_forked_from=source.path, **headers)
        assert answer.status == 201, answer
        return fork

    def count(self) -> int:
        return stream_count(self.node, self.bucket)

    def names(self) -> list[str]:
        with self.node.connect() as connection:
            return names_of(listing(connection, self.bucket))

    def assert_bare(self, names: list[str]) -> None:
        """No stream is counted or listed, every name is free, no byte is held, and the bucket can go."""
        for name in names:
            stream = self.stream(name)
            eventually(lambda stream=stream: stream.head().status == 404, stream.head)
            assert stream.create(b"anew").status == 201
            assert stream.read().body == b"anew"
            assert stream.delete().status == 204
        assert self.count() == 0
        assert self.names() == []
        assert metric(self.node, "hot_bytes") == self.hot_bytes
        assert self.node.request("DELETE", f"/ds/{self.bucket}").status == 204
        assert self.node.request("PUT", f"/ds/{self.bucket}").status == 201


@pytest.fixture
def farm(shared: Node) -> Farm:
    return Farm(shared, make_bucket(shared), int(metric(shared, "hot_bytes")))


KILLED = [pytest.param(kind, marks=pytest.mark.full) for kind in ("killed", "checkpointed and killed")]


@pytest.fixture(params=["running", *KILLED])
def pause(request: pytest.FixtureRequest, shared: Node) -> Pause:
    """What happens between two steps of a story."""

    def act() -> None:
        if request.param == "checkpointed and killed":
            await_checkpoint(shared)
        if request.param != "running":
            shared.restart()

    return act


def eventually(check: Callable[[], bool], why: Callable[[], object]) -> None:
    """Clean-up after the last fork may be asynchronous."""
    until(check, why, WAIT_S)


# --- the shared past ----------------------------------------------------------------------------------------


def test_a_fork_reads_across_its_fork_point_as_one_stream(farm: Farm, pause: Pause) -> None:
    source = farm.source()
    fork = farm.fork(source, "fork", source.ends[1])
    pause()
    fork.append(b"f0;")
    source.append(b"s4;")
    pause()
    fork.append(b"f1;")
    assert fork.read().body == b"s0;s1;f0;f1;"
    assert source.read().body == b"s0;s1;s2;s3;s4;"
    assert fork.read(source.ends[0]).body == b"s1;f0;f1;"
    assert fork.ends == [token(9), token(12)]
    assert [part.body for part in parts_of(fork.bootstrap())[1:]] == [b"s0;", b"s1;", b"f0;", b"f1;"]
    with farm.node.connect() as connection:
        events = iter(EventStream.open(connection, f"{fork.path}?offset=-1&live=sse"))
        assert next(events).data == "s0;s1;f0;f1;"


def test_a_fork_of_a_fork_of_a_fork_shares_each_ones_part(farm: Farm, pause: Pause) -> None:
    source = farm.source()
    first = farm.fork(source, "first", source.ends[2])
    first.append(b"a0;")
    pause()
    second = farm.fork(first, "second")
    second.append(b"b0;")
    pause()
    third = farm.fork(second, "third", source.ends[0])
    third.append(b"c0;")
    pause()
    assert third.read().body == b"s0;c0;"
    assert second.read().body == b"s0;s1;s2;a0;b0;"
    assert first.read().body == b"s0;s1;s2;a0;"
    assert farm.count() == 4
    for stream in (source, first, second):
        assert stream.delete().status == 204
        pause()
        assert third.read().body == b"s0;c0;"
        assert stream.head().status in (404, 410)
    assert third.delete().status == 204
    pause()
    farm.assert_bare(["source", "first", "second", "third"])


@pytest.mark.parametrize(("headers", "body", "sub", "expected"), [
    (JSON, b"[1,2,3]", "2", b"[1,2,9]"),
    (TEXT, b"abcdef", "2", b"ab9"),
    (BYTES, b"\0\1\2", "3", b"\0\1\x029"),
])  # fmt: skip
def test_a_sub_offset_splits_behind_its_anchor_and_stays_so(
    farm: Farm, pause: Pause, headers: dict[str, str], body: bytes, sub: str, expected: bytes
) -> None:
    source = farm.stream("source", headers)
    assert source.create().status == 201
    source.append(body)
    fork = farm.fork(source, "fork", token(0), stream_fork_sub_offset=sub)
    pause()
    fork.append(b"9")
    pause()
    assert fork.read().body == expected
    assert source.read().body == (body if headers is not JSON else b"[1,2,3]")
    repeated = {"stream_forked_from": source.path, "stream_fork_offset": token(0), "stream_fork_sub_offset": sub}
    assert fork.create(**repeated).status == 200


@pytest.mark.parametrize("bucket", ["dsdata", "ds-1"])
def test_a_source_is_found_also_when_its_bucket_begins_with_ds(farm: Farm, bucket: str) -> None:
    make_bucket(farm.node, bucket)
    source = Stream(farm.node, f"/{bucket}/source", TEXT)
    assert source.create(b"shared").status == 201
    fork = farm.fork(source, "fork")
    assert fork.read().body == b"shared"


# --- a source that changes ----------------------------------------------------------------------------------


def test_a_snapshot_of_the_source_takes_nothing_from_its_forks(farm: Farm, pause: Pause) -> None:
    source = farm.source()
    early, late = farm.fork(source, "early", source.ends[0]), farm.fork(source, "late")
    pause()
    assert source.publish(source.ends[2], b"state").status == 204
    pause()
    assert source.read().status == 410
    assert source.read(source.ends[2]).body == b"s3;"
    assert early.read().body == b"s0;"
    assert late.read().body == b"s0;s1;s2;s3;"
    early.append(b"e;")
    source.append(b"s4;")
    pause()
    assert early.read().body == b"s0;e;"
    assert late.read(source.ends[1]).body == b"s2;s3;"
    for stream in (late, source, early):
        assert stream.delete().status == 204
        pause()
    farm.assert_bare(["source", "early", "late"])


def test_a_snapshot_of_a_fork_inside_the_shared_past_is_its_own(farm: Farm, pause: Pause) -> None:
    source = farm.source()
    fork = farm.fork(source, "fork", source.ends[2])
    fork.append(b"f;")
    assert fork.publish(source.ends[1], b"forked state").status == 204
    pause()
    assert fork.read().status == 410
    assert fork.read(source.ends[1]).body == b"s2;f;"
    assert source.read().body == b"s0;s1;s2;s3;"
    assert source.head().header("stream-snapshot-offset") is None
    assert [part.body for part in parts_of(fork.bootstrap())] == [b"forked state", b"s2;", b"f;"]


def test_a_policy_of_the_source_takes_nothing_from_its_forks(farm: Farm, pause: Pause) -> None:
    source = farm.stream("source")
    assert source.create(stream_retention_records="2").status == 201
    for n in range(2):
        source.append(b"s%d;" % n)
    fork = farm.fork(source, "fork")
    pause()
    for n in range(2, 6):
        source.append(b"s%d;" % n)
    eventually(lambda: source.head().header("stream-earliest-offset") == source.ends[3], source.head)
    pause()
    assert source.read(source.ends[3]).body == b"s4;s5;"
    assert fork.read().body == b"s0;s1;"
    assert source.delete().status == 204
    pause()
    assert fork.read().body == b"s0;s1;"
    assert fork.delete().status == 204
    farm.assert_bare(["source", "fork"])


def test_a_fork_below_what_the_source_keeps_is_refused_and_leaks_nothing(farm: Farm, pause: Pause) -> None:
    source = farm.source()
    assert source.publish(source.ends[1], b"state").status == 204
    pause()
    fork = farm.stream("fork")
    for offset in (token(0), source.ends[0]):
        answer = fork.create(stream_forked_from=source.path, stream_fork_offset=offset)
        assert answer.status in (400, 410)
    assert fork.head().status == 404
    assert source.delete().status == 204
    farm.assert_bare(["source", "fork"])


# --- refused forks leak no reference ------------------------------------------------------------------------

REFUSED = [
    ({"stream_fork_offset": "nonsense"}, 400),
    ({"stream_fork_offset": token(999)}, 400),
    ({"stream_fork_offset": token(1)}, 400),
    ({"stream_fork_offset": token(0), "stream_fork_sub_offset": "-1"}, 400),
    ({"stream_fork_offset": token(0), "stream_fork_sub_offset": "4"}, 400),
    ({"stream_fork_sub_offset": "1"}, 400),
    ({"stream_ttl": "x"}, 400),
    ({"content_type": "application/json"}, 409),
]


@pytest.mark.parametrize(("headers", "status"), REFUSED)
def test_a_refused_fork_leaks_no_reference(farm: Farm, headers: dict[str, str], status: int) -> None:
    source = farm.source()
    fork = Stream(farm.node, f"/ds/{farm.bucket}/fork", {} if "content_type" in headers else TEXT)
    assert fork.create(stream_forked_from=source.path, **headers).status == status
    assert fork.head().status == 404
    # A leaked reference would leave the source soft-deleted: 410, with its name taken.
    assert source.delete().status == 204
    assert source.head().status == 404
    farm.assert_bare(["source", "fork"])


def test_a_fork_of_nothing_is_404_and_of_a_deleted_source_409(farm: Farm, pause: Pause) -> None:
    fork = farm.stream("fork")
    assert fork.create(stream_forked_from=f"/ds/{farm.bucket}/never").status == 404
    source = farm.source()
    keeper = farm.fork(source, "keeper")
    assert source.delete().status == 204
    pause()
    assert fork.create(stream_forked_from=source.path).status == 409
    assert keeper.delete().status == 204
    eventually(lambda: fork.create(stream_forked_from=source.path).status == 404, fork.head)
    farm.assert_bare(["source", "keeper", "fork"])


def test_an_existing_target_of_another_configuration_leaks_no_reference(farm: Farm, pause: Pause) -> None:
    source = farm.source()
    target = farm.stream("target")
    assert target.create().status == 201
    assert target.create(stream_forked_from=source.path).status == 409
    fork = farm.fork(source, "fork", source.ends[1])
    pause()
    again = {"stream_forked_from": source.path, "stream_fork_offset": source.ends[1]}
    assert fork.create(**again).status == 200
    assert fork.create(**again | {"stream_fork_offset": source.ends[0]}).status == 409
    assert fork.create(**again | {"stream_forked_from": target.path}).status == 409
    assert fork.delete().status == 204
    assert source.delete().status == 204
    assert source.head().status == 404
    assert target.delete().status == 204
    farm.assert_bare(["source", "fork", "target"])


# --- deleting -----------------------------------------------------------------------------------------------


def test_a_deleted_source_is_410_to_everyone_and_keeps_its_name_until_the_last_fork_goes(
    farm: Farm, pause: Pause
) -> None:
    source = farm.source()
    forks = [farm.fork(source, f"fork{n}", source.ends[n]) for n in range(3)]
    assert farm.count() == 4
    assert source.delete().status == 204
    pause()
    for answer in (source.head(), source.read(), source.delete(), farm.node.request("POST", source.path, TEXT, b"x")):
        assert answer.status == 410
    assert source.create().status == 409
    assert farm.count() == 3
    assert farm.names() == ["fork0", "fork1", "fork2"]
    for n, fork in enumerate(forks):
        assert fork.read().body == b"".join(b"s%d;" % one for one in range(n + 1))
        assert fork.delete().status == 204
        pause()
    farm.assert_bare(["source", "fork0", "fork1", "fork2"])


def test_a_chain_goes_from_its_end_whatever_the_order_of_deletion(farm: Farm, pause: Pause) -> None:
    names = ["source", "one", "two", "three"]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]):
        chain = [farm.source()]
        for name in names[1:]:
            chain.append(farm.fork(chain[-1], name))
            chain[-1].append(f"{name};".encode())
        for index in order:
            assert chain[index].delete().status == 204
        pause()
        farm.assert_bare(names)


def test_a_fork_deleted_and_made_again_counts_once(farm: Farm, pause: Pause) -> None:
    source = farm.source()
    for turn in range(4):
        fork = farm.fork(source, "fork")
        pause()
        fork.append(b"f%d;" % turn)
        assert fork.read().body == b"s0;s1;s2;s3;f%d;" % turn
        assert fork.delete().status == 204
        pause()
    assert source.delete().status == 204
    assert source.head().status == 404
    farm.assert_bare(["source", "fork"])


# --- expiry -------------------------------------------------------------------------------------------------


def test_an_expired_source_lives_on_for_its_forks_alone(farm: Farm, pause: Pause) -> None:
    source = farm.stream("source")
    assert source.create(b"shared;", stream_ttl="2").status == 201
    fork = farm.fork(source, "fork", None, stream_ttl="3600")
    pause()
    eventually(lambda: source.head().status != 200, source.head)
    assert source.head().status in (404, 410)
    pause()
    assert fork.read().body == b"shared;"
    fork.append(b"own;")
    pause()
    assert fork.read().body == b"shared;own;"
    assert farm.count() == 1
    assert fork.delete().status == 204
    farm.assert_bare(["source", "fork"])


def test_a_fork_that_expires_lets_its_deleted_source_go(farm: Farm, pause: Pause) -> None:
    source = farm.source()
    fork = farm.fork(source, "fork", None, stream_ttl="2")
    assert source.delete().status == 204
    pause()
    eventually(lambda: farm.count() == 0, fork.head)
    farm.assert_bare(["source", "fork"])


def test_a_fork_inherits_the_expiry_of_its_source_unless_it_names_its_own(farm: Farm, pause: Pause) -> None:
    source = farm.stream("source")
    assert source.create(stream_ttl="1000").status == 201
    heir, other = farm.fork(source, "heir"), farm.fork(source, "other", None, stream_ttl="5000")
    dated = farm.fork(source, "dated", None, stream_expires_at="2099-01-01T00:00:00Z")
    pause()
    assert heir.head().header("stream-ttl") == "1000"
    assert other.head().header("stream-ttl") == "5000"
    assert (dated.head().header("stream-expires-at") or "").startswith("2099")
    assert dated.head().header("stream-ttl") is None


# --- independence -------------------------------------------------------------------------------------------


def test_a_fork_is_open_and_knows_no_producer_or_sequence_of_its_source(farm: Farm, pause: Pause) -> None:
    source = farm.source()
    producer = {"producer_id": "p", "producer_epoch": "7", "producer_seq": "0", "stream_seq": "zz"}
    source.append(b"last;", stream_closed="true", **producer)
    fork = farm.fork(source, "fork")
    pause()
    assert fork.head().header("stream-closed") is None
    fork.append(b"f;", producer_id="p", producer_epoch="0", producer_seq="0", stream_seq="a")
    pause()
    assert farm.node.request("POST", fork.path, TEXT | {"Stream-Seq": "a"}, b"x").status == 409
    assert fork.read().body == b"s0;s1;s2;s3;last;f;"
    assert source.read().header("stream-closed") == "true"


def test_appends_to_the_source_never_reach_followers_of_the_fork(farm: Farm) -> None:
    source = farm.source()
    fork = farm.fork(source, "fork")
    with farm.node.connect() as connection:
        events = iter(EventStream.open(connection, f"{fork.path}?offset=now&live=sse"))
        assert next(events).name == "control"
        source.append(b"not yours;")
        fork.append(b"yours;")
        assert next(events).data == "yours;"


def test_fork_headers_are_for_requests_only(farm: Farm) -> None:
    source = farm.source()
    fork = farm.fork(source, "fork", source.ends[0])
    for answer in (fork.head(), fork.read(), source.head()):
        assert not [name for name, _ in answer.headers if name.startswith("stream-fork")]
