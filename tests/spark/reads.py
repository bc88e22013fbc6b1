"""What tests of the source share: streams to fill, frames as plain rows, and the comparison with what HTTP shows.
Owns nothing that runs. HTTP is asked for the streams as they are; the source is never asked what is right."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.lake.on_a_node.surface import JSON, TEXT, append, create, incarnation, path_of
from tests.support.http import Connection, read_pages
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
COLUMNS = [
    *("bucket", "stream", "incarnation", "seq", "offset", "timestamp", "n", "group", "position", "content_type"),
    "payload",
]


def load(spark: SparkSession, node: Node, **options: str) -> DataFrame:
    return spark.read.format("headwater").option("url", node.url).options(**options).load()


def rows_of(frame: DataFrame) -> list[Row]:
    found = [row.asDict() for row in frame.collect()]
    return [row | {"payload": bytes(row["payload"])} if "payload" in row else row for row in found]


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["bucket"], row["stream"], row["incarnation"], row["seq"]))


def position(node: Node) -> int:
    found: int = node.request("GET", "/__headwater/groups").json()["groups"][0]["position"]
    return found


def fill(connection: Connection, keys: Iterable[str], rounds: int, first: int = 0) -> None:
    """Appends to each stream so many times; those whose name ends in `json` get several messages each time."""
    for number in range(first, first + rounds):
        for key in keys:
            if number == 0:
                create(connection, key, JSON if key.endswith("json") else TEXT)
            if key.endswith("json"):
                batch = [{"n": number, "part": part, "text": "ß" * part} for part in range(number % 3 + 1)]
                append(connection, key, json.dumps(batch).encode(), JSON)
            else:
                append(connection, key, f"{key} {number} ".encode() + bytes([number % 256]) * (number % 7))


def shown(connection: Connection, key: str) -> tuple[int, list[Any]]:
    """What HTTP shows of a stream from its earliest record on: the offset there, and messages or all bytes."""
    head = connection.request("HEAD", path_of(key))
    start = connection.request("GET", f"{path_of(key)}?offset=-1")
    earliest = start.header("stream-earliest-offset") if start.status == 410 else None
    assert head.status == 200, head
    pages = list(read_pages(connection, path_of(key), earliest or "-1"))
    if (pages[0].header("content-type") or "").startswith("application/json"):
        return int(earliest or 0), [message for page in pages for message in page.json()]
    return int(earliest or 0), [b"".join(page.body for page in pages)]


def assert_shown(node: Node, keys: Iterable[str], rows: Iterable[Row], others: Iterable[str] = ()) -> None:
    """The rows are exactly the records that HTTP shows of these streams, and there is none of any other."""
    by_stream: dict[tuple[str, int], list[Row]] = {}
    for row in in_order(rows):
        by_stream.setdefault((f"{row['bucket']}/{row['stream']}", row["incarnation"]), []).append(row)
    with node.connect() as connection:
        known = {}
        for key in keys:
            sid = incarnation(connection, key)
            assert sid is not None, key
            known[key, sid] = by_stream.get((key, sid), [])
            earliest, expected = shown(connection, key)
            found = known[key, sid]
            assert_contiguous(found, earliest)
            payloads = [row["payload"] for row in found]
            if found and found[0]["content_type"].startswith("application/json"):
                assert [json.loads(payload) for payload in payloads] == expected, key
            else:
                assert [b"".join(payloads)] == expected, key
    strangers = {key for key in by_stream if key not in known and key[0] not in set(others)}
    assert not strangers


def assert_contiguous(found: list[Row], earliest: int = 0) -> None:
    """Records of one stream follow each other without a gap, and none is there twice."""
    if not found:
        return
    first = found[0]
    assert first["offset"] == earliest
    assert [row["seq"] for row in found] == list(range(first["seq"], first["seq"] + len(found)))
    offset = first["offset"]
    for row in found:
        assert row["offset"] == offset
        offset += len(row["payload"])
    positions = [row["position"] for row in found]
    assert positions == sorted(positions)


def snapshot(connection: Connection, key: str, offset: int) -> None:
    """The stream lets go of everything before that offset."""
    path = f"/{key}/snapshot/{offset:020d}"
    answer = connection.request("PUT", path, {"Content-Type": "text/plain"}, b"so far")
    assert answer.status == 204, answer


def bucketed(node: Node, buckets: Iterable[str]) -> None:
    for bucket in buckets:
        assert node.request("PUT", f"/{bucket}").status in (200, 201)
