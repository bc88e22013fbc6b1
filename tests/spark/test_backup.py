"""Backup and restore with Spark: a node is backed up while it is written to, lost, and started again from the backup.
What it holds then is held against what its writers were told, not against what the jobs say."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headwater.lake.store import MemoryStore
from headwater.spark import backup_store
from headwater.spark.backup_keeping import Keep
from headwater.spark.backup_locks import ALONE, SHARED, locked
from headwater.spark.job_runs import JobRefused
from headwater.spark.jobs import backup as backup_job
from headwater.spark.jobs.backup import backup
from headwater.spark.jobs.check_backups import check_backups
from headwater.spark.jobs.restore import listed, restore
from headwater.spark.lake_place import Place
from headwater.spark.node import Node as NodeCalls
from tests.doors.http.extensions.surface import TEXT, Stream, make_bucket, make_stream, token
from tests.spark.conftest import QUICK
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
PRODUCER = {"Producer-Id": "p", "Producer-Epoch": "3"}


def calls(node: Node) -> NodeCalls:
    return NodeCalls(node.url, None, 5.0)


def flush(node: Node) -> None:
    assert node.request("POST", "/__headwater/flush").status == 200


@dataclass
class Life:
    """Streams that are written to without end, by producers; `told` is how many of its records each was answered."""

    node: Node
    bucket: str
    streams: list[Stream] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)
    faults: list[object] = field(default_factory=list)

    def begin(self, count: int) -> None:
        for number in range(count):
            self.streams.append(make_stream(self.node, self.bucket))
            self.told.append(0)
            self.threads.append(threading.Thread(target=self._write, args=(number,)))
        for thread in self.threads:
            thread.start()
        self.until(10)

    def until(self, count: int) -> None:
        while min(self.told) < count and not self.faults:
            self.stopped.wait(0.005)
        assert not self.faults, self.faults

    def end(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(30)
        assert not self.faults, self.faults

    def _write(self, number: int) -> None:
        stream, seq = self.streams[number], 0
        with self.node.connect() as connection:
            while not self.stopped.is_set():
                headers = {**PRODUCER, "Producer-Seq": str(seq), **TEXT}
                answer = connection.request("POST", stream.path, headers, record(number, seq))
                if answer.status != 200:
                    self.faults.append(answer)
                    return
                seq += 1
                self.told[number] = seq


class Noting(NodeCalls):
    """Notes what writers had been told when the call that makes the cut began: they go on while it is answered."""

    def __init__(self, url: str, life: Life) -> None:
        super().__init__(url, None, 5.0)
        self._life = life
        self.told: list[int] = []

    def json(self, method: str, path: str, body: object = None, *, repeat: bool | None = None) -> Any:
        if path == "/__headwater/groups/0/backup":
            self.told = list(self._life.told)
        return super().json(method, path, body, repeat=repeat)


def record(number: int, seq: int) -> bytes:
    return b"%02d:%06d;" % (number, seq)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "backups")


@pytest.fixture
def life(node: Node) -> Iterator[Life]:
    life = Life(node, make_bucket(node))
    yield life
    life.stopped.set()
    for thread in life.threads:
        thread.join(30)


def heads(node: Node, streams: list[Stream]) -> list[tuple[Any, ...]]:
    names = ("stream-next-offset", "stream-closed", "stream-earliest-offset", "etag", "content-type")
    found = []
    for stream in streams:
        answer = node.request("HEAD", stream.path)
        found.append((answer.status, *(answer.header(name) for name in names), stream_body(node, stream)))
    return found


def stream_body(node: Node, stream: Stream) -> bytes:
    body, offset = b"", "-1"
    while True:
        answer = node.request("GET", f"{stream.path}?offset={offset}")
        if answer.status == 410:
            offset = str(answer.header("stream-earliest-offset"))
            continue
        assert answer.status == 200, answer
        body += answer.body
        offset = str(answer.header("stream-next-offset"))
        if answer.header("stream-up-to-date") == "true":
            return body


def moved_in(data: Path, place: Path) -> Node:
    """A node on a directory that was restored."""
    place.mkdir()
    data.rename(place / "data")
    return Node(place, flags=QUICK)


def test_a_node_that_is_written_to_is_backed_up_lost_and_restored(
    spark: SparkSession, node: Node, life: Life, target: str, tmp_path: Path
) -> None:
    still = [make_stream(node, life.bucket) for _ in range(30)]
    for number, stream in enumerate(still):
        for n in range(5):
            stream.append(b"still %d %d;" % (number, n))
    assert still[0].publish(still[0].ends[2], b"a state").status == 204
    assert still[1].append(b"the end", stream_closed="true")
    assert still[2].delete().status == 204
    flush(node)
    life.begin(3)
    noting = Noting(node.url, life)
    summary = backup(spark, noting, to=target)
    before = noting.told
    life.until(max(before) + 5)
    life.end()
    kept = still[:2] + still[3:]
    expected = heads(node, kept)
    node.kill()
    shutil.rmtree(node.data_directory)

    restored = restore(spark, source=target, data=tmp_path / "restored")
    assert (restored["streams"], restored["records"]) == (summary["streams"], summary["records"])
    assert restored["streams"] == 29 + 3
    again = moved_in(tmp_path / "restored", tmp_path / "again")
    try:
        again.start()
        assert heads(again, kept) == expected
        assert again.request("GET", still[2].path).status == 404
        assert again.request("GET", f"{still[0].path}/snapshot/{still[0].ends[2]}").body == b"a state"
        count = sum(_check_producer(again, life, number, before[number]) for number in range(3))
        assert restored["records"] == count + 29 * 5 - 3 + 1
        flush(again)
        for number, stream in enumerate(life.streams):
            assert stream_body(again, stream).endswith(b"more"), number
        # The cluster that came back can be backed up into the same place, and its old objects are there already.
        third = backup(spark, calls(again), to=target)
        assert int(third["objects_copied"]) < int(third["objects"])  # type: ignore[call-overload]
        assert again.terminate() == 0, again.output()
    finally:
        again.kill()


def _check_producer(node: Node, life: Life, number: int, told: int) -> int:
    """Everything that was answered is there; the producer goes on where it stood, and its last batch is known."""
    stream = life.streams[number]
    body = stream_body(node, stream)
    count = len(body) // len(record(0, 0))
    assert body == b"".join(record(number, seq) for seq in range(count))
    assert told <= count <= life.told[number]

    def send(seq: int, data: bytes) -> int:
        return node.request("POST", stream.path, {**PRODUCER, "Producer-Seq": str(seq), **TEXT}, data).status

    assert send(count - 1, record(number, count - 1)) == 204
    assert stream_body(node, stream) == body
    assert send(count + 1, b"gap") == 409
    assert send(count, b"more") == 200
    stale = {**PRODUCER, "Producer-Epoch": "2", "Producer-Seq": "0", **TEXT}
    assert node.request("POST", stream.path, stale, b"stale").status == 403
    return count


def test_catalog_table_and_objects_agree_after_a_restore(
    spark: SparkSession, node: Node, life: Life, target: str, tmp_path: Path
) -> None:
    from headwater.spark.jobs.compact import compact

    life.begin(2)
    for _ in range(4):
        flush(node)
        life.until(max(life.told) + 5)
    assert compact(spark, calls(node), min_files=2)["swaps"] == 1
    made = backup(spark, calls(node), to=target)
    life.end()
    files = len(list((node.data_directory / "lake" / "data").rglob("*.parquet")))
    assert int(made["objects"]) <= files - 4  # type: ignore[call-overload]  # what was swapped out is not copied
    restore(spark, source=target, data=tmp_path / "restored")
    report = cli(["lake", "verify", "--deep", "--data", str(tmp_path / "restored"), "--json"])
    assert report["findings"] == [] and report["rows"] > 0 and report["files"] > 0
    rows = spark.read.format("parquet").load(
        [str(path) for path in (tmp_path / "restored" / "lake" / "data").rglob("*.parquet")]
    )
    assert rows.count() == report["rows"]


def cli(arguments: list[str]) -> Any:
    from typer.testing import CliRunner

    from headwater.cli.main import app

    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_second_backup_copies_only_what_is_new(spark: SparkSession, node: Node, life: Life, target: str) -> None:
    streams = [make_stream(node, life.bucket) for _ in range(4)]
    for stream in streams:
        stream.append(b"12345")
        assert stream.publish(token(5), b"state").status == 204
        stream.append(b"67890")
    first = backup(spark, calls(node), to=target)
    assert (first["objects"], first["objects_copied"]) == (5, 5)
    second = backup(spark, calls(node), to=target)
    # What the first one left is its own record in the pipeline's stream.
    assert (second["objects"], second["objects_copied"]) == (6, 1)
    streams[0].append(b"new")
    assert streams[1].publish(token(10), b"newer").status == 204
    third = backup(spark, calls(node), to=target)
    assert (third["objects"], third["objects_copied"]) == (7, 2)
    assert [one["backup"] for one in listed(target)] == [first["backup"], second["backup"], third["backup"]]
    held = {path.name for path in Path(target, "objects").rglob("*") if path.is_file()}
    assert len(held) == 8  # each object once; what the first one needs is still there
    assert [(one["objects_reused"], one["bytes_reused"] == 0) for one in (first, second, third)] == [
        *((0, True), (5, False), (5, False)),
    ]
    assert all(
        one["bytes"] == int(str(one["bytes_copied"])) + int(str(one["bytes_reused"])) for one in (first, second, third)
    )


def objects_of(target: str) -> list[Path]:
    return sorted(path for path in Path(target, "objects").rglob("*") if path.is_file())


def test_what_is_kept_of_backups_that_share_objects_is_whole_and_can_be_restored(
    spark: SparkSession, node: Node, life: Life, target: str, tmp_path: Path
) -> None:
    stream = make_stream(node, life.bucket)
    made = []
    for number in range(3):
        stream.append(b"%05d" % number)
        made.append(backup(spark, calls(node), to=target, keep=Keep(last=2)))
    names = [str(one["backup"]) for one in made]
    assert [one["pruned"]["backups_dropped"] for one in made] == [[], [], names[:1]]  # type: ignore[index]
    assert [one["backup"] for one in listed(target)] == names[1:]
    looked = check_backups(spark, source=target)
    assert (looked["outcome"], looked["backups"], looked["objects"]) == ("done", 2, len(objects_of(target)) + 4)
    restored = restore(spark, source=target, data=tmp_path / "restored", backup=names[1])
    assert restored["records"] == made[1]["records"]
    shared = next(path for path in objects_of(target) if path.suffix == ".parquet")
    shared.write_bytes(shared.read_bytes()[::-1])
    damaged: Any = check_backups(spark, source=target)
    assert (damaged["outcome"], damaged["backups_damaged"]) == ("findings", 2)
    assert {finding["backup"] for finding in damaged["findings"]} == set(names[1:])
    assert all(shared.name in finding["what"] for finding in damaged["findings"])
    with locked(Place(target).store(), SHARED):  # another backup is under way
        again = backup(spark, calls(node), to=target, keep=Keep(last=1))
    assert again["outcome"] == "findings" and "a backup is being made" in str(again["prune_refused"])
    assert len(listed(target)) == 3
    with locked(Place(target).store(), ALONE), pytest.raises(JobRefused, match="backups are being deleted"):
        backup(spark, calls(node), to=target)
    with pytest.raises(JobRefused, match="there is no backup 7"):
        check_backups(spark, source=target, backup="7")


def test_backups_of_one_second_are_in_order_and_older_names_are_known() -> None:
    store, moments_ms = MemoryStore(), [1_794_700_000_000 + ms for ms in (0, 7, 42, 999, 1_000)]
    ids = [backup_store.new_id(ms) for ms in moments_ms]
    old = "20260101T000000Z-0123abcd"
    for name in (*reversed(ids), old, "20260101T000000.1Z-0123abcd"):
        store.put(f"{backup_store.BACKUPS}/{name}/{backup_store.MANIFEST}", b"")
    assert backup_store.names(store) == [old, *ids]


def test_an_older_backup_is_restored_by_its_name(
    spark: SparkSession, node: Node, life: Life, target: str, tmp_path: Path
) -> None:
    stream = make_stream(node, life.bucket)
    stream.append(b"then")
    first = backup(spark, calls(node), to=target)
    stream.append(b"now")
    backup(spark, calls(node), to=target)
    restore(spark, source=target, data=tmp_path / "restored", backup=str(first["backup"]))
    again = moved_in(tmp_path / "restored", tmp_path / "again")
    try:
        again.start()
        assert stream_body(again, stream) == b"then"
    finally:
        again.kill()


@pytest.mark.parametrize("what", ["data", "snapshots", "catalog", "wal", "missing", "manifest", "short"])
def test_damage_in_a_backup_is_named_and_nothing_is_restored(
    spark: SparkSession, node: Node, life: Life, target: str, tmp_path: Path, what: str
) -> None:
    stream = make_stream(node, life.bucket)
    stream.append(b"12345")
    assert stream.publish(token(5), b"state").status == 204
    stream.append(b"67890")
    name = str(backup(spark, calls(node), to=target)["backup"])
    folder = Path(target, "backups", name)
    found = {
        "data": next(Path(target, "objects", "data").rglob("*.parquet")),
        "snapshots": next(path for path in Path(target, "objects", "snapshots").rglob("*") if path.is_file()),
        "catalog": folder / "catalog" / "0.db.000000",
        "wal": next((folder / "wal").rglob("*.wal.000000")),
        "missing": next(Path(target, "objects", "data").rglob("*.parquet")),
        "manifest": folder / "manifest.json",
        "short": next(Path(target, "objects", "data").rglob("*.parquet")),
    }[what]
    if what == "missing":
        found.unlink()
    elif what == "short":
        found.write_bytes(found.read_bytes()[:-1])
    elif what == "wal":
        found.write_bytes(found.read_bytes() + b"\0")
    else:
        data = bytearray(found.read_bytes())
        data[len(data) // 2] ^= 1
        found.write_bytes(data)
    with pytest.raises(JobRefused) as refused:
        restore(spark, source=target, data=tmp_path / "restored")
    assert str(found.relative_to(target)) in refused.value.message
    assert not (tmp_path / "restored").exists()


def test_a_restore_writes_over_nothing(
    spark: SparkSession, node: Node, life: Life, target: str, tmp_path: Path
) -> None:
    make_stream(node, life.bucket).append(b"x")
    backup(spark, calls(node), to=target)
    (tmp_path / "restored").mkdir()
    (tmp_path / "restored" / "note").write_text("mine")
    with pytest.raises(JobRefused, match="restored is not empty"):
        restore(spark, source=target, data=tmp_path / "restored")
    with pytest.raises(JobRefused, match="is not empty: it holds"):
        restore(spark, source=target, data=tmp_path / "other", lake=str(node.data_directory / "lake"))
    assert [path.name for path in (tmp_path / "restored").iterdir()] == ["note"]
    assert not (tmp_path / "other").exists()


def test_wrong_uses_are_told_what_to_do(
    spark: SparkSession, node: Node, life: Life, target: str, tmp_path: Path
) -> None:
    make_stream(node, life.bucket).append(b"x")
    with pytest.raises(JobRefused, match="in one place"):
        backup(spark, calls(node), to=str(node.data_directory / "lake" / "backups"))
    with pytest.raises(JobRefused, match="in one place"):
        backup(spark, calls(node), to=str(node.directory))
    with pytest.raises(JobRefused, match="keeps nothing"):
        backup(spark, calls(node), to="memory:")
    (tmp_path / "file").write_text("")
    with pytest.raises(JobRefused, match="nothing can be written to"):
        backup(spark, calls(node), to=str(tmp_path / "file"))
    with pytest.raises(JobRefused, match="there is no backup in"):
        restore(spark, source=target, data=tmp_path / "restored")
    with Node.started(tmp_path / "memory", memory=True) as other, pytest.raises(JobRefused, match="keeps nothing"):
        backup(spark, calls(other), to=target)
    name = str(backup(spark, calls(node), to=target)["backup"])
    with pytest.raises(JobRefused, match=f"there is no backup 7 in .*: there are {name}"):
        restore(spark, source=target, data=tmp_path / "restored", backup="7")
    for key, value, why in (("format", 9, "format 9"),):
        reseal(target, name, key, value)
        with pytest.raises(JobRefused, match=why):
            restore(spark, source=target, data=tmp_path / "restored")
    reseal(target, name, "groups", 1)
    assert not (tmp_path / "restored").exists()


def reseal(target: str, name: str, key: str, value: object) -> None:
    """A manifest of another node or version, whole in itself."""
    from headwater.spark.backup_store import digest

    path = Path(target, "backups", name, "manifest.json")
    manifest = {**json.loads(path.read_bytes())["manifest"], key: value}
    raw = msgspec.json.encode(manifest)
    path.write_bytes(msgspec.json.encode({"digest": digest(raw), "manifest": msgspec.Raw(raw)}))


def test_nothing_is_called_a_backup_when_the_node_went_away_meanwhile(
    spark: SparkSession, node: Node, life: Life, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(node, life.bucket).append(b"x")
    real = backup_job.move

    def lost(*arguments: Any) -> Any:
        done = real(*arguments)
        port = node.port
        node.kill()
        node.listen = f"127.0.0.1:{port}"
        node.start()
        return done

    monkeypatch.setattr(backup_job, "move", lost)
    with pytest.raises(JobRefused, match="let go of the backup"):
        backup(spark, calls(node), to=target)
    assert listed(target) == []
    monkeypatch.undo()
    # What it copied is not vouched for by anything: it is copied again, over itself, with the record of the failed run.
    again = backup(spark, calls(node), to=target)
    assert again["objects_copied"] == again["objects"] == 2


def test_a_hold_is_let_go_of_whatever_becomes_of_the_job(
    spark: SparkSession, node: Node, life: Life, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(node, life.bucket).append(b"x")

    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(backup_job, "move", broken)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="broken"):
            backup(spark, calls(node), to=target)
    assert not list((node.data_directory / "held").glob("*/*"))


def test_an_empty_node_is_backed_up_and_restored(spark: SparkSession, node: Node, target: str, tmp_path: Path) -> None:
    summary = backup(spark, calls(node), to=target)
    assert (summary["streams"], summary["objects"]) == (0, 0)
    restore(spark, source=target, data=tmp_path / "restored")
    again = moved_in(tmp_path / "restored", tmp_path / "again")
    try:
        again.start()
        assert again.request("PUT", "/v1/stream/s", TEXT, b"first").status == 201
        flush(again)
        assert again.request("GET", "/v1/stream/s").body == b"first"
    finally:
        again.kill()
