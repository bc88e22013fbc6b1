"""What a deleted stream leaves in a node's own files is gone when `/__headwater/erase` has answered, and in its lake
after gc, on a quiet node too. Every file is searched, byte by byte, and Parquet once more as what it holds."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headwater.catalog.scrub import holds, scrub
from tests.lake.on_a_node.surface import JSON, TEXT, append, create, flush, path_of, table_rows
from tests.support.http import read_bytes
from tests.support.node import Node

KEY = "people/miss-quillfeather"
NAME = b"miss-quillfeather"
PAYLOAD = b"her-unmistakable-payload"
QUIET = ("--flush-interval-ms", "86400000", "--checkpoint-interval-ms", "3600000", "--lake-gc-interval-ms", "86400000")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=QUIET) as running:
        yield running
        assert "Traceback" not in running.stderr(), running.output()


def erase(node: Node, key: str = KEY) -> dict[str, Any]:
    answer = node.request("POST", "/__headwater/erase", JSON, json.dumps({"stream": key}).encode())
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json()
    return found


def traces(folder: Path, *wanted: bytes) -> list[str]:
    """Files below the folder that hold any of the texts, by name and by what they hold."""
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(text in piece for piece in _contents(path) for text in wanted)
    ]


def _contents(path: Path) -> Iterable[bytes]:
    yield path.name.encode()
    yield path.read_bytes()
    if path.suffix == ".parquet":
        yield repr(pq.read_table(path).to_pylist()).encode()
        footer = pq.read_metadata(path)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            yield repr([group.column(index).statistics for index in range(group.num_columns)]).encode()


def own_traces(node: Node) -> list[str]:
    return [path for path in traces(node.data_directory, NAME, PAYLOAD) if not path.startswith("lake/")]


def write(node: Node, records: int = 20) -> dict[str, bytes]:
    """A stream that has to go among others that stay, before it and behind it in every order."""
    kept = {}
    with node.connect() as connection:
        for key in ("people/aaron", KEY, "people/zoe"):
            create(connection, key)
            for number in range(records):
                text = PAYLOAD if key == KEY else key.encode()
                append(connection, key, b"%s %d\n" % (text, number))
            if key != KEY:
                kept[key] = b"".join(b"%s %d\n" % (key.encode(), number) for number in range(records))
    return kept


def delete(node: Node, key: str = KEY) -> None:
    assert node.request("DELETE", path_of(key)).status == 204


def assert_kept(node: Node, kept: dict[str, bytes]) -> None:
    for key, body in kept.items():
        assert node.request("GET", path_of(key)).body == body
    assert node.request("GET", path_of(KEY)).status == 404


def collect_garbage(node: Node) -> None:
    """What gc does when its time has come: one run finds what nothing refers to, the next one deletes it."""
    from tests.spark.lakes import run_cli

    for _ in range(2):
        run_cli("lake", "gc", "--data", str(node.data_directory), "--grace-ms", "0", "--json")


def test_nothing_of_a_deleted_stream_is_left_in_log_and_catalog_of_a_quiet_node(node: Node) -> None:
    kept = write(node)
    flush(node)
    with node.connect() as connection:
        append(connection, KEY, PAYLOAD + b" in memory alone\n")
        append(connection, "people/zoe", b"in memory alone\n")
        kept["people/zoe"] += b"in memory alone\n"
    delete(node)
    assert own_traces(node), "the test looks in the wrong place"
    answer = erase(node)
    assert own_traces(node) == []
    assert answer["backups_held"] == 0 and answer["subscriptions"] == []
    assert_kept(node, kept)
    node.restart()
    assert_kept(node, kept)
    assert own_traces(node) == []


def test_the_lake_and_its_log_follow_after_gc(node: Node) -> None:
    for key, body in ((KEY, PAYLOAD), ("people/other", b"other\n")):  # a file for each, and a commit
        with node.connect() as connection:
            create(connection, key)
            append(connection, key, body)
        flush(node)
    delete(node)
    erase(node)
    assert node.terminate() == 0
    assert any(path.startswith("lake/_delta_log/") for path in traces(node.data_directory, NAME))
    collect_garbage(node)
    assert traces(node.data_directory, NAME, PAYLOAD) == []
    node.start()
    assert_kept(node, {"people/other": b"other\n"})
    with node.connect() as connection:
        append(connection, "people/other", b"more\n")
    flush(node)
    assert_kept(node, {"people/other": b"other\nmore\n"})
    rows = table_rows(node.data_directory / "lake")
    assert sorted(row["payload"] for row in rows) == [b"more\n", b"other\n"]


def test_an_erasure_that_changed_nothing_is_safe_to_repeat(node: Node) -> None:
    first, second = erase(node), erase(node)
    assert second["log_positions"]["0"] > first["log_positions"]["0"]
    assert (second["stream_hash"], second["catalog_rewritten"]) == (first["stream_hash"], False)
    write(node)
    flush(node)


def test_the_hash_needs_the_key_and_the_same_name_has_the_same_hash(node: Node) -> None:
    def hashed(key: str) -> str:
        answer = node.request("POST", "/__headwater/erase/known", JSON, json.dumps({"stream": key}).encode())
        assert answer.status == 200, answer
        found: str = answer.json()["stream_hash"]
        return found

    mine = hashed(KEY)
    assert mine == erase(node)["stream_hash"] and mine != hashed("people/zoe") and "quill" not in mine
    assert (node.data_directory / "receipt-key").stat().st_mode & 0o077 == 0
    node.restart()
    assert hashed(KEY) == mine
    node.kill()
    (node.data_directory / "receipt-key").unlink()
    node.start()
    assert hashed(KEY) != mine


def test_a_bad_wish_is_refused(node: Node) -> None:
    for body in (b"", b"{}", b'{"stream": 1}', b'{"stream": ""}', b'{"stream": "a/../b"}'):
        answer = node.request("POST", "/__headwater/erase", JSON, body)
        assert answer.status == 400, (body, answer)
    assert node.request("GET", "/__headwater/erase").status == 405
    assert node.request("POST", "/__headwater/erase/x", JSON, b'{"stream": "a/b"}').status == 404


def test_a_backup_under_way_is_told_and_its_copies_go_with_it(node: Node) -> None:
    write(node)
    held = node.request("POST", "/__headwater/groups/0/backup", JSON, b'{"hold_ms": 600000}').json()
    delete(node)
    assert erase(node)["backups_held"] == 1
    assert {path.partition("/")[0] for path in own_traces(node)} == {"held"}
    assert node.request("DELETE", f"/__headwater/groups/0/backup/{held['id']}").status == 204
    assert erase(node)["backups_held"] == 0 and own_traces(node) == []


def test_subscriptions_that_name_it_are_told(node: Node) -> None:
    write(node)
    for name, wish in (("names", {"streams": [KEY]}), ("matches", {"pattern": "people/*"})):
        body = {"type": "pull-wake", "wake_stream": f"wakes/{name}", **wish}
        answer = node.request("PUT", f"/v1/stream/__ds/subscriptions/{name}", JSON, json.dumps(body).encode())
        assert answer.status in (200, 201), answer
    delete(node)
    assert erase(node)["subscriptions"] == ["names"]
    assert node.request("DELETE", "/v1/stream/__ds/subscriptions/names").status == 204
    assert erase(node)["subscriptions"] == [] and own_traces(node) == []


def test_a_node_without_a_lake_says_so(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True) as node:
        answer = node.request("POST", "/__headwater/erase", TEXT, b'{"stream": "a/b"}')
        assert answer.status == 400 and "keeps nothing" in answer.body.decode()


def test_others_write_on_meanwhile_and_lose_nothing(node: Node) -> None:
    write(node, records=200)
    delete(node)
    stop = threading.Event()
    written: list[list[bytes]] = [[] for _ in range(2)]

    def go_on(number: int) -> None:
        with node.connect() as connection:
            create(connection, f"busy/{number}")
            while not stop.is_set():
                written[number].append(b"%d\n" % len(written[number]))
                append(connection, f"busy/{number}", written[number][-1])

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            erase(node)
            assert own_traces(node) == []
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    node.restart()  # killed: what is in no catalog comes from the log
    with node.connect() as connection:
        for number, records in enumerate(written):
            assert records and read_bytes(connection, path_of(f"busy/{number}")) == b"".join(records)


# ---- the catalog's files ----------------------------------------------------------------------------------------


def test_a_name_that_an_older_version_left_in_free_pages_is_written_over(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog.db"
    long = "people/" + "q" * 900
    with sqlite3.connect(catalog) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("pragma secure_delete = off")
        db.execute("create table streams (key text primary key, row blob) without rowid")
        for key in [KEY, long, *(f"people/{number:04d}" for number in range(2_000))]:
            db.execute("insert into streams values (?, ?)", (key, key.encode() * 2))
    with sqlite3.connect(catalog) as db:
        db.execute("delete from streams where key = ? or key = ?", (KEY, long))
    db.execute("pragma wal_checkpoint(truncate)")
    db.close()
    assert holds(catalog, KEY) and holds(catalog, long)
    assert scrub(catalog, KEY) is True
    assert scrub(catalog, KEY) is False and scrub(catalog, long) is False
    assert traces(tmp_path, NAME, b"q" * 100) == []
    with sqlite3.connect(catalog) as db:
        assert db.execute("select count(*) from streams").fetchone() == (2_000,)
    db.close()


def test_a_name_across_the_blocks_of_a_search_is_found(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for at in ((1 << 20) - 5, (1 << 20) - len(KEY), 1 << 20, (2 << 20) - 1):
        file.write_bytes(b"x" * at + KEY.encode() + b"x" * 100)
        assert holds(file, KEY), at
    file.write_bytes(b"x" * (3 << 20))
    assert not holds(file, KEY)
