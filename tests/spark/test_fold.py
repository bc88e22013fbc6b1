"""`fold`: snapshots of streams against a plain model of them, of many streams, again and again, and beside writers.
What is compared is what a client gets: the bootstrap of a stream, and the records that follow."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import pytest

from headwater.spark.folding import merged
from headwater.spark.group_states import ends_of, heads_of
from headwater.spark.job_runs import JobRefused
from headwater.spark.jobs import fold as job
from headwater.spark.jobs.fold import fold
from headwater.spark.node import Node as Calls
from tests.doors.http.extensions.surface import parts_of
from tests.spark.conftest import QUICK
from tests.support.http import read_messages
from tests.support.node import Node
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
JSON = "application/json"
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
Model = dict[str, list[bytes]]


def fill(calls: Calls, model: Model, streams: dict[str, list[bytes]], kind: str = JSON) -> None:
    """Appends records to streams, many in one request."""
    names = list(streams)
    for at in range(0, len(names), 500):
        entries = [
            {"stream": name, "content_type": kind, "create": True, "binary": streams[name]}
            for name in names[at : at + 500]
        ]
        headers = {"Content-Type": "application/msgpack"}
        answers = json.loads(calls.call("POST", "/__headwater/append", msgspec.msgpack.encode(entries), headers).body)
        assert {answer["status"] for answer in answers} == {204}
    for name, records in streams.items():
        model.setdefault(name, []).extend(records)


def events(seed: int, count: int) -> list[bytes]:
    rng = random.Random(seed)
    return [
        json.dumps({"id": f"k{rng.randrange(4)}", "op": rng.choice(["set", "set", "delete"]), "n": n}).encode()
        for n in range(count)
    ]


def bootstrap(node: Node, name: str) -> tuple[bytes, list[bytes], str]:
    """The snapshot, the records after it, and the snapshot's offset."""
    bucket, _, stream = name.partition("/")
    answer = node.request("GET", f"/{bucket}/{quote(stream, safe='')}/bootstrap")
    assert answer.status == 200, answer
    offset = answer.header("stream-snapshot-offset")
    assert offset is not None
    snapshot, *records = (part.body for part in parts_of(answer))
    return snapshot, records, offset


def last_of(records: list[bytes]) -> list[Any]:
    state: dict[str, Any] = {}
    for event in map(json.loads, records):
        state.pop(event["id"], None)
        if event["op"] != "delete":
            state[event["id"]] = event
    return list(state.values())


def merged_of(records: list[bytes]) -> Any:
    state: Any = {}
    for record in records:
        state = merged(state, json.loads(record))
    return state


def assert_folded(node: Node, model: Model, name: str, made_of: Any) -> None:
    body, rest, offset = bootstrap(node, name)
    assert rest == []
    assert json.loads(body) == made_of(model[name]), name
    assert int(offset) == sum(map(len, model[name]))


def test_two_thousand_streams_are_folded_and_then_only_those_that_changed(spark: SparkSession, node: Node) -> None:
    calls, model = Calls(node.url), Model()
    fill(calls, model, {f"runs/stream {n}": events(n, 3 + n % 5) for n in range(2_000)})

    def run() -> dict[str, Any]:
        return fold(spark, calls, key=("/id",), deleted="/op=delete", min_records=3, bucket="runs")

    first = run()
    assert (first["due"], first["published"], first["failed"], first["incomplete"]) == (2_000, 2_000, 0, 0)
    assert first["records"] == sum(map(len, model.values()))
    for name in random.Random(1).sample(sorted(model), 50):
        assert_folded(node, model, name, last_of)
    assert run()["due"] == 0

    changed = {"runs/stream 7": events(1, 4), "runs/stream 1999": events(2, 9), "runs/stream 4": events(3, 2)}
    fill(calls, model, changed)
    second = run()
    assert (second["due"], second["published"], second["records"]) == (2, 2, 13)
    for name in ("runs/stream 7", "runs/stream 1999"):
        assert_folded(node, model, name, last_of)
    body, rest, _ = bootstrap(node, "runs/stream 4")
    assert (json.loads(body), rest) == (last_of(model["runs/stream 4"][:-2]), model["runs/stream 4"][-2:])


