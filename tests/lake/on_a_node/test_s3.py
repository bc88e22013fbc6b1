"""A node whose lake is a real S3: settling, cold reads, outages, slow and lying answers, refusals at start-up.
The S3 is one SeaweedFS for all tests; faults are a proxy's in front of it, so that no test harms another."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.model.timeline import RECORD_BYTES
from tests.lake.on_a_node.surface import (
    QUIET,
    TEXT,
    append,
    assert_table_is_http,
    content,
    create,
    flush,
    metric,
    path_of,
)
from tests.support.http import Response
from tests.support.node import Node, NotReady
from tests.support.s3 import ACCESS_KEY, READER_KEY, READER_SECRET, S3, SECRET_KEY, Fault, FaultProxy
from tests.support.waiting import until

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

WAIT_S = 90.0
FOR_EVER = 1 << 30
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
_numbers = itertools.count()


def fresh_lake() -> str:
    return f"s3://lake/node-{time.time_ns()}-{next(_numbers)}"


def flags(endpoint: str, lake: str, *more: str) -> tuple[str, ...]:
    return ("--lake", lake, "--lake-endpoint", endpoint, "--lake-region", "us-east-1", *more)


def options(s3: S3) -> dict[str, str]:
    """How a library that is not ours opens the table."""
    return {
        "aws_endpoint": s3.endpoint,
        "aws_region": "us-east-1",
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "aws_allow_http": "true",
    }


def eventually(what: Callable[[], bool], why: Callable[[], object]) -> None:
    until(what, why, WAIT_S)


def ready(node: Node) -> Response:
    return node.request("GET", "/readyz")


@pytest.fixture
def lake() -> str:
    return fresh_lake()


@pytest.fixture
def node(s3: S3, proxy: FaultProxy, tmp_path: Path, lake: str) -> Iterator[Node]:
    """A small node behind the proxy, that settles soon and refuses early."""
    small = ("--flush-bytes", "256KiB", "--lake-file-bytes", "4MiB", "--hot-bytes-max", "4MiB")
    times = ("--flush-interval-ms", "200", "--checkpoint-interval-ms", "50")
    with Node.started(tmp_path, env=CREDENTIALS, flags=flags(proxy.endpoint, lake, *small, *times)) as node:
        yield node
        assert node.running, node.output()
        assert "Traceback" not in node.stderr(), node.output()


def outage(proxy: FaultProxy) -> None:
    """From now on the store answers nothing."""
    with proxy.lock:
        proxy.faults += [Fault(method, "", FOR_EVER, None) for method in ("PUT", "GET", "HEAD", "POST", "DELETE")]


def healed(proxy: FaultProxy) -> None:
    with proxy.lock:
        proxy.faults.clear()


def test_records_settle_into_a_bucket_and_are_read_back_after_a_restart(s3: S3, tmp_path: Path, lake: str) -> None:
    with Node.started(tmp_path, env=CREDENTIALS, flags=flags(s3.endpoint, lake, *QUIET)) as node:
        with node.connect() as connection:
            for key in ("s3/a", "s3/b"):
                create(connection, key)
                for number in range(50):
                    append(connection, key, f"{key} {number}\n".encode())
        before = [content(node, key) for key in ("s3/a", "s3/b")]
        flush(node)
        assert [content(node, key) for key in ("s3/a", "s3/b")] == before
        node.restart()
        assert metric(node, "hot_bytes") == 0
        assert [content(node, key) for key in ("s3/a", "s3/b")] == before
        assert metric(node, "cold_reads") > 0
        assert_table_is_http(node, ("s3/a", "s3/b"), lake, options(s3))


def test_an_outage_refuses_appends_above_the_ceiling_and_heals_by_itself(
    node: Node, proxy: FaultProxy, s3: S3, lake: str
) -> None:
    body = b"x" * 100_000
    with node.connect() as connection:
        create(connection, "s3/cold")
        append(connection, "s3/cold", b"settled before")
        flush(node)
        create(connection, "s3/a")
        append(connection, "s3/a", b"first\n")
        assert ready(node).status == 200
        outage(proxy)
        accepted = 0
        refusal: Response | None = None
        for _ in range(100):
            answer = connection.request("POST", path_of("s3/a"), TEXT, body)
            if answer.status == 503:
                refusal = answer
                break
            assert answer.status == 204, answer
            accepted += 1
        assert refusal is not None and accepted * len(body) > 3 << 20
        assert (refusal.header("retry-after") or "").isdigit(), refusal
        assert metric(node, "hot_bytes") <= (4 << 20) + len(body) + RECORD_BYTES
        # What memory holds is read as ever; what only the store holds is refused, and never guessed.
        expected = b"first\n" + body * accepted
        assert content(node, "s3/a") == expected
        eventually(lambda: ready(node).status == 503, lambda: ready(node))
        assert "lake" in str(ready(node).json())
        assert node.request("GET", "/healthz").status == 200
        healed(proxy)
        eventually(lambda: ready(node).status == 200, lambda: ready(node))
        eventually(lambda: metric(node, "hot_bytes") == 0, lambda: metric(node, "hot_bytes"))
        append(connection, "s3/a", b"last\n")
        assert content(node, "s3/a") == expected + b"last\n"
    flush(node)
    node.restart()
    assert content(node, "s3/a") == expected + b"last\n"
    assert content(node, "s3/cold") == b"settled before"
    assert_table_is_http(node, ("s3/a", "s3/cold"), lake, options(s3))


def test_a_cold_read_during_an_outage_is_answered_503_and_later_as_ever(node: Node, proxy: FaultProxy) -> None:
    with node.connect() as connection:
        create(connection, "s3/a")
        append(connection, "s3/a", b"settled")
    flush(node)
    node.restart()  # nothing of the lake is in its cache
    outage(proxy)
    with node.connect(timeout_s=120) as connection:
        answer = connection.request("GET", path_of("s3/a"))
        assert answer.status == 503 and (answer.header("retry-after") or "").isdigit(), answer
        healed(proxy)
        assert connection.request("GET", path_of("s3/a")).body == b"settled"


def test_a_node_killed_in_an_outage_starts_again_and_loses_nothing(
    node: Node, proxy: FaultProxy, s3: S3, lake: str
) -> None:
    with node.connect() as connection:
        create(connection, "s3/a")
        outage(proxy)
        for number in range(20):
            append(connection, "s3/a", f"{number:03d}".encode() * 10_000)
    node.kill()
    healed(proxy)
    node.start()
    assert content(node, "s3/a") == b"".join(f"{number:03d}".encode() * 10_000 for number in range(20))
    flush(node)
    assert_table_is_http(node, ("s3/a",), lake, options(s3))


# A commit is looked for before it is made again: only when that fails too does the flush begin anew.
STORED = {
    "a file": ("data/", 12, 0),
    "a commit": ("_delta_log/", 1, 0),
    "a commit that cannot be looked for": ("_delta_log/", 1, 8),
}


@pytest.mark.parametrize("what", STORED)
@pytest.mark.parametrize("status", [500, None], ids=["answered 500", "cut"])
def test_a_write_that_was_stored_but_not_confirmed_is_neither_lost_nor_doubled(
    node: Node, proxy: FaultProxy, s3: S3, lake: str, what: str, status: int | None
) -> None:
    with node.connect() as connection:
        create(connection, "s3/a")
        append(connection, "s3/a", b"0")
        flush(node)
        part, times, looks = STORED[what]
        # Slow enough for the looks to be spoilt before they begin; were it not, the test would only prove less.
        fault = Fault("PUT", part, times, status, after_forwarding=True, delay_s=1.0 if looks else 0.0)
        with proxy.lock:
            proxy.faults.append(fault)
        for number in range(30):
            append(connection, "s3/a", f"{number:02d}".encode() * 5_000)
    eventually(lambda: fault.times == 0, lambda: proxy.faults)
    with proxy.lock:
        proxy.faults.append(Fault("GET", "", looks, None))
    eventually(lambda: metric(node, "hot_bytes") == 0, lambda: (proxy.faults, node.output()))
    healed(proxy)
    expected = b"0" + b"".join(f"{number:02d}".encode() * 5_000 for number in range(30))
    assert content(node, "s3/a") == expected
    eventually(lambda: ready(node).status == 200, lambda: ready(node))
    flush(node)
    assert_table_is_http(node, ("s3/a",), lake, options(s3))


def test_hot_memory_stays_under_its_ceiling_before_a_slow_store(
    node: Node, proxy: FaultProxy, s3: S3, lake: str
) -> None:
    """Ten times the ceiling through a store that takes 200 ms for each put."""
    body, ceiling = b"y" * 100_000, 4 << 20
    accepted, refused, most = 0, 0, 0.0
    with node.connect() as connection, proxy.lock:
        proxy.faults.append(Fault("PUT", "", FOR_EVER, delay_s=0.2, answer_itself=False))
    with node.connect() as connection:
        create(connection, "s3/a")
        while accepted * len(body) < 10 * ceiling:
            answer = connection.request("POST", path_of("s3/a"), TEXT, body)
            if answer.status == 204:
                accepted += 1
            else:
                assert answer.status == 503 and (answer.header("retry-after") or "").isdigit(), answer
                refused += 1
                time.sleep(0.05)
            if (accepted + refused) % 10 == 0:
                most = max(most, metric(node, "hot_bytes"))
    assert refused, "the writer never met the ceiling, so nothing was proved"
    assert most <= ceiling + len(body) + RECORD_BYTES
    healed(proxy)
    flush(node)
    assert content(node, "s3/a") == body * accepted
    assert_table_is_http(node, ("s3/a",), lake, options(s3))


# ---- the disk cache -----------------------------------------------------------------------------------------------


def cached_files(node: Node) -> list[Path]:
    return sorted((node.data_directory / "cache").glob("*/*"))


def test_the_disk_cache_answers_for_the_store_also_when_it_is_away_and_after_a_restart(
    s3: S3, proxy: FaultProxy, tmp_path: Path, lake: str
) -> None:
    given = flags(proxy.endpoint, lake, *QUIET, "--lake-disk-cache-bytes", "16MiB")
    with Node.started(tmp_path, env=CREDENTIALS, flags=given) as node:
        expected = {key: key.encode() * 5_000 for key in ("s3/a", "s3/b")}
        with node.connect() as connection:
            for key, body in expected.items():
                create(connection, key)
                append(connection, key, body)
        flush(node)
        assert not cached_files(node), "what was only written is not kept"
        assert content(node, "s3/a") == expected["s3/a"]
        assert cached_files(node)
        outage(proxy)
        node.restart()
        assert content(node, "s3/a") == expected["s3/a"]
        healed(proxy)
        for path in cached_files(node):
            kept = path.read_bytes()
            path.write_bytes(kept[:20] + bytes([kept[20] ^ 1]) + kept[21:])
        node.restart()
        assert {key: content(node, key) for key in expected} == expected


def test_the_disk_cache_keeps_its_bound_and_goes_when_it_is_turned_off(s3: S3, tmp_path: Path, lake: str) -> None:
    bound = 300_000
    given = flags(s3.endpoint, lake, *QUIET, "--lake-cache-bytes", "1MiB")
    with Node.started(tmp_path, env=CREDENTIALS, flags=(*given, "--lake-disk-cache-bytes", str(bound))) as node:
        expected = {f"s3/{number}": random.Random(number).randbytes(100_000) for number in range(8)}
        with node.connect() as connection:
            for key, body in expected.items():
                create(connection, key)
                append(connection, key, body)
                flush(node)
        for _ in range(2):
            assert {key: content(node, key) for key in expected} == expected
            assert 0 < sum(path.stat().st_size for path in cached_files(node)) <= bound
        node.flags = list(given)
        node.restart()
        assert not cached_files(node)
        assert {key: content(node, key) for key in expected} == expected


# ---- refusals at start-up -----------------------------------------------------------------------------------------


def refused(directory: Path, environment: dict[str, str], given: tuple[str, ...]) -> str:
    node = Node(directory, env=environment, flags=given)
    try:
        with pytest.raises(NotReady) as caught:
            node.start()
    finally:
        node.kill()
    assert caught.value.exit_code == 1, caught.value
    assert "Traceback" not in caught.value.stderr, caught.value
    return caught.value.stderr


@pytest.mark.parametrize(
    ("keys", "bucket", "hint"),
    [
        ((ACCESS_KEY, "wrong"), "lake", "secret access key"),
        (("nobody", "wrong"), "lake", "access key id"),
        ((READER_KEY, READER_SECRET), "lake", "permission"),
    ],
    ids=["wrong secret", "unknown key", "no permission"],
)
def test_a_lake_that_cannot_be_used_is_refused_at_start_up(
    s3: S3, tmp_path: Path, keys: tuple[str, str], bucket: str, hint: str
) -> None:
    environment = {"AWS_ACCESS_KEY_ID": keys[0], "AWS_SECRET_ACCESS_KEY": keys[1]}
    said = refused(tmp_path, environment, flags(s3.endpoint, f"s3://{bucket}/refused"))
    assert hint in said and f"s3://{bucket}" in said, said


def test_a_missing_bucket_is_refused_at_start_up(proxy: FaultProxy, tmp_path: Path) -> None:
    """SeaweedFS makes a bucket for whoever may; Amazon's answer is given in its place."""
    body = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
    proxy.faults += [Fault(method, "", FOR_EVER, 404, body) for method in ("PUT", "GET")]
    said = refused(tmp_path, CREDENTIALS, flags(proxy.endpoint, "s3://no-such-bucket/refused"))
    assert "the bucket does not exist" in said and "s3://no-such-bucket" in said, said


