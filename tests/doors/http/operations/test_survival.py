"""Buckets, snapshots, forks and policies across SIGKILL: what was acknowledged is there, what was refused is not.
The append path itself is killed far more often in the crash tests; this is about everything around it."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.model.timeline import RECORD_BYTES
from tests.crash.harness import SMALL_LOG
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
from tests.support.http import BadResponse, ConnectionEnded
from tests.support.node import Node
from tests.support.waiting import until

OFTEN = ("--checkpoint-interval-ms", "50")
NEVER = ("--checkpoint-interval-ms", "3600000")
KILLS = int(os.environ.get("HEADWATER_CRASH_KILLS", "6"))


def eventually(check: Callable[[], bool], why: Callable[[], object]) -> None:
    until(check, why, WAIT_S)


def view(node: Node, bucket: str) -> dict[str, Any]:
    """Everything a client can see of a bucket: what is compared before and after."""
    with node.connect() as connection:
        page = listing(connection, bucket)
        seen: dict[str, Any] = {"count": stream_count(node, bucket), "page": page}
        for name in names_of(page):
            stream = Stream(node, f"/ds/{bucket}/{name}", {})
            head, latest, whole = stream.head(), stream.snapshot(), stream.bootstrap()
            # The date moves by itself.
            facts = {key: value for key, value in head.headers if key != "date"}
            seen[name] = {
                "head": facts,
                "latest": (latest.status, latest.header("location")),
                "parts": parts_of(whole),
                "read": stream.read(facts["stream-earliest-offset"]).body,
                "beginning": stream.read().status,
            }
    return seen


def build_a_world(node: Node, bucket: str) -> None:
    """A bucket with one of everything."""

    def make(name: str, headers: dict[str, str] = TEXT, count: int = 4, **more: str) -> Stream:
        stream = Stream(node, f"/ds/{bucket}/{name}", headers)
        assert stream.create(**more).status == 201
        for n in range(count):
            stream.append(b"%d" % n)
        return stream

    make("empty", count=0)
    make("plain")
    make("json", JSON)
    make("binary", BYTES)
    make("with-ttl", stream_ttl="3600")
    make("with-expiry", stream_expires_at="2099-01-01T00:00:00Z")
    make("on-disk", stream_durability="disk")
    make("closed").append(b"end", stream_closed="true")
    snapped = make("snapped")
    assert snapped.publish(snapped.ends[1], b"first", JSON).status == 204
    assert snapped.publish(snapped.ends[2], b"second", TEXT).status == 204
    folded = make("folded")
    assert folded.publish(folded.ends[3], b"everything", BYTES).status == 204
    source = make("source")
    fork = Stream(node, f"/ds/{bucket}/fork", TEXT)
    assert fork.create(stream_forked_from=source.path, stream_fork_offset=source.ends[1]).status == 201
    fork.append(b"own")
    grandchild = Stream(node, f"/ds/{bucket}/grandchild", TEXT)
    assert grandchild.create(stream_forked_from=fork.path).status == 201
    assert source.publish(source.ends[3], b"source state").status == 204
    orphaned = make("orphaned")
    heir = Stream(node, f"/ds/{bucket}/heir", TEXT)
    assert heir.create(stream_forked_from=orphaned.path).status == 201
    assert orphaned.delete().status == 204
    policed = make("policed", stream_retention_records="2")
    eventually(lambda: policed.head().header("stream-earliest-offset") == policed.ends[1], policed.head)
    assert make("deleted").delete().status == 204
    recreated = make("recreated")
    assert recreated.delete().status == 204
    assert recreated.create(b"again").status == 201
    producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0", "stream_seq": "a"}
    make("produced").append(b"x", **producer)


@pytest.mark.parametrize("flags", [OFTEN, NEVER], ids=["often checkpointed", "never checkpointed"])
def test_everything_a_client_can_see_of_a_bucket_survives_kills(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with Node.started(tmp_path, flags=flags) as node:
        bucket, empty, gone = make_bucket(node), make_bucket(node), make_bucket(node)
        assert node.request("DELETE", f"/ds/{gone}").status == 204
        build_a_world(node, bucket)
        before = view(node, bucket)
        assert len(before) == 2 + before["count"] == 2 + 17
        for turn in range(2):
            if flags is OFTEN and turn:
                await_checkpoint(node)
            node.restart()
            after = view(node, bucket)
            for name, seen in before.items():
                assert after[name] == seen, name
            assert after == before
            assert node.request("GET", f"/ds/{empty}").status == 200
            assert node.request("GET", f"/ds/{gone}").status == 404
        assert node.request("PUT", f"/ds/{bucket}/orphaned", TEXT).status == 409
        late = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
        assert node.request("POST", f"/ds/{bucket}/produced", TEXT | late, b"x").status == 204
        assert node.request("POST", f"/ds/{bucket}/produced", TEXT | {"Stream-Seq": "a"}, b"x").status == 409
        for name in [*names_of(before["page"]), "deleted"]:
            assert node.request("DELETE", f"/ds/{bucket}/{name}").status in (204, 404), name
        eventually(lambda: metric(node, "hot_bytes") == 0, lambda: metric(node, "hot_bytes"))
        assert stream_count(node, bucket) == 0
        assert node.request("DELETE", f"/ds/{bucket}").status == 204
        node.restart()
        assert node.request("GET", f"/ds/{bucket}").status == 404
        assert node.request("PUT", f"/ds/{bucket}").status == 201
        assert node.request("PUT", f"/ds/{bucket}/orphaned", TEXT).status == 201


def let_go_of_the_log(node: Node) -> None:
    """Push so much through the log that its files of today are deleted: what is then known comes from the catalog."""
    folder = node.data_directory / "wal"
    last = max(folder.rglob("*.wal")).stem
    ballast = Stream(node, "/v1/stream/ballast", BYTES)
    for _ in range(3):
        assert ballast.create().status == 201
        for _ in range(6):
            ballast.append(b"x" * 400_000)
        assert ballast.delete().status == 204
    eventually(lambda: min(folder.rglob("*.wal")).stem > last, lambda: sorted(folder.rglob("*.wal")))


def test_streams_whose_log_is_gone_come_back_from_the_catalog(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=SMALL_LOG) as node:
        bucket = make_bucket(node)
        empty = Stream(node, f"/ds/{bucket}/empty", TEXT)
        assert empty.create(stream_ttl="3600").status == 201
        folded = Stream(node, f"/ds/{bucket}/folded", TEXT)
        assert folded.create().status == 201
        for n in range(3):
            folded.append(b"%d;" % n, producer_id="p", producer_epoch="4", producer_seq=str(n), stream_seq=f"b{n}")
        assert folded.publish(folded.ends[2], b"0;1;2;", TEXT).status == 204
        let_go_of_the_log(node)
        before = view(node, bucket)
        node.restart()
        assert view(node, bucket) == before
        assert metric(node, "streams_loaded") <= 3, "what nobody asked for is not loaded"
        retry = {"Producer-Id": "p", "Producer-Epoch": "4", "Producer-Seq": "2"}
        assert node.request("POST", folded.path, TEXT | retry, b"2;").status == 204
        assert node.request("POST", folded.path, TEXT | {"Stream-Seq": "b2"}, b"x").status == 409
        assert folded.append(b"3;", producer_id="p", producer_epoch="4", producer_seq="3") == token(8)
        fork = Stream(node, f"/ds/{bucket}/fork", TEXT)
        assert fork.create(stream_forked_from=folded.path, stream_fork_offset=folded.ends[2]).status == 201
        fork.append(b"f;")
        node.restart()
        assert folded.read(folded.ends[2]).body == b"3;"
        assert fork.read(folded.ends[2]).body == b"f;"
        assert [part.body for part in parts_of(folded.bootstrap())] == [b"0;1;2;", b"3;"]


def test_a_stream_that_expires_unseen_after_a_restart_is_not_counted(tmp_path: Path) -> None:
    """Its log is gone and nobody asked for it: still it must not keep its bucket from being deleted."""
    with Node.started(tmp_path, flags=SMALL_LOG) as node:
        bucket = make_bucket(node)
        doomed = Stream(node, f"/ds/{bucket}/doomed", TEXT)
        assert doomed.create(stream_ttl="3").status == 201
        let_go_of_the_log(node)
        node.restart()
        witness = Stream(node, "/v1/stream/witness", TEXT)
        assert witness.create(stream_ttl="3").status == 201
        eventually(lambda: witness.head().status == 404, witness.head)
        with node.connect() as connection:
            assert names_of(listing(connection, bucket)) == []
        assert stream_count(node, bucket) == 0
        assert node.request("DELETE", f"/ds/{bucket}").status == 204


# --- killed in the middle -----------------------------------------------------------------------------------


class Churn:
    """Publishes snapshots and makes and deletes forks on its own thread until its connection breaks.

    Keeps what was acknowledged; `pending` is the one thing that may or may not have happened.
    """

    def __init__(self, node: Node, bucket: str, seed: int, turn: int) -> None:
        self.node, self.bucket = node, bucket
        self.rng = random.Random(seed)
        self.turn = turn
        self.forks: set[str] = set()
        self.snapshot: str | None = None
        self.pending: tuple[str, str] | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        source = Stream(self.node, f"/ds/{self.bucket}/source", TEXT)
        made = 0
        try:
            while True:
                tail = int(source.head().header("stream-next-offset") or 0)
                kind = self.rng.choice(("append", "publish", "fork", "unfork"))
                if kind == "append":
                    self.node.request("POST", source.path, TEXT, b"x")
                elif kind == "publish" and tail:
                    self.pending = (kind, token(tail))
                    if source.publish(token(tail), b"x" * tail).status == 204:
                        self.snapshot, self.pending = token(tail), None
                elif kind == "fork":
                    made += 1
                    name = f"fork-{self.turn}-{made}"
                    self.pending = (kind, name)
                    fork = Stream(self.node, f"/ds/{self.bucket}/{name}", TEXT)
                    assert fork.create(stream_forked_from=source.path).status == 201
                    self.forks.add(name)
                    self.pending = None
                elif kind == "unfork" and self.forks:
                    name = self.rng.choice(sorted(self.forks))
                    self.pending = (kind, name)
                    assert self.node.request("DELETE", f"/ds/{self.bucket}/{name}").status == 204
                    self.forks.remove(name)
                    self.pending = None
        except (ConnectionEnded, ConnectionError, BadResponse):
            return


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_in_the_middle_of_publishes_and_forks_leak_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Node.started(tmp_path, flags=OFTEN) as node:
        bucket = make_bucket(node)
        source = Stream(node, f"/ds/{bucket}/source", TEXT)
        assert source.create(b"x").status == 201
        forks: set[str] = set()
        snapshot: str | None = None
        for turn in range(KILLS):
            churn = Churn(node, bucket, rng.randrange(1 << 30), turn)
            churn.forks = set(forks)
            churn.thread.start()
            time.sleep(rng.uniform(0.05, 0.4))
            node.kill()
            churn.thread.join()
            node.start()
            kind, what = churn.pending or ("", "")
            with node.connect() as connection:
                forks = set(names_of(listing(connection, bucket))) - {"source"}
            maybe = {what} if kind in ("fork", "unfork") else set()
            assert forks - maybe == churn.forks - maybe, turn
            assert stream_count(node, bucket) == len(forks) + 1
            snapshot = churn.snapshot or snapshot
            found = source.head().header("stream-snapshot-offset")
            assert found == snapshot or (kind == "publish" and found == what), (turn, found, snapshot, churn.pending)
            snapshot = found
            if found is not None:
                assert source.snapshot(found).body == b"x" * int(found)
            for name in forks:
                assert node.request("GET", f"/ds/{bucket}/{name}?offset=now").status == 200
        assert source.delete().status == 204
        for name in sorted(forks):
            assert node.request("HEAD", source.path).status == 410
            assert node.request("DELETE", f"/ds/{bucket}/{name}").status == 204
        eventually(lambda: source.head().status == 404, source.head)
        assert source.create().status == 201
        assert stream_count(node, bucket) == 1
        assert "Traceback" not in node.stderr(), node.output()


# --- what is left on disk and in memory ---------------------------------------------------------------------


def blobs_of(node: Node) -> list[Path]:
    return [path for path in node.data_directory.rglob("*") if path.is_file() and "snapshots" in path.parts]


def test_superseded_and_orphaned_snapshots_leave_no_blob(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=OFTEN) as node:
        bucket = make_bucket(node)
        stream = Stream(node, f"/ds/{bucket}/s", TEXT)
        assert stream.create().status == 201
        for n in range(4):
            stream.append(b"%d;" % n)
            assert stream.publish(stream.ends[n], b"state").status == 204
        eventually(lambda: len(blobs_of(node)) == 1, lambda: blobs_of(node))
        assert stream.publish(token(999), b"never").status == 409
        assert stream.publish(token(1), b"never").status == 410
        assert stream.snapshot(stream.ends[3]).body == b"state"
        assert stream.delete().status == 204
        eventually(lambda: not blobs_of(node), lambda: blobs_of(node))


@pytest.mark.xfail(strict=True, reason="blobs that were about to be deleted are forgotten by a kill")
def test_a_kill_leaves_no_superseded_snapshot_behind(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=NEVER) as node:
        stream = Stream(node, f"/ds/{make_bucket(node)}/s", TEXT)
        assert stream.create().status == 201
        for n in range(4):
            stream.append(b"%d;" % n)
            assert stream.publish(stream.ends[n], b"state").status == 204
        node.kill()
        node.flags = list(OFTEN)
        node.start()
        await_checkpoint(node)
        assert stream.snapshot(stream.ends[3]).body == b"state"
        assert len(blobs_of(node)) == 1


@pytest.mark.xfail(strict=True, reason="a stream with a fork keeps everything in memory, also what no fork shares")
def test_a_policy_bounds_memory_also_while_a_fork_lives(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=OFTEN) as node:
        source = Stream(node, "/v1/stream/source", TEXT)
        assert source.create(stream_retention_records="1").status == 201
        source.append(b"shared;")
        fork = Stream(node, "/v1/stream/fork", TEXT)
        assert fork.create(stream_forked_from=source.path).status == 201
        for _ in range(20):
            source.append(b"x" * 1000)
        eventually(lambda: source.head().header("stream-earliest-offset") == source.ends[-2], source.head)
        assert metric(node, "hot_bytes") <= len(b"shared;") + 1000 + 2 * RECORD_BYTES


def test_what_was_kept_for_a_fork_goes_with_it(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=OFTEN) as node:
        source = Stream(node, f"/ds/{make_bucket(node)}/source", TEXT)
        assert source.create().status == 201
        for _ in range(4):
            source.append(b"s;")
        fork = Stream(node, f"{source.path}-fork", TEXT)
        assert fork.create(stream_forked_from=source.path).status == 201
        assert source.publish(source.ends[2], b"state").status == 204
        assert fork.delete().status == 204
        await_checkpoint(node)
        assert metric(node, "hot_bytes") == len(b"s;") + RECORD_BYTES