def test_every_mode_gives_what_a_plain_model_gives_before_and_after_more_records(
    spark: SparkSession, node: Node
) -> None:
    calls, model = Calls(node.url), Model()

    def patches(n: int) -> list[bytes]:
        return [json.dumps({"a": n, "deep": {str(n % 3): n, "gone": None}}).encode() for n in range(n, n + 40)]

    def totals(records: list[bytes]) -> dict[str, int]:
        return {"records": len(records), "bytes": sum(map(len, records))}

    for start in (0, 40):
        fill(calls, model, {f"merge/{n}": patches(start + n) for n in range(5)})
        fill(calls, model, {f"text/{n}": [b"line %d\n" % n] * (n + 1) for n in range(5)}, "text/plain")
        fill(calls, model, {f"json/{n}": [b'{"n":%d}' % n] * (n + 1) for n in range(5)})
        fill(calls, model, {f"count/{n}": events(n, 5) for n in range(5)})
        fill(calls, model, {"count/bad": [b'"trouble"']})
        assert fold(spark, calls, mode="merge", bucket="merge", min_records=1)["published"] == 5
        assert fold(spark, calls, mode="concat", pattern="text/*", min_records=1)["published"] == 5
        assert fold(spark, calls, mode="concat", bucket="json", min_records=2)["due"] == (4 if start == 0 else 5)
        named = fold(
            spark, calls, mode="function", function="tests.spark.fold_functions:count", bucket="count", min_records=1
        )
        assert (named["published"], named["failed"]) == (5, 1)
        assert "count/bad: the function raised ValueError('trouble')" in str(named["errors"])
        for n in range(5):
            assert_folded(node, model, f"merge/{n}", merged_of)
            assert_folded(node, model, f"count/{n}", totals)
            assert bootstrap(node, f"text/{n}")[0] == b"".join(model[f"text/{n}"])
        assert json.loads(bootstrap(node, "json/4")[0]) == [{"n": 4}] * len(model["json/4"])
    assert bootstrap(node, "count/bad") == (b"", [b'"trouble"'] * 2, "-1")


def test_streams_that_cannot_be_folded_are_left_as_they_are_and_counted(spark: SparkSession, node: Node) -> None:
    calls, model = Calls(node.url), Model()
    three = [b'{"id":"a"}', b'{"id":"b"}', b'{"id":"a","n":2}']
    fill(calls, model, {"runs/a": three, "runs/nested/name": three, "tiny": three, "abc/short-bucket": three})
    fill(calls, model, {"runs/text": [b"x"] * 3}, "text/plain")
    kept = {"Content-Type": JSON, "Stream-Retention-Records": "2"}
    assert node.request("PUT", "/v1/stream/runs/trimmed", kept, b"[1,2,3,4,5]").status == 201
    assert node.request("POST", "/v1/stream/runs/trimmed", {"Content-Type": JSON}, b"6").status == 204
    fork = {"Content-Type": JSON, "Stream-Forked-From": "/v1/stream/runs/a"}
    assert node.request("PUT", "/v1/stream/runs/fork", fork).status == 201
    assert (
        node.request("POST", "/v1/stream/runs/fork", {"Content-Type": JSON}, b'[{"id":"f"},{"id":"g"}]').status == 204
    )
    deadline_s = time.monotonic() + 60
    while int(node.request("HEAD", "/v1/stream/runs/trimmed").header("stream-earliest-offset") or 0) < 4:
        assert time.monotonic() < deadline_s, "retention has not trimmed the stream"
        time.sleep(0.05)

    told = fold(spark, calls, key=("/id",), min_records=2)
    assert (told["due"], told["published"]) == (2, 2)
    assert told["skipped"] == {"forks": 1, "history_gone": 1, "name_without_snapshots": 2, "not_json": 1}
    assert json.loads(bootstrap(node, "_default/tiny")[0]) == [{"id": "b"}, {"id": "a", "n": 2}]
    assert node.request("GET", "/v1/stream/runs/nested/name").json() == [json.loads(one) for one in three]
    with node.connect() as connection:
        forked = read_messages(connection, "/v1/stream/runs/fork")
    assert [one["id"] for one in forked] == ["a", "b", "a", "f", "g"], "a snapshot of its source took nothing from it"