# ---- a store that is away at start-up -----------------------------------------------------------------------------


def test_a_node_starts_without_its_store_serves_what_it_holds_and_heals_by_itself(
    node: Node, proxy: FaultProxy, s3: S3, lake: str
) -> None:
    with node.connect() as connection:
        create(connection, "s3/cold")
        append(connection, "s3/cold", b"settled")
        flush(node)
        create(connection, "s3/hot")
        outage(proxy)
        append(connection, "s3/hot", b"only in the log")
    node.restart()
    assert ready(node).status == 503 and "cannot be used" in str(ready(node).json()["checks"]["lake"]), ready(node)
    assert node.request("GET", "/healthz").status == 200
    with node.connect(timeout_s=120) as connection:
        assert connection.request("GET", path_of("s3/hot")).body == b"only in the log"
        append(connection, "s3/hot", b" and in memory")
        create(connection, "s3/new")
        assert content(node, "s3/hot") == b"only in the log and in memory"
        refusal = connection.request("GET", path_of("s3/cold"))
        assert refusal.status == 503 and (refusal.header("retry-after") or "").isdigit(), refusal
        healed(proxy)
        eventually(lambda: ready(node).status == 200, lambda: ready(node))
        assert connection.request("GET", path_of("s3/cold")).body == b"settled"
    flush(node)
    assert content(node, "s3/hot") == b"only in the log and in memory"
    assert_table_is_http(node, ("s3/cold", "s3/hot", "s3/new"), lake, options(s3))


def test_a_node_whose_store_was_never_there_starts_and_takes_appends(tmp_path: Path) -> None:
    with Node.started(tmp_path, env=CREDENTIALS, flags=flags("http://127.0.0.1:9", "s3://lake/nowhere")) as node:
        assert ready(node).status == 503
        assert "http://127.0.0.1:9" in ready(node).json()["checks"]["lake"], ready(node)
        with node.connect() as connection:
            create(connection, "s3/a")
            append(connection, "s3/a", b"taken")
        assert content(node, "s3/a") == b"taken"
        node.restart()
        assert content(node, "s3/a") == b"taken"
        assert node.terminate() == 0, node.output()


def test_a_store_that_refuses_when_it_comes_back_is_told_of_and_tried_on(node: Node, proxy: FaultProxy) -> None:
    outage(proxy)
    node.restart()
    body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
    with proxy.lock:
        proxy.faults[:] = [Fault(method, "", FOR_EVER, 403, body) for method in ("PUT", "GET", "DELETE")]
    eventually(lambda: "permission" in str(ready(node).json()), lambda: ready(node))
    assert ready(node).status == 503
    healed(proxy)
    eventually(lambda: ready(node).status == 200, lambda: ready(node))
