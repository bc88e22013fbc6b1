"""Names that no stream goes by, and queries that read other streams than before: users hear of both.
The source is driven as Spark drives it, in this process (see `queries`)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.spark.matching import NoMatch
from headwater.spark.node import Node as Calls
from headwater.spark.options import BadOptions, for_batch
from headwater.spark.selection import Selection
from headwater.spark.source import plan_batch
from tests.lake.on_a_node.surface import QUIET, TEXT, append, flush, path_of
from tests.spark.queries import Query
from tests.spark.test_resuming import named, payloads
from tests.support.node import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path / "node", flags=QUIET) as running:
        yield running


def write(node: Node, key: str, count: int = 1, what: str = "x") -> None:
    with node.connect() as connection:
        connection.request("PUT", path_of(key), TEXT)
        for number in range(count):
            append(connection, key, f"{what} {number}".encode())


def unmatched(node: Node, **options: str) -> list[str]:
    return for_batch({"url": node.url, **options}).selection.unmatched(Calls(node.url))


def test_what_no_stream_goes_by_is_known_from_memory_and_from_the_catalog(node: Node) -> None:
    for key in ("orders/1", "orders/a/b", "_default/plain", "other/x", "_headwater/pipeline-runs"):
        write(node, key)
    with node.connect() as connection:
        connection.request("PUT", path_of("gone/1"), TEXT)
        connection.request("DELETE", path_of("gone/1"))
    for _ in ("in memory", "in the catalog"):
        for there in (
            {"bucket": "orders"},
            {"subscribe": "orders/1,orders/a/b,plain"},
            {"subscribePattern": "orders/*"},
            {"subscribePattern": "orders/**"},
            {"subscribePattern": "*/x"},
            {"subscribePattern": "plain"},
            {"subscribePattern": "plain/**"},
            {"subscribePattern": "**"},
            {"subscribePattern": "_headwater/*"},
            {},
        ):
            assert unmatched(node, **there) == [], there
        assert unmatched(node, bucket="orderz") == ["there is no stream in bucket orderz"]
        assert unmatched(node, bucket="gone") == ["there is no stream in bucket gone"]
        assert unmatched(node, subscribe="orders/1,orders/2,nope") == ["there is no stream _default/nope, orders/2"]
        for pattern in ("orders/*/*/*", "orderz/**", "*/y", "*/pipeline-runs", "orders", "gone/*"):
            assert unmatched(node, subscribePattern=pattern) == [f"no stream matches {pattern}"]
        node.restart()


def test_the_call_refuses_what_it_cannot_answer(node: Node) -> None:
    wrong = (b"", b"{}", b'{"bucket": "a", "pattern": "b"}', b'{"streams": 1}', b'{"other": 1}', b'{"bucket": "\xff"}')
    for body in wrong:
        assert node.request("POST", "/__headwater/groups/0/matches", TEXT, body).status == 400, body
    many = json.dumps({"streams": ["a/b"] * 1_001}).encode()
    assert node.request("POST", "/__headwater/groups/0/matches", TEXT, many).status == 400
    deep = json.dumps({"pattern": "**/a/**/a/**/a/**/a/**"}).encode()
    assert node.request("POST", "/__headwater/groups/0/matches", TEXT, deep).status == 400
    assert node.request("GET", "/__headwater/groups/0/matches").status == 405


def test_a_read_of_what_is_not_there_warns_or_is_refused(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    write(node, "orders/1")
    caplog.set_level(logging.WARNING, "headwater.spark")
    query = Query(node, bucket="orderz")
    assert query.run() == []
    assert [record.getMessage() for record in caplog.records] == [f"there is no stream in bucket orderz on {node.url}"]
    with pytest.raises(NoMatch, match="there is no stream in bucket orderz"):
        Query(node, bucket="orderz", failOnNoMatch="true").run()
    asked = {"url": node.url, "subscribe": "orders/1,orders/2"}
    caplog.clear()
    assert plan_batch(for_batch(asked), ["payload"]).tasks
    assert "there is no stream orders/2" in caplog.text
    with pytest.raises(NoMatch):
        plan_batch(for_batch({**asked, "failOnNoMatch": "true"}), ["payload"])
    caplog.clear()
    assert len(Query(node, bucket="orders", failOnNoMatch="true").run()) == 1 and not caplog.records


def test_a_query_that_reads_more_streams_than_before_says_what_it_leaves_out(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    write(node, "orders/1", 5, "one")
    write(node, "orders/2", 5, "two")
    query = Query(node, subscribe="orders/1")
    assert len(query.run()) == 5
    caplog.set_level(logging.WARNING, "headwater.spark")
    query.options["subscribe"] = "orders/1,orders/2"
    assert query.run() == []
    at = query.offset["0"]
    assert "this query read subscribe orders/1 before, and reads subscribe orders/1,orders/2 now" in caplog.text
    assert f"records up to position {at} are left out" in caplog.text and "addedStreams" in caplog.text
    write(node, "orders/2", 1, "new")
    assert payloads(query.run()) == ["new 0"]
    caplog.clear()
    write(node, "orders/2", 1, "newer")
    assert payloads(query.run()) == ["newer 0"] and not caplog.records, "by now it is what the query reads"


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "3"}])
def test_the_past_of_added_streams_is_read_once_when_asked_for(node: Node, limit: dict[str, str]) -> None:
    write(node, "orders/1", 5, "one")
    write(node, "orders/2", 10, "two")
    flush(node)
    write(node, "orders/2", 2, "hot")
    query = Query(node, subscribe="orders/1", **limit)
    assert payloads(query.run()) == named(5, "one")
    write(node, "orders/1", 1, "more")
    query.options |= {"subscribe": "", "bucket": "orders", "addedStreams": "earliest"}
    del query.options["subscribe"]
    partly = query.run(batches_max=1)
    node.restart()
    query.node = node
    found = payloads([*partly, *query.run()])
    assert sorted(found) == sorted([*named(10, "two"), *named(2, "hot"), *named(1, "more")])
    write(node, "orders/1", 1, "last")
    write(node, "orders/2", 1, "last")
    assert payloads(query.run()) == ["last 0", "last 0"]
    assert "past" not in query.offset


def test_of_a_long_list_only_a_hash_is_kept_and_its_past_cannot_be_asked_for(node: Node) -> None:
    write(node, "orders/1")
    long = ",".join(f"orders/{number:060d}" for number in range(50))
    query = Query(node, subscribe=f"orders/1,{long}")
    query.run()
    assert len(query.offsets[-1]) < 500 and set(query.offset["selection"]) == {"hash"}
    query.options["subscribe"] = "orders/1"
    assert query.run() == []
    with pytest.raises(BadOptions, match="only a hash"):
        query.run(addedStreams="earliest")


def test_what_is_left_out_of_a_choice_is_left_out_of_every_test_of_it() -> None:
    import pyarrow as pa

    chosen = Selection(bucket="orders", minus=Selection(pattern="orders/a/**"))
    rows = pa.table({"bucket": ["orders", "orders", "other"], "stream": ["1", "a/b", "1"]})
    assert chosen.mask(rows).to_pylist() == [True, False, False]
    assert [chosen.takes(row["bucket"], row["stream"]) for row in rows.to_pylist()] == [True, False, False]
    assert chosen.needs(lambda column: ("orders", "orders")) == {"bucket", "stream"}
