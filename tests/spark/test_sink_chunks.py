"""How the sink orders and cuts rows: the same chunks, however rows arrive, and what a node makes of them.
Nothing here starts Spark; what is sent goes to a real node."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("numpy", reason="the sink needs what the spark extra brings")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.config import BY_NAME
from headwater.doors.http.bulk_entries import REQUEST_TIMES
from headwater.spark import chunks as cutting
from headwater.spark.chunks import BadRows, Chunk, Label, chunks_of_sorted, sorted_rows
from headwater.spark.node import Node as Caller
from headwater.spark.sending import REQUEST_ROWS, Identity, Sender, SinkFailed
from tests.support.node import Node

TEXT = "text/plain"
Row = tuple[str, int, bytes]


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    streams, orders, payloads = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [
        pa.array(streams, pa.string()),
        pa.array([TEXT] * len(rows), pa.string()),
        pa.array(payloads, pa.binary()),
        pa.array(orders, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(arrays, ["stream", "content_type", "payload", "order0"])


def batches_of(rows: list[Row], sizes: list[int]) -> Iterator[pa.RecordBatch]:
    rest = list(rows)
    for size in itertools.cycle(sizes):
        yield batch_of(rest[:size])
        rest = rest[size:]
        if not rest:
            return


def cut_plainly(rows: list[Row]) -> list[Chunk]:
    """The same rules, row by row: the slow and obvious way."""
    found: list[Chunk] = []
    for stream, of_stream in itertools.groupby(sorted(rows), key=lambda row: row[0]):
        chunk: list[bytes] = []
        seq = 0
        for _, _, payload in of_stream:
            full = len(chunk) == cutting.CHUNK_ROWS_MAX
            if chunk and (full or sum(map(len, chunk)) + len(payload) > cutting.CHUNK_BYTES_MAX):
                found.append(Chunk(stream, TEXT, seq, chunk, sum(map(len, chunk))))
                chunk, seq = [], seq + 1
            chunk.append(payload)
        found.append(Chunk(stream, TEXT, seq, chunk, sum(map(len, chunk))))
    return found


ROWS = st.lists(
    st.tuples(st.sampled_from(["a/1", "a/10", "a/2", "é/x"]), st.integers(-2, 2), st.binary(min_size=1, max_size=6)),
    max_size=60,
)


@given(ROWS, st.lists(st.integers(1, 9), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_chunks_do_not_depend_on_the_order_in_which_rows_arrive(
    rows: list[Row], sizes: list[int], rng: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "CHUNK_ROWS_MAX", 4)
        patch.setattr(cutting, "CHUNK_BYTES_MAX", 10)
        expected = cut_plainly(rows)
        rng.shuffle(rows)
        assert list(chunks_of_sorted(sorted_rows(batches_of(rows, sizes)))) == expected
        presorted = batches_of(sorted(rows), sizes)
        assert list(chunks_of_sorted(presorted)) == expected


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["b", "a", None, "ä", "B"]),
        pa.array([1.5, float("-inf"), None, 2.5, -0.25]),
        pa.array([3, 1, None, 2, -1], pa.timestamp("us", "UTC")),
        pa.array([True, False, None, True, False]),
        pa.array([b"\xff", b"\x00", None, b"\x7f", b""]),
        pa.array([2**63, 1, None, 2**64 - 1, 0], pa.uint64()),
    ],
    ids=str,
)
def test_any_plain_type_may_order_rows_and_null_comes_first(values: pa.Array) -> None:
    names = ["stream", "content_type", "payload", "order0"]
    payloads = [str(n).encode() for n in range(len(values))]
    arrays = [pa.array(["s"] * len(values)), pa.array([TEXT] * len(values)), pa.array(payloads, pa.binary()), values]
    (found,) = sorted_rows([pa.RecordBatch.from_arrays(arrays, names)])
    found_order = [values[int(payload)].as_py() for payload in found.column("payload").to_pylist()]
    known = sorted(value for value in values.to_pylist() if value is not None)
    assert found_order == [None, *known]


def test_a_record_longer_than_a_chunk_stands_alone() -> None:
    long = b"x" * (cutting.CHUNK_BYTES_MAX + 1)
    found = list(chunks_of_sorted([batch_of([("s", 0, b"a"), ("s", 1, long), ("s", 2, b"b")])]))
    assert [(chunk.seq, len(chunk.records), chunk.bytes_count) for chunk in found] == [
        (0, 1, 1),
        (1, 1, len(long)),
        (2, 1, 1),
    ]


def test_rows_that_only_claim_to_be_sorted_are_refused() -> None:
    with pytest.raises(BadRows, match="not sorted by stream"):
        list(chunks_of_sorted([batch_of([("b", 0, b"x"), ("a", 0, b"y")])]))


def test_one_stream_with_two_content_types_is_refused() -> None:
    batch = batch_of([("s", 0, b"x"), ("s", 1, b"y")])
    mixed = batch.set_column(1, "content_type", pa.array([TEXT, "application/json"]))
    with pytest.raises(BadRows, match="cannot hold both 'text/plain' and 'application/json'"):
        list(chunks_of_sorted([mixed]))


def test_a_partition_too_large_to_sort_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "PARTITION_BYTES_MAX", 10_000)
    with pytest.raises(BadRows, match="make batches smaller"):
        sorted_rows([batch_of([("s", n, b"x" * 100) for n in range(50)])] * 4)


@given(ROWS, st.randoms(use_true_random=False))
def test_labels_stay_with_their_rows_and_change_no_cut(rows: list[Row], rng: random.Random) -> None:
    """Equal rows with other labels stand in one order too, however they arrive."""
    labelled = [(row, rng.choice([None, "a", "b"]), rng.choice([None, "n"])) for row in rows]

    def cut() -> list[Chunk]:
        rng.shuffle(labelled)
        plain = batch_of([row for row, _, _ in labelled])
        columns = [pa.array([tag for _, tag, _ in labelled], pa.string())]
        columns.append(pa.array([node for _, _, node in labelled], pa.string()))
        arrays = [*plain.columns[:3], *columns, plain.column(3)]
        batch = pa.RecordBatch.from_arrays(arrays, ["stream", "content_type", "payload", "tag", "node", "order0"])
        return list(chunks_of_sorted(sorted_rows([batch])))

    first = cut()
    assert cut() == first
    assert [one._replace(labels=None) for one in first] == cut_plainly(rows)
    found = [
        (one.stream, payload, label)
        for one in first
        for payload, label in zip(one.records, one.labels or [None] * len(one.records), strict=True)
    ]
    wanted = [(row[0], row[2], Label(tag, node) if tag or node else None) for row, tag, node in labelled]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


# ---- sending -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), flags=["--body-bytes-max", "64KiB"]) as node:
        yield node


def sender(url: str, producer: str, epoch: int = 0, patience_s: float = 20.0, create: bool = True) -> Sender:
    return Sender(Caller(url, None, patience_s), Identity(producer, epoch), create, patience_s)


def chunk(stream: str, seq: int, *records: bytes, kind: str = TEXT) -> Chunk:
    return Chunk(stream, kind, seq, list(records), sum(map(len, records)))


def test_the_same_chunks_twice_are_written_once(running: Node) -> None:
    sent = [chunk("once/a", 0, b"1", b"2"), chunk("once/a", 1, b"3"), chunk("once/b", 0, b"4")]
    first, second = sender(running.url, "p"), sender(running.url, "p")
    first.send(sent)
    second.send(sent)
    assert (first.rows, first.rows_known, first.chunks, first.chunks_known) == (4, 0, 3, 0)
    assert (second.rows, second.rows_known, second.chunks, second.chunks_known) == (4, 4, 3, 3)
    assert running.request("GET", "/v1/stream/once/a").body == b"123"
    assert running.request("GET", "/v1/stream/once/b").body == b"4"


def test_labels_are_written_with_their_records_once_also_record_by_record(running: Node) -> None:
    """A chunk that no request can carry goes record by record, each with its own."""
    records = [bytes([65 + n]) * 20_000 for n in range(5)]
    labels = [Label(f"t{n}", "spark", json.dumps({"n": n}), f"k{n}") if n != 2 else None for n in range(5)]
    for _ in range(2):
        sender(running.url, "p").send([chunk("labelled/a", 0, *records)._replace(labels=labels)])
    answer = running.request("GET", "/v0/topics/labelled%2Fa/diff").json()
    found = [
        Label(one.get("tag"), one.get("node"), json.dumps(one.get("meta")), one.get("key")) for one in answer["records"]
    ]
    assert found == [one or Label(meta="null") for one in labels]


def test_a_label_that_the_node_does_not_take_is_told_with_its_stream(running: Node) -> None:
    with pytest.raises(SinkFailed, match=r"'labelled/b'.*records\[1\]\.tag: it holds a control character"):
        sender(running.url, "p").send([chunk("labelled/b", 0, b"1", b"2")._replace(labels=[None, Label("a\n")])])


def test_a_request_that_is_too_long_is_sent_in_parts(running: Node) -> None:
    sent = [chunk("long/a", n, bytes([65 + n]) * 20_000) for n in range(8)]
    sending = sender(running.url, "p")
    sending.send(sent)
    assert sending.chunks == 8
    assert running.request("GET", "/v1/stream/long/a").body == b"".join(bytes([65 + n]) * 20_000 for n in range(8))


def test_a_request_with_more_records_than_the_node_takes_is_sent_in_parts(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True, flags=["--append-records-max", str(cutting.CHUNK_ROWS_MAX)]) as node:
        rows = [b"%05d" % n for n in range(35 * cutting.CHUNK_ROWS_MAX)]
        size = cutting.CHUNK_ROWS_MAX
        sending = sender(node.url, "p")
        sending.send([chunk("many/a", seq, *rows[seq * size : (seq + 1) * size]) for seq in range(35)])
        assert (sending.rows, sending.rows_known) == (len(rows), 0)
        assert node.request("GET", "/v1/stream/many/a").body == b"".join(rows)


def test_no_request_of_the_sink_brings_more_rows_than_a_node_takes_by_default(busy: tuple[str, type[Busy]]) -> None:
    url, handler = busy
    handler.answers = [[{"status": 200}] * 50, [{"status": 200}] * 20]
    sender(url, "p").send([chunk("a", seq, *[b"x"] * cutting.CHUNK_ROWS_MAX) for seq in range(70)])
    assert [len(seqs) for seqs in handler.seen] == [50, 20]
    assert BY_NAME["append_records_max"].default * REQUEST_TIMES // 2 >= REQUEST_ROWS
    assert BY_NAME["append_records_max"].low >= cutting.CHUNK_ROWS_MAX


def test_a_record_that_no_request_can_carry_is_told(running: Node) -> None:
    told = r"no record of 100000 bytes, for 'long/b', .*\(.*413 body_too_large: .*65536 bytes.*\): raise its"
    for others in ((), (b"short",)):
        with pytest.raises(SinkFailed, match=told):
            sender(running.url, "p").send([chunk("long/b", 0, b"x" * 100_000, *others)])


def test_the_answer_to_a_body_that_is_far_too_long_is_read(running: Node) -> None:
    """More than the sockets on both sides hold: sending it fails, or the node reads to its end."""
    with pytest.raises(SinkFailed, match="413 body_too_large"):
        sender(running.url, "p").send([chunk("long/c", 0, b"x" * (32 << 20))])


# ---- chunks that no request can carry ----------------------------------------------------------------------------


LIMITS = (64, 256)
"""KiB of a body: a chunk goes record by record with one, and whole with the other."""
CUTS = (*range(12), 1_000)


def wide(stream: str, seq: int, count: int = 9) -> Chunk:
    return chunk(stream, seq, *(f"{stream} {seq}.{n} ".encode().ljust(20_000, b".") + b"\n" for n in range(count)))


def batch(cut: int) -> list[Chunk]:
    a, b = f"wide-{cut}/a", f"wide-{cut}/b"
    return [wide(a, 0), wide(a, 1, 2), wide(a, 2), wide(b, 0)]


def written(node: Node, stream: str) -> list[str]:
    body = node.request("GET", f"/v1/stream/{stream}").body
    return [line.split()[1].decode() for line in body.splitlines()]


def assert_whole(node: Node, chunks: list[Chunk]) -> None:
    for stream in {one.stream for one in chunks}:
        sent = [record.split()[1].decode() for one in chunks if one.stream == stream for record in one.records]
        assert written(node, stream) == sent


@pytest.mark.parametrize("first", LIMITS)
@pytest.mark.parametrize("then", LIMITS)
def test_a_batch_cut_off_anywhere_is_whole_after_its_repetition_whatever_the_node_takes_then(
    tmp_path: Path, first: int, then: int
) -> None:
    with Node.started(tmp_path, flags=["--body-bytes-max", f"{first}KiB"]) as node:
        whole = 0
        for cut in CUTS:
            try:
                Sender(CutOff(node.url, cut), Identity(f"p{cut}", 7), True, 20.0).send(batch(cut))
            except Gone:
                continue
            assert_whole(node, batch(cut))
            whole += 1
        assert 0 < whole < len(CUTS), "some were cut off, and some not"
    with Node.started(tmp_path, flags=["--body-bytes-max", f"{then}KiB"]) as node:
        for cut in CUTS:
            again, last = sender(node.url, f"p{cut}", 7), sender(node.url, f"p{cut}", 7)
            again.send(batch(cut))
            assert (again.chunks, again.rows) == (4, 29)
            assert_whole(node, batch(cut))
            last.send(batch(cut))
            assert (last.chunks_known, last.rows_known) == (4, 29)
            assert_whole(node, batch(cut))
            sender(node.url, f"p{cut}", 8).send([chunk(f"wide-{cut}/b", 0, b"the next\n")])
            assert written(node, f"wide-{cut}/b")[9:] == ["next"]


class Gone(Exception):
    pass


class CutOff(Caller):
    """Ends after so many calls: with the answer of the last one lost."""

    def __init__(self, url: str, calls: int) -> None:
        super().__init__(url, None, 20.0)
        self._left = calls

    def call(self, *arguments: Any, **options: Any) -> Any:
        if self._left < 0:
            raise Gone
        self._left -= 1
        answer = super().call(*arguments, **options)
        if self._left < 0:
            raise Gone
        return answer


def test_streams_that_wait_for_one_another_keep_their_numbers(busy: tuple[str, type[Busy]]) -> None:
    """Two streams take turns: the records of one that were sent by themselves are counted for it alone."""
    url, handler = busy
    taken, large = {"status": 200}, fault(413, "too_many_records")
    handler.answers = [
        [large, fault(409, "producer_seq_conflict"), large],  # a 0, a 1, b 0
        [fault(400, "epoch_starts_at_zero")],  # a 0 is not there
        [taken],  # a 0, first record
        [taken],  # a 0, last record
        [fault(400, "epoch_starts_at_zero")],  # b 0 is not there
        [taken],
        [taken],
        [large],  # a 1
        [fault(409, "producer_seq_conflict") | {"producer_expected_seq": "1"}],
        [taken],
        [taken],
    ]
    sending = sender(url, "p")
    sending.send([chunk("a", 0, b"1", b"2"), chunk("a", 1, b"3", b"4"), chunk("b", 0, b"5", b"6")])
    far = (1 << 53) - 1
    assert handler.seen == [[0, 1, 0], [far], [0], [0], [far], [0], [0], [1], [far], [1], [1]]
    assert (sending.chunks, sending.rows, sending.rows_known) == (3, 6, 0)


def test_an_older_epoch_is_told_as_a_zombie(running: Node) -> None:
    sender(running.url, "z", 5).send([chunk("zombie/a", 0, b"new")])
    with pytest.raises(SinkFailed, match="another copy of the query runs, or it began again from an older checkpoint"):
        sender(running.url, "z", 4).send([chunk("zombie/a", 0, b"old")])
    assert running.request("GET", "/v1/stream/zombie/a").body == b"new"


def test_a_gap_is_told_with_what_it_may_come_from(running: Node) -> None:
    sender(running.url, "g", 0).send([chunk("gap/a", 0, b"0")])
    for epoch, due in ((0, 1), (1, 0)):
        with pytest.raises(SinkFailed, match=f"came where {due} was due: the stream was deleted and made again"):
            sender(running.url, "g", epoch).send([chunk("gap/a", 2, b"2")])


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (chunk("kinds/a", 0, b"1", kind="application/json"), "Name the stream's type"),
        (chunk("kinds/b", 0, b"{", kind="application/json"), "400 bad_body: .*not valid JSON"),
        (chunk("kinds/../a", 0, b"x"), "400 bad_name"),
        (chunk("/nobucket-here/x", 0, b"x"), "Create the bucket"),
    ],
)
def test_what_the_node_refuses_is_told_with_the_stream(running: Node, sent: Chunk, told: str) -> None:
    sender(running.url, "first").send([chunk("kinds/a", 0, b"text")])
    with pytest.raises(SinkFailed, match=told) as failure:
        sender(running.url, "p").send([sent])
    assert repr(sent.stream) in str(failure.value)


def test_a_missing_stream_is_told_when_none_is_to_be_made(running: Node) -> None:
    with pytest.raises(SinkFailed, match="Create it, or let it be made"):
        sender(running.url, "p", create=False).send([chunk("nowhere/a", 0, b"x")])
    assert running.request("HEAD", "/v1/stream/nowhere/a").status == 404


def test_chunks_wait_while_memory_is_full_and_arrive_in_order(tmp_path: Path) -> None:
    flags = ["--hot-bytes-max", "1MiB", "--read-bytes-max", "64KiB", "--flush-interval-ms", "600000"]
    with Node.started(tmp_path, flags=flags) as node:
        sending = sender(node.url, "p", 3, patience_s=60.0)
        sent = [chunk("full/a", n, bytes([48 + n]) * 400_000) for n in range(8)]
        flusher = threading.Timer(1.0, lambda: [node.request("POST", "/__headwater/flush") for _ in range(6)])
        flusher.start()
        sending.send(sent)
        flusher.join()
        assert (sending.chunks, sending.chunks_known) == (8, 0)
        whole, offset = b"", "-1"
        while len(whole) < 8 * 400_000:
            answer = node.request("GET", f"/v1/stream/full/a?offset={offset}")
            whole, offset = whole + answer.body, answer.header("stream-next-offset") or ""
        assert whole == b"".join(one.records[0] for one in sent)


class Busy(BaseHTTPRequestHandler):
    """A node that is always busy, for the first entry of every request."""

    answers: list[list[dict[str, Any]]]
    seen: list[list[int]]

    def do_GET(self) -> None:
        self.send_error(404)

    def do_PUT(self) -> None:
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        if "sink-splits" in self.path:
            self.rfile.read(int(self.headers["Content-Length"]))
            return self.do_PUT()
        entries = msgspec.msgpack.decode(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append([entry["producer_seq"] for entry in entries])
        body = json.dumps(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def busy() -> Iterator[tuple[str, type[Busy]]]:
    class Handler(Busy):
        pass

    Handler.answers, Handler.seen = [], []
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", Handler
        server.shutdown()
        thread.join()


def fault(status: int, code: str, retryable: bool = False) -> dict[str, Any]:
    return {"status": status, "error": {"code": code, "message": "said", "retryable": retryable}}


def test_only_what_was_not_taken_is_sent_again_and_what_comes_behind_it(busy: tuple[str, type[Busy]]) -> None:
    url, handler = busy
    taken = {"status": 200}
    handler.answers = [
        [taken, fault(503, "overloaded", True), fault(409, "producer_seq_conflict"), taken],
        [fault(503, "overloaded", True), fault(400, "epoch_starts_at_zero")],
        [taken, taken],
    ]
    sending = sender(url, "p")
    sending.send([chunk("a", 0, b"x"), chunk("a", 1, b"x"), chunk("a", 2, b"x"), chunk("b", 0, b"x")])
    assert handler.seen == [[0, 1, 2, 0], [1, 2], [1, 2]]
    assert sending.chunks == 4


def test_a_gap_of_another_stream_is_no_reason_to_wait(busy: tuple[str, type[Busy]]) -> None:
    url, handler = busy
    handler.answers = [[fault(503, "overloaded", True), fault(409, "producer_seq_conflict")]]
    with pytest.raises(SinkFailed, match="stream 'b': 409 producer_seq_conflict"):
        sender(url, "p").send([chunk("a", 0, b"x"), chunk("b", 1, b"x")])


def test_a_node_that_stays_busy_is_told_at_the_end(busy: tuple[str, type[Busy]]) -> None:
    url, handler = busy
    handler.answers = [[fault(503, "overloaded", True)]]
    with pytest.raises(SinkFailed, match="has taken nothing for 1 s"):
        sender(url, "p", patience_s=1.0).send([chunk("a", 0, b"x")])
    assert len(handler.seen) > 1


def test_too_many_producers_is_nothing_to_wait_for(busy: tuple[str, type[Busy]]) -> None:
    url, handler = busy
    handler.answers = [[fault(429, "too_many_producers", True)]]
    with pytest.raises(SinkFailed, match="Name a producerId and count its epochBase up"):
        sender(url, "p").send([chunk("a", 0, b"x")])
    assert len(handler.seen) == 1
