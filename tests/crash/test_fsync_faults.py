"""Disks that fail under the log: a write or a sync that errors, once or for good, at a chosen moment.
It asserts what clients may and may not be told then; what is in the log's files is not looked at."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash.harness import SMALL_LOG
from tests.support.faults import WRITES, failing, recording
from tests.support.http import Response, read_bytes
from tests.support.node import Node, NotReady
from tests.support.writer import record

pytestmark = [pytest.mark.traced, pytest.mark.full, pytest.mark.timeout(300)]

PATH = "/v1/stream/faults/shared"
TEXT = {"Content-Type": "text/plain"}
WRITERS = 4
APPENDS_MAX = 2_000
LARGE_BYTES = 20_000
FIRST_FILE = "00000000000000000000.wal"


class Appender:
    """One connection that appends numbered records until one is refused, then tries a few more."""

    def __init__(self, node: Node, name: str, path: str = PATH) -> None:
        self.node, self.name, self.path = node, name, path
        self.acked: dict[int, str | None] = {}
        self.refusals: list[Response] = []
        self.sent = 0

    def run(self) -> None:
        with self.node.connect() as connection:
            while self.sent < APPENDS_MAX and len(self.refusals) < 4:
                n, self.sent = self.sent, self.sent + 1
                answer = connection.request("POST", self.path, TEXT, record(self.name, n, LARGE_BYTES))
                if answer.status == 204:
                    assert not self.refusals, "an append was acknowledged after the log had failed"
                    self.acked[n] = answer.header("stream-next-offset")
                else:
                    self.refusals.append(answer)


@contextmanager
def _watched(node: Node) -> Iterator[list[bytes]]:
    """A reader that asks over and over while others write: the longest content it was ever shown."""
    shown = [b""]
    enough = threading.Event()

    def read() -> None:
        with node.connect() as connection:
            while not enough.is_set():
                shown[0] = max(shown[0], read_bytes(connection, PATH), key=len)

    with ThreadPoolExecutor(1) as thread:
        reader = thread.submit(read)
        try:
            yield shown
        finally:
            enough.set()
        reader.result()


def _parsed(content: bytes) -> dict[tuple[str, int], int]:
    """Where each record of a stream ends. Fails when one is damaged or there twice."""
    found: dict[tuple[str, int], int] = {}
    end = 0
    for line in content.splitlines(keepends=True):
        end += len(line)
        name, n = line.split(b" ")[0].decode(), int(line.split(b" ")[1])
        assert line == record(name, n, LARGE_BYTES)
        assert (name, n) not in found
        found[name, n] = end
    return found


def _write_until_refused(node: Node) -> list[Appender]:
    appenders = [Appender(node, f"w{i}") for i in range(WRITERS)]
    with ThreadPoolExecutor(WRITERS) as threads:
        for finished in [threads.submit(appender.run) for appender in appenders]:
            finished.result()
    return appenders


def _assert_refusal(answer: Response) -> None:
    assert answer.status == 503, answer
    assert (answer.header("retry-after") or "").isdigit(), answer
    assert answer.json()["error"]["code"] == "log_unavailable", answer


def _assert_not_ready(node: Node) -> None:
    """The process is up, says that it is not ready, and that it is the log."""
    assert node.request("GET", "/healthz").status == 200
    answer = node.request("GET", "/readyz")
    assert answer.status == 503, answer
    assert (answer.header("content-type") or "").startswith("application/json"), answer
    assert "the log could not be written" in str(answer.json()), answer.body


def _assert_only_acknowledged_is_visible(node: Node, appenders: list[Appender]) -> None:
    with node.connect() as connection:
        found = _parsed(read_bytes(connection, PATH))
    acked = {(a.name, n): int(offset or -1) for a in appenders for n, offset in a.acked.items()}
    assert found == acked


def _assert_recovered(node: Node, appenders: list[Appender]) -> None:
    """Every acknowledged record is at its offset; of the others only those that were in flight may be there."""
    with node.connect() as connection:
        found = _parsed(read_bytes(connection, PATH))
        assert connection.request("POST", PATH, TEXT, record("later", 0, LARGE_BYTES)).status == 204
    for appender in appenders:
        for n, offset in appender.acked.items():
            assert found.get((appender.name, n)) == int(offset or -1), (appender.name, n, offset)
        extra = {n for name, n in found if name == appender.name} - set(appender.acked)
        # Only the first refused one was on its way when the disk failed; the later ones met a log known to be bad.
        assert extra <= {len(appender.acked)}, extra
    assert node.request("GET", "/readyz").status == 200


@contextmanager
def _prepared(directory: Path, flags: tuple[str, ...] = ()) -> Iterator[Node]:
    """A stopped node whose data folder holds the stream, so that a fault meets appends and not its creation."""
    with Node.started(directory, flags=flags) as node:
        assert node.request("PUT", PATH, TEXT).status == 201
        assert node.terminate() == 0, node.output()
        yield node


def _log_files(node: Node) -> list[Path]:
    files = sorted((node.data_directory / "wal").rglob("*.wal"))
    assert files, "the node keeps no log where it is expected"
    return files


FAULTS = {
    "a-sync-fails-once": (("fdatasync",), "EIO", "7"),
    "every-sync-fails": (("fdatasync",), "EIO", "30+"),
    "a-write-fails-once": (WRITES, "EIO", "9"),
    "the-disk-is-full": (WRITES, "ENOSPC", "25+"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_log_acknowledges_nothing_more_and_loses_nothing(tmp_path: Path, fault: str) -> None:
    with _prepared(tmp_path) as node:
        node.wrapper = failing(*FAULTS[fault], paths=_log_files(node))
        node.start()
        with _watched(node) as shown:
            appenders = _write_until_refused(node)
        assert any(appender.acked for appender in appenders), "the fault came before any append"
        for appender in appenders:
            assert appender.refusals, f"no append was refused in {appender.sent}"
            for answer in appender.refusals:
                _assert_refusal(answer)
        _assert_not_ready(node)
        _assert_only_acknowledged_is_visible(node, appenders)
        acked = {(appender.name, n) for appender in appenders for n in appender.acked}
        assert set(_parsed(shown[0])) <= acked
        node.terminate()
        node.restart(wrapper=[])
        _assert_recovered(node, appenders)


def test_a_failed_log_refuses_every_kind_of_change(tmp_path: Path) -> None:
    with _prepared(tmp_path) as node:
        node.wrapper = failing(("fdatasync",), "EIO", "5", paths=_log_files(node))
        node.start()
        appender = Appender(node, "w0")
        appender.run()
        assert appender.refusals
        _assert_refusal(node.request("PUT", "/v1/stream/faults/new", TEXT))
        _assert_refusal(node.request("POST", PATH, {"Stream-Closed": "true"}))
        _assert_refusal(node.request("DELETE", PATH))
        # What depends on nothing unfinished is still answered.
        assert node.request("HEAD", PATH).status == 200
        assert node.request("HEAD", "/v1/stream/faults/new").status == 404
        node.terminate()
        node.restart(wrapper=[])
        assert node.request("HEAD", "/v1/stream/faults/new").status == 404
        head = node.request("HEAD", PATH)
        assert (head.status, head.header("stream-closed")) == (200, None)
        _assert_recovered(node, [appender])


def test_a_producer_gets_no_duplicate_answer_for_a_write_that_failed(tmp_path: Path) -> None:
    with _prepared(tmp_path) as node:
        node.wrapper = failing(("fdatasync",), "EIO", "4", paths=_log_files(node))
        node.start()
        acked = 0
        with node.connect() as connection:
            while (answer := _produce(connection.request, acked)).status == 200:
                acked += 1
                assert acked < APPENDS_MAX
            _assert_refusal(answer)
            # The same tuple again: the write it repeats never became durable, so this may not say that it did.
            _assert_refusal(_produce(connection.request, acked))
            if acked:
                repeated = _produce(connection.request, acked - 1)
                assert repeated.status in (204, 503), repeated
        node.terminate()
        node.restart(wrapper=[])
        with node.connect() as connection:
            assert _produce(connection.request, acked).status in (200, 204)
            assert _produce(connection.request, acked).status == 204
            assert _produce(connection.request, acked + 1).status == 200
            assert set(_parsed(read_bytes(connection, PATH))) == {("p", n) for n in range(acked + 2)}


def _produce(request, n: int) -> Response:
    headers = {**TEXT, "Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(n)}
    return request("POST", PATH, headers, record("p", n, LARGE_BYTES))


def test_a_log_that_cannot_open_its_next_file_acknowledges_nothing_more(tmp_path: Path) -> None:
    with _prepared(tmp_path, SMALL_LOG) as node:
        spares = [file.with_name("spare.tmp") for file in _log_files(node)]
        node.wrapper = failing(("rename",), "ENOSPC", "1+", paths=spares)
        node.start()
        appenders = _write_until_refused(node)
        for appender in appenders:
            assert appender.refusals, f"no append was refused in {appender.sent}"
            for answer in appender.refusals:
                _assert_refusal(answer)
        _assert_not_ready(node)
        _assert_only_acknowledged_is_visible(node, appenders)
        node.terminate()
        node.restart(wrapper=[])
        _assert_recovered(node, appenders)


@pytest.mark.parametrize("when", range(1, 6))
def test_a_sync_that_fails_at_the_very_beginning_is_never_passed_over(tmp_path: Path, when: int) -> None:
    first = tmp_path / "data" / "wal" / "0" / FIRST_FILE
    node = Node(tmp_path, wrapper=failing(("fdatasync", "fsync"), "EIO", str(when), paths=[first]))
    created, appender = False, None
    try:
        try:
            node.start()
        except NotReady as refused:
            assert refused.exit_code not in (0, None), refused
        else:
            answer = node.request("PUT", PATH, TEXT)
            created = answer.status == 201
            if created:
                appender = Appender(node, "w0")
                appender.run()
                assert appender.refusals
            else:
                _assert_refusal(answer)
            _assert_not_ready(node)
        node.restart(wrapper=[])
        if appender is not None:
            _assert_recovered(node, [appender])
        else:
            assert node.request("HEAD", PATH).status in (200, 404)
    finally:
        node.kill()


def test_a_catalog_that_cannot_be_written_costs_no_acknowledged_record(tmp_path: Path) -> None:
    with _prepared(tmp_path, SMALL_LOG) as node:
        catalog = [node.data_directory / "catalog" / f"0.db{suffix}" for suffix in ("", "-wal", "-journal")]
        assert catalog[0].exists(), "the node keeps no catalog where it is expected"
        node.wrapper = failing(("pwrite64", "fdatasync", "fsync"), "EIO", "5+", paths=catalog)
        try:
            node.start()
        except NotReady as refused:
            assert refused.exit_code not in (0, None), refused
            appenders = []
        else:
            appenders = [Appender(node, "w0")]
            with node.connect() as connection:
                for n in range(300):
                    answer = connection.request("POST", PATH, TEXT, record("w0", n, LARGE_BYTES))
                    appenders[0].sent += 1
                    if answer.status != 204:
                        assert answer.status == 503, answer
                        break
                    appenders[0].acked[n] = answer.header("stream-next-offset")
        node.kill()
        node.restart(wrapper=[])
        _assert_recovered(node, appenders)


def test_a_sync_that_fails_in_the_background_is_fatal_too(tmp_path: Path) -> None:
    """The kernel reports a failed write-back once for a file: whoever is told of it must tell the log."""
    path = "/v1/stream/faults/disk"
    trace = tmp_path / "trace"
    # The writer syncs once a minute here, so the first sync of the file is the one that prepares blocks ahead.
    with Node.started(tmp_path, flags=("--disk-sync-ms", "60000")) as node:
        assert node.request("PUT", path, {**TEXT, "Stream-Durability": "disk"}).status == 201
        assert node.terminate() == 0, node.output()
        node.wrapper = failing(("fdatasync",), "EIO", "1", paths=_log_files(node), trace=trace)
        node.start()
        for _ in range(4):
            assert node.request("POST", path, TEXT, b"x" * (1 << 20)).status in (204, 503)
        assert _eventually(lambda: "INJECTED" in trace.read_text()), "no sync was made to fail"
        assert _eventually(lambda: node.request("GET", "/readyz").status == 503), node.output()
        _assert_not_ready(node)
        _assert_refusal(node.request("POST", path, TEXT, b"later"))


def _eventually(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold; the wait is bounded, and its length is not what is asserted."""
    for _ in range(500):
        if holds():
            return True
        time.sleep(0.01)
    return False


