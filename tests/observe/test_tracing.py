"""Spans as a collector gets them: a node with two workers sends them by OTLP to a receiver in this process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headwater.observe import tracing
from tests.support.http import Connection
from tests.support.node import Node

TEXT = {"Content-Type": "text/plain"}
WITHIN_S = 60.0
TRACE = "4bf92f3577b34da6a3ce929d0e0e47%02x"
SECRET = "5ecret"


class Got(NamedTuple):
    name: str
    trace: str
    id: str
    parent: str
    facts: dict[str, Any]
    resource: dict[str, Any]
    failed: bool


class Receiver:
    """A collector, and a receiver of webhooks."""

    def __init__(self) -> None:
        self.spans: list[Got] = []
        self.webhooks: list[dict[str, str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces":
                    receiver.take(body)
                else:
                    receiver.webhooks.append({name.lower(): value for name, value in self.headers.items()})
                answer = b'{"done":true}' if self.path != "/v1/traces" else b""
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, body: bytes) -> None:
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = facts_of(part.resource.attributes)
            for scope in part.scope_spans:
                for span in scope.spans:
                    facts = facts_of(span.attributes)
                    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                    self.spans.append(Got(span.name, *ids, facts, resource, span.status.code == 2))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_for(self, wanted: Callable[[Got], bool]) -> Got:
        deadline_s = time.monotonic() + WITHIN_S
        while True:
            for span in list(self.spans):
                if wanted(span):
                    return span
            assert time.monotonic() < deadline_s, sorted({span.name for span in self.spans})
            time.sleep(0.02)


def facts_of(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, collector: Receiver) -> Iterator[Node]:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    flags = ["--traces", "--workers", "2", "--groups", "3", "--webhook-allow-local", "--lake-cache-bytes", "1MiB"]
    with Node.started(tmp_path_factory.mktemp("node"), env=env, flags=flags) as started:
        for number in range(6):
            started.request("PUT", f"/v1/stream/traced/{number}", TEXT, b"some bytes")
        yield started


def parent(number: int, flags: str = "01") -> tuple[str, dict[str, str]]:
    trace = TRACE % number
    return trace, {"traceparent": f"00-{trace}-00f067aa0ba902b7-{flags}"}


def test_a_sampled_request_is_a_span_below_that_of_its_client(node: Node, collector: Receiver) -> None:
    trace, headers = parent(1)
    node.request("GET", f"/v1/stream/traced/0?offset=-1&cursor={SECRET}", {**headers, "X-Request-Id": "r-1"})
    found = collector.wait_for(lambda span: span.trace == trace)
    assert (found.name, found.parent) == ("GET", "00f067aa0ba902b7")
    assert found.facts["url.path"] == "/v1/stream/traced/0" and SECRET not in str(found.facts)
    assert found.resource["service.name"] == "headwater" and found.resource["service.instance.id"]
    assert found.resource["deployment.environment.name"] == "test"


def test_a_request_that_is_sent_on_has_spans_of_both_workers_in_one_trace(node: Node, collector: Receiver) -> None:
    with Connection("127.0.0.1", node.port) as connection:  # stays with one worker
        for number in range(6):
            _, headers = parent(16 + number)
            connection.request("GET", f"/v1/stream/traced/{number}", headers)
    sent = collector.wait_for(lambda span: span.name == "forward")
    front = collector.wait_for(lambda span: span.id == sent.parent)
    owner = collector.wait_for(lambda span: span.parent == sent.id)
    assert front.name == owner.name == "GET" and front.trace == owner.trace
    assert front.resource["service.instance.id"] != owner.resource["service.instance.id"]


def test_flushes_and_cold_reads_are_spans(node: Node, collector: Receiver) -> None:
    node.request("POST", "/__headwater/flush")
    flush = collector.wait_for(lambda span: span.name == "flush")
    assert flush.parent == "" and flush.facts["headwater.bytes"] > 0
    for number in range(6):
        _, headers = parent(32 + number)
        node.request("GET", f"/v1/stream/traced/{number}", headers)
    cold = collector.wait_for(lambda span: span.name == "cold read")
    assert collector.wait_for(lambda span: span.id == cold.parent).name == "GET"


def test_a_webhook_is_a_span_and_takes_its_trace_along(node: Node, collector: Receiver) -> None:
    config = {"pattern": "hooked/*", "type": "webhook", "webhook": {"url": f"{collector.url}/hook"}}
    made = node.request(
        "PUT",
        "/v1/stream/__ds/subscriptions/hook",
        {"Content-Type": "application/json"},
        json.dumps(config).encode(),
    )
    assert made.status in (200, 201), made.body
    node.request("PUT", "/v1/stream/hooked/a", TEXT, b"x")
    span = collector.wait_for(lambda span: span.name == "webhook")
    assert f"00-{span.trace}-{span.id}-" in collector.webhooks[0]["traceparent"]


@pytest.mark.parametrize("flags", ["00", "zz"])
def test_a_request_whose_trace_is_not_sampled_is_no_span(node: Node, collector: Receiver, flags: str) -> None:
    trace, headers = parent(64, flags)
    node.request("GET", "/v1/stream/traced/1", headers)
    after, headers = parent(65)
    node.request("GET", "/v1/stream/traced/1", headers)
    collector.wait_for(lambda span: span.trace == after)
    assert not [span for span in collector.spans if span.trace == trace]


def test_a_node_that_does_not_trace_loads_nothing_of_opentelemetry() -> None:
    program = "import sys, headwater.app, headwater.node; print([m for m in sys.modules if 'opentelemetry' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WITHIN_S)
    assert done.stdout == "[]\n", done.stderr


def test_a_collector_that_is_away_holds_up_nothing(tmp_path: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with Node.started(tmp_path, memory=True, env=env, flags=["--traces", "--trace-one-in", "1"]) as node:
        for _ in range(20):
            assert node.request("GET", "/healthz").status == 200
        assert node.terminate() == 0


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-" + b"0" * 16 + b"-01",
        b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
        b"\xff" * 55,
    ],
)
def test_a_traceparent_that_is_none_or_not_sampled_is_left_alone(value: bytes) -> None:
    assert tracing.parsed(value) is None


def test_later_versions_of_traceparent_are_understood() -> None:
    found = tracing.parsed(b"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-more")
    assert found is not None and found.trace_id == 0x4BF92F3577B34DA6A3CE929D0E0E4736
