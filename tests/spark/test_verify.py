"""The audit on Spark: silent about a lake that is right, whatever goes on in it, and outspoken about every damage.
Damage is done by hand, to objects and to the catalog of a stopped node."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.lake.layout import SCHEMA
from headwater.lake.sorted_writer import write_sorted
from headwater.model.extents import Extent
from headwater.spark.node import Node as Calls
from tests.lake.on_a_node.surface import append, create, flush, path_of
from tests.spark.lakes import FLAGS, Model, delete, fill, fork, keys, lake_files, run_cli, snapshot, table_files
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import Cluster

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=FLAGS) as running:
        yield running
        assert "Traceback" not in running.stderr(), running.output()


def verified(spark: SparkSession, node: Node, deep: bool = False) -> dict[str, Any]:
    from headwater.spark.jobs.verify import verify

    return verify(spark, Calls(node.url), deep=deep)


def kinds(spark: SparkSession, node: Node, deep: bool = False) -> set[tuple[str, str]]:
    found = verified(spark, node, deep)
    assert found["findings_count"] == len(found["findings"])
    assert found["outcome"] == ("findings" if found["findings"] else "done")
    return {(one["kind"], one["subject"]) for one in found["findings"]}


# ---- a lake that is right ---------------------------------------------------------------------------------------


def test_a_lake_that_is_right_has_no_findings_and_is_counted(spark: SparkSession, node: Node) -> None:
    model: Model = {}
    fill(node, model, keys(20), rounds=3)
    delete(node, model, keys(1)[0])
    with node.connect() as connection:
        append(connection, keys(2)[1], b"not settled yet")
    for runs, deep in enumerate((False, True)):
        found = verified(spark, node, deep)
        assert found["findings"] == [] and found["looks"] == 1 and found["outcome"] == "done"
        # A job leaves a record of itself, in a stream of its own.
        assert (found["streams"], found["streams_hot"]) == (19 + runs, 1 + runs)
        assert found["hot_bytes"] == 15 if not runs else found["hot_bytes"] > 15
        assert (found["files"], found["files_read"], found["objects"], found["objects_unused"]) == (3, 3, 3, 0)
        assert (found["extents"], found["rows"], found["rows_read"]) == (19 * 3, 19 * 9, 180)
        assert found["bytes"] == sum(len(record) for records in model.values() for record in records)


def test_an_empty_lake_is_right(spark: SparkSession, node: Node) -> None:
    found = verified(spark, node)
    assert (found["findings"], found["files"], found["streams"]) == ([], 0, 0)
    with node.connect() as connection:
        create(connection, "lake/empty")
    assert verified(spark, node)["findings"] == []


def test_forks_snapshots_and_what_they_let_go_of_are_right(spark: SparkSession, node: Node) -> None:
    model: Model = {}
    fill(node, model, keys(4), rounds=3, records=4)
    first = keys(4)[0]
    edges = [sum(map(len, model[first][:count])) for count in range(13)]
    fork(node, "lake/child", first, edges[8])
    fill_on(node, "lake/child", 3)
    fork(node, "lake/grandchild", "lake/child", edges[8] + 5)
    fill_on(node, "lake/grandchild", 3)
    snapshot(node, first, edges[6])
    snapshot(node, "lake/child", edges[5])
    snapshot(node, keys(4)[1], 0)
    assert node.request("DELETE", path_of(first)).status == 204
    flush(node)
    found = verified(spark, node, deep=True)
    assert found["findings"] == []
    assert found["snapshots"] >= 2 and found["streams"] == 6


def fill_on(node: Node, name: str, count: int) -> None:
    with node.connect() as connection:
        for _ in range(count):
            append(connection, name, b"12345")
    flush(node)


def test_what_goes_on_meanwhile_is_no_finding(spark: SparkSession, node: Node) -> None:
    """Streams come, grow, settle, let go and are deleted, and files are swapped, while it looks."""
    from headwater.spark.lake_listing import listed
    from headwater.spark.rewrite import Changed, rewrite

    model: Model = {}
    fill(node, model, keys(10), rounds=3)
    over = threading.Event()
    rounds = 0

    def go_on() -> None:
        nonlocal rounds
        with node.connect() as connection:
            while not over.is_set():
                rounds += 1
                for name in keys(10):
                    append(connection, name, b"more of it\n")
                passing = f"lake/passing-{rounds}"
                create(connection, passing, body=b"soon deleted")
                flush_quietly(node)
                snapshot(node, keys(3)[rounds % 3], tail(node, keys(3)[rounds % 3]))
                if rounds > 2:
                    node.request("DELETE", path_of(f"lake/passing-{rounds - 2}"))
                over.wait(0.1)

    thread = threading.Thread(target=go_on)
    thread.start()
    swaps = 0
    try:
        for _ in range(3):
            found = verified(spark, node, deep=True)
            assert found["findings"] == [], found
            listing = listed(Calls(node.url), 0)
            try:
                rewrite(spark, Calls(node.url), listing, listing.files, 1 << 27, lambda *_: None)
                swaps += 1
            except Changed:
                pass
    finally:
        over.set()
        thread.join()
    assert rounds > 3 and swaps
    assert verified(spark, node, deep=True)["findings"] == []


def flush_quietly(node: Node) -> None:
    assert node.request("POST", "/__headwater/flush").status == 200


def tail(node: Node, name: str) -> int:
    return int(node.request("HEAD", path_of(name)).header("stream-next-offset") or 0)


def test_a_swap_in_the_middle_of_a_look_is_no_finding(
    spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that were listed are gone from the catalog when their extents are asked for."""
    from headwater.spark.jobs import verify as job
    from headwater.spark.jobs.compact import compact

    fill(node, {}, keys(10), rounds=4)
    listings, calls = job.listings, 0

    def swapped_behind(calls_of: Calls) -> Any:
        nonlocal calls
        found = listings(calls_of)
        calls += 1
        if calls == 2:
            assert compact(spark, calls_of)["swaps"] == 1
        return found

    monkeypatch.setattr(job, "listings", swapped_behind)
    found = verified(spark, node)
    assert found["findings"] == [] and found["looks"] == 2