LINE = re.compile(r"^\d+ +(?P<call>\w+)\((?P<fd>\d+)<(?P<file>[^>]*)>(?P<rest>.*)$")


def test_an_acknowledgement_leaves_only_after_its_sync_returned(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    appends = 20
    with _prepared(tmp_path) as node:
        node.wrapper = recording((*WRITES, "fdatasync", "sendto", "sendmsg"), trace)
        node.start()
        with node.connect() as connection:
            for n in range(appends):
                assert connection.request("POST", PATH, TEXT, b"marker-%d\n" % n).status == 204
        assert node.terminate() == 0, node.output()
    # One append at a time, so that each acknowledgement must have a write and a finished sync just before it.
    written = synced = acknowledged = 0
    for event in _log_and_socket_events(trace.read_text(errors="replace")):
        match event:
            case "write":
                written += 1
                synced = 0
            case "sync":
                synced = 1
            case "acknowledge":
                assert written, f"acknowledgement {acknowledged} left before anything was written"
                assert synced, f"acknowledgement {acknowledged} left before its sync returned"
                acknowledged += 1
                written = synced = 0
    assert acknowledged == appends


def _log_and_socket_events(trace: str) -> Iterator[str]:
    """Writes to the log, syncs of it that succeeded, and 204 answers, in the order they finished."""
    unfinished: dict[str, str] = {}
    for line in trace.splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            unfinished[thread] = call.removesuffix("<unfinished ...>")
            continue
        if call.startswith("<..."):
            call = unfinished.pop(thread, "") + call.partition("resumed>")[2]
        found = LINE.match(f"{thread} {call}")
        if not found:
            continue
        if ".wal" in found["file"]:
            if found["call"] == "fdatasync":
                assert found["rest"].rstrip().endswith("= 0"), line
                yield "sync"
            elif "marker-" in found["rest"] or not _only_zeros(found["rest"]):
                yield "write"
        elif "HTTP/1.1 204" in found["rest"]:
            yield "acknowledge"


def _only_zeros(rest: str) -> bool:
    """Whether the shown data is the zero-filling of a log file, which promises nothing."""
    return re.match(r', "(\\0)+"', rest) is not None
