"""A node with its lake as its users meet it: streams over HTTP, the table through a library that is not ours.
Owns the comparison of the two. Never looks into the node's own files beyond the lake."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from deltalake import DeltaTable
from typer.testing import CliRunner

from headwater.cli.main import app
from tests.support.http import Connection, Response, read_bytes, read_pages
from tests.support.node import Node

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
# Files, logs and waits so small that a short test meets many of each.
SMALL = (
    *("--flush-bytes", "64KiB", "--lake-file-bytes", "32KiB", "--flush-interval-ms", "50"),
    *("--checkpoint-interval-ms", "50", "--log-file-bytes", "2MiB", "--body-bytes-max", "512KiB"),
)
QUIET = ("--flush-bytes", "1GiB", "--flush-interval-ms", "86400000")
"""A node that settles only when it is asked to."""

Row = tuple[str, int, int, bytes]
"""(bucket/stream, seq, offset, payload)"""


def path_of(key: str) -> str:
    return f"/v1/stream/{quote(key)}"


def create(connection: Connection, key: str, headers: Mapping[str, str] = TEXT, body: bytes | None = None) -> Response:
    answer = connection.request("PUT", path_of(key), headers, body)
    assert answer.status == 201, answer
    return answer


def append(connection: Connection, key: str, body: bytes, headers: Mapping[str, str] = TEXT) -> None:
    answer = connection.request("POST", path_of(key), headers, body)
    assert answer.status in (200, 204), answer


def flush(node: Node) -> int:
    """Everything acknowledged before is in the table afterwards."""
    answer = node.request("POST", "/__headwater/flush")
    assert answer.status == 200, answer
    assert node.request("GET", "/__headwater/groups").json()["groups"][0]["hot_bytes"] == 0
    flushed: int = answer.json()["flushed_bytes"]
    return flushed


def metric(node: Node, name: str) -> float:
    values: dict[str, float] = node.request("GET", "/__headwater/metrics").json()
    return next(value for key, value in values.items() if key.removeprefix("headwater_") == name)


def table_rows(place: str | Path, options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = DeltaTable(str(place), storage_options=options).to_pyarrow_table().to_pylist()
    return table


def tabled(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, int], dict[int, tuple[int, bytes]]]:
    """Records by stream, incarnation and seq. Fails when a record is there twice."""
    found: dict[tuple[str, int], dict[int, tuple[int, bytes]]] = {}
    for row in rows:
        key = f"{row['bucket']}/{row['stream']}"
        records = found.setdefault((key, row["incarnation"]), {})
        assert row["seq"] not in records, f"{key} has record {row['seq']} twice in the table"
        records[row["seq"]] = (row["offset"], row["payload"])
    return found


def incarnation(connection: Connection, key: str) -> int | None:
    """Which stream of that name there is now; its ETag says so."""
    head = connection.request("HEAD", path_of(key))
    return int((head.header("etag") or "").strip('"').partition(":")[0]) if head.status == 200 else None


def assert_table_is_http(
    node: Node, keys: Iterable[str], place: str | Path, options: dict[str, str] | None = None
) -> None:
    """The table holds exactly the records that HTTP returns for these streams (none of them trimmed or a fork)."""
    assert_rows_are_http(node, keys, table_rows(place, options))


def assert_rows_are_http(node: Node, keys: Iterable[str], rows: Iterable[dict[str, Any]]) -> None:
    found = tabled(rows)
    with node.connect() as connection:
        for key in keys:
            records = found.get((key, incarnation(connection, key) or 0), {})
            assert sorted(records) == list(range(len(records))), f"{key} has holes in the table"
            payloads = [records[seq][1] for seq in sorted(records)]
            starts = [0]
            for payload in payloads:
                starts.append(starts[-1] + len(payload))
            assert [records[seq][0] for seq in sorted(records)] == starts[:-1], key
            pages = list(read_pages(connection, path_of(key)))
            if (pages[0].header("content-type") or "").startswith("application/json"):
                shown = [message for page in pages for message in page.json()]
                assert [json.loads(payload) for payload in payloads] == shown, key
            else:
                assert b"".join(payloads) == b"".join(page.body for page in pages), key
            assert pages[-1].header("stream-next-offset") == f"{starts[-1]:020d}", key


def content(node: Node, key: str) -> bytes:
    with node.connect() as connection:
        return read_bytes(connection, path_of(key))


def assert_verified(node: Node, *flags: str) -> None:
    """`headwater lake verify --deep` finds nothing on what the stopped node left behind."""
    done = CliRunner().invoke(app, ["lake", "verify", "--data", str(node.data_directory), "--deep", "--json", *flags])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["findings"] == [] and report["rows"] > 0, report