def test_a_fold_goes_no_further_than_it_is_told_and_a_snapshot_that_came_first_wins(
    spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, model = Calls(node.url), Model()
    fill(calls, model, {"runs/a": [b'{"id":1}'] * 3, "runs/b": [b'{"id":1}'] * 3})
    until = ends_of(heads_of(calls))
    fill(calls, model, {"runs/a": [b'{"id":2}'] * 3})
    assert fold(spark, calls, key=("/id",), min_records=1, until=until)["published"] == 2
    body, rest, _ = bootstrap(node, "runs/a")
    assert (json.loads(body), rest) == ([{"id": 1}], [b'{"id":2}'] * 3)

    listings = job.lake_listing.listings

    def overtaken(given: Calls) -> Any:
        found = listings(given)
        yes = {"Content-Type": "text/plain"}
        assert node.request("PUT", f"/runs/a/snapshot/{6 * 8:020d}", yes, b"theirs").status == 204
        return found

    fill(calls, model, {"runs/b": [b'{"id":3}'] * 3})
    monkeypatch.setattr(job.lake_listing, "listings", overtaken)
    calls.flush()
    listings(calls)
    pages = list(calls.lake_streams())
    monkeypatch.setattr(Calls, "lake_streams", lambda self: iter(pages))
    told = fold(spark, calls, key=("/id",), min_records=1)
    assert (told["overtaken"], told["published"]) == (1, 1)
    assert bootstrap(node, "runs/a")[0] == b"theirs"


def test_streams_whose_records_are_in_an_object_store_are_folded_without_jars(
    spark: SparkSession, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.make_bucket("folds")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
        # The workers of a session that runs already get their environment from here.
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    lake = ["--lake", "s3://folds/lake", "--lake-endpoint", s3.endpoint]
    with Node.started(tmp_path, flags=[*QUICK, *lake], env=KEYS) as node:
        calls, model = Calls(node.url), Model()
        for _ in range(2):
            fill(calls, model, {f"runs/{n}": events(n, 4) for n in range(30)})
            told = fold(spark, calls, key=("/id",), deleted="/op=delete", min_records=1)
            assert (told["published"], told["failed"]) == (30, 0)
            for name in model:
                assert_folded(node, model, name, last_of)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"mode": "newest"}, "there is no mode"),
        ({"key": ("id",)}, "no JSON pointer"),
        ({"mode": "merge", "bucket": "a", "pattern": "b"}, "both say which streams"),
        ({"mode": "function", "function": "nowhere:f"}, "cannot be loaded"),
        ({"mode": "merge", "min_records": 0}, "at least 1"),
    ],
)
def test_a_wrong_fold_is_refused_before_anything_is_asked_of_the_node(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(JobRefused, match=complaint):
        fold(None, Calls("http://127.0.0.1:1"), **given)  # type: ignore[arg-type]


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=[*QUICK, "--hot-bytes-max", "1GiB"]) as running:
        yield running


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_hundred_thousand_streams_are_folded_in_one_run(spark: SparkSession, roomy: Node) -> None:
    """Prints its figures: run with `-m soak -s`."""
    calls, model, count = Calls(roomy.url), Model(), 100_000
    fill(calls, model, {f"runs/{n}": events(n, 10) for n in range(count)})
    calls.flush()
    began_s = time.monotonic()
    told = fold(spark, calls, key=("/id",), deleted="/op=delete", min_records=1)
    seconds = time.monotonic() - began_s
    print(
        f"\n{count} snapshots of {told['records']} records in {seconds:.1f} s, {count / seconds:.0f} a second: {told}"
    )
    assert (told["published"], told["failed"], told["incomplete"]) == (count, 0, 0)
    for name in random.Random(1).sample(sorted(model), 100):
        assert_folded(roomy, model, name, last_of)