# ---- damage to objects ------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_payload(path: Path) -> None:
    """A bit of the payload column: its checksum knows."""
    column = pq.read_metadata(path).row_group(0).column(SCHEMA.get_field_index("payload"))
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 5] ^= 1
    path.write_bytes(content)


def remade(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Another file with valid checksums in its place."""
    rows = pq.read_table(path).to_pylist()
    change(rows)
    written = write_sorted(pa.Table.from_pylist(rows, schema=SCHEMA).to_batches(), 0, "t")
    assert written is not None
    path.write_bytes(b"".join(written.data))


def drop_row(rows: list[dict[str, Any]]) -> None:
    del rows[len(rows) // 2]


def shorten_payload(rows: list[dict[str, Any]]) -> None:
    rows[4]["payload"] = rows[4]["payload"][:-1]


def exchange_offsets(rows: list[dict[str, Any]]) -> None:
    rows[1]["offset"] += 1


def reverse_ids(rows: list[dict[str, Any]]) -> None:
    rows[1]["ts_ms"] = rows[0]["ts_ms"] - 1


def rename_stream(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["stream"] == "stream-003":
            row["stream"] = "stream-003-other"


DAMAGE: dict[str, tuple[Callable[[Path], object], bool, set[str]]] = {
    "a file that is cut": (cut, False, {"damage"}),
    "a file that is gone": (lambda path: path.unlink(), False, {"store"}),
    "a file of nothing": (lambda path: path.write_bytes(b""), False, {"damage"}),
    "a flipped bit of a payload": (flip_payload, True, {"damage"}),
    "a missing row": (lambda path: remade(path, drop_row), False, {"store", "table", "damage", "rows"}),
    "a shorter payload": (lambda path: remade(path, shorten_payload), True, {"rows", "store"}),
    "a wrong offset": (lambda path: remade(path, exchange_offsets), True, {"rows", "store"}),
    "a wrong id": (lambda path: remade(path, reverse_ids), False, {"rows", "store", "id"}),
    "a wrong name": (lambda path: remade(path, rename_stream), False, {"name", "store"}),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_to_a_file_is_found(spark: SparkSession, node: Node, what: str) -> None:
    harm, deep, expected = DAMAGE[what]
    fill(node, {}, keys(6), rounds=3)
    victim = table_files(node)[1]
    harm(victim)
    name = f"data/0/{victim.name}"
    found = kinds(spark, node, deep)
    assert found and {kind for kind, _ in found} <= expected
    assert {subject for _, subject in found} <= {name, "lake/stream-000", "lake/stream-003"}
    assert what != "a wrong name" or ("name", "lake/stream-003") in found


def test_a_flipped_bit_of_a_payload_is_only_seen_by_who_reads_payloads(spark: SparkSession, node: Node) -> None:
    fill(node, {}, keys(6), rounds=1)
    flip_payload(table_files(node)[0])
    assert kinds(spark, node) == set()
    assert {kind for kind, _ in kinds(spark, node, deep=True)} == {"damage"}


def test_a_snapshot_that_is_gone_is_found(spark: SparkSession, node: Node) -> None:
    fill(node, {}, keys(3), rounds=2)
    snapshot(node, keys(2)[1], 0)
    (blob,) = (path for path in (node.data_directory / "lake" / "snapshots").rglob("*") if path.is_file())
    blob.unlink()
    assert kinds(spark, node) == {("snapshot", keys(2)[1])}


# ---- damage to the catalog --------------------------------------------------------------------------------------


def doctored(node: Node, change: Callable[[sqlite3.Connection, list[Extent]], None]) -> None:
    """Changes the catalog of the stopped node; `change` gets the extents of the second stream."""
    assert node.terminate() == 0
    with closing(sqlite3.connect(node.data_directory / "catalog" / "0.db")) as db, db:
        rows = db.execute("select row from extents order by sid, start").fetchall()
        extents = [msgspec.msgpack.decode(row, type=Extent) for (row,) in rows]
        sid = sorted({extent.sid for extent in extents})[1]
        change(db, [extent for extent in extents if extent.sid == sid])
    node.start()


def lose(number: int) -> Callable[[sqlite3.Connection, list[Extent]], None]:
    def act(db: sqlite3.Connection, extents: list[Extent]) -> None:
        db.execute("delete from extents where sid = ? and start = ?", (extents[number].sid, extents[number].start))

    return act


def stretch_extent(db: sqlite3.Connection, extents: list[Extent]) -> None:
    longer = msgspec.structs.replace(extents[0], end=extents[0].end + 7)
    new = (msgspec.msgpack.encode(longer), longer.end, longer.sid, longer.start)
    db.execute("update extents set row = ?, end = ? where sid = ? and start = ?", new)


def misplace_extent(db: sqlite3.Connection, extents: list[Extent]) -> None:
    elsewhere = msgspec.structs.replace(extents[0], row_start=extents[0].row_start + 1)
    new = (msgspec.msgpack.encode(elsewhere), elsewhere.sid, elsewhere.start)
    db.execute("update extents set row = ? where sid = ? and start = ?", new)


CATALOG = {
    "a gap": (lose(1), {"gap"}),
    "a lost beginning": (lose(0), {"gap"}),
    "a lost end": (lose(-1), {"gap"}),
    "an overlap": (stretch_extent, {"overlap", "rows"}),
    "extents of other rows": (misplace_extent, {"rows", "overlap"}),
}


@pytest.mark.parametrize("what", CATALOG)
def test_damage_to_the_catalog_is_found(spark: SparkSession, node: Node, what: str) -> None:
    harm, expected = CATALOG[what]
    fill(node, {}, keys(4), rounds=3)
    doctored(node, harm)
    found = verified(spark, node, deep=True)
    assert {one["kind"] for one in found["findings"]} == expected, found["findings"]
    assert found["looks"] == 2


def test_what_a_fork_has_lost_of_its_source_is_found(spark: SparkSession, node: Node) -> None:
    model: Model = {}
    fill(node, model, keys(3), rounds=3)
    second = keys(2)[1]
    half = sum(map(len, model[second][:6]))
    fork(node, "lake/fork", second, half)
    snapshot(node, second, half)  # it needs nothing before it itself
    flush(node)
    assert kinds(spark, node) == set()
    doctored(node, lose(0))
    found = verified(spark, node)
    assert [(one["kind"], one["subject"]) for one in found["findings"]] == [("gap", second)], found["findings"]


def test_extents_of_a_stream_that_does_not_exist_are_found(spark: SparkSession, node: Node) -> None:
    fill(node, {}, keys(4), rounds=2)

    def orphan(db: sqlite3.Connection, extents: list[Extent]) -> None:
        db.execute("delete from streams where sid = ?", (extents[0].sid,))

    doctored(node, orphan)
    found = verified(spark, node)
    assert [(one["kind"], one["what"]) for one in found["findings"]] == [
        ("extent", "2 extents of a stream that does not exist")
    ]


# ---- elsewhere --------------------------------------------------------------------------------------------------


def test_the_command_ends_with_1_and_names_what_is_wrong(node: Node) -> None:
    fill(node, {}, keys(3), rounds=2)
    arguments = ("pipeline", "run", "verify", "--url", node.url, "--master", "local[2]")
    assert run_cli(*arguments, "--deep")["findings_count"] == 0
    cut(table_files(node)[0])
    found = run_cli(*arguments, exit_code=1)
    assert found["findings_count"] == 1 and found["findings"][0]["kind"] == "damage"
    assert json.dumps(found["findings"][0]["subject"]).startswith('"data/0/')


STANDALONE = """
import json, sys
from pathlib import Path
from headwater.spark.jobs.compact import compact
from headwater.spark.jobs.usage import usage
from headwater.spark.jobs.verify import verify
from headwater.spark.node import Node
from headwater.spark.session import session

spark = session("standalone", sys.argv[1], **json.loads(sys.argv[3]))
node = Node(sys.argv[2])
print(json.dumps([verify(spark, node), compact(spark, node), verify(spark, node, deep=True), usage(spark, node)]))
spark.stop()
"""


def test_the_jobs_run_on_a_standalone_cluster(cluster: Cluster, node: Node) -> None:
    """In a driver of their own: this process has a session already."""
    import subprocess
    import sys

    fill(node, {}, keys(10), rounds=4)
    command = [sys.executable, "-c", STANDALONE, cluster.url, node.url, json.dumps(dict(cluster.conf()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    first, compaction, second, usage = json.loads(done.stdout.splitlines()[-1])
    assert first["findings"] == second["findings"] == [] and first["rows"] == second["rows"] == 120
    assert (compaction["files_before"], compaction["files_after"]) == (4, 1) == (4, len(lake_files(node)))
    assert usage["settled_records"] == 120
