"""The npm clients against a real node, over a network that cuts connections, and across SIGKILL of the server.
What the scripts do stands in the .mjs files; what must come of it stands here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.packages import Script, installed, running
from tests.clients.proxy import Plan, Proxy, proxying
from tests.support.http import read_bytes, read_messages
from tests.support.node import Node

# The packages come from npm, which the quick tier does without.
pytestmark = pytest.mark.full

HERE = Path(__file__).resolve().parent
FLAGS = ("--long-poll-timeout-ms", "1000", "--checkpoint-interval-ms", "200")
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def scripts() -> Path:
    return installed(HERE)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=FLAGS) as node:
        yield node
        assert "Traceback" not in node.stderr(), node.output()


@pytest.fixture
def line(node: Node) -> Iterator[Proxy]:
    """A good connection at an address that stays when the node comes back elsewhere."""
    with proxying(node.port) as proxy:
        yield proxy


def kill_and_return(node: Node, line: Proxy) -> None:
    line.target = None
    node.kill()
    line.drop_all()
    node.start()
    line.target = node.port


def stop_and_return(node: Node, line: Proxy) -> None:
    """The orderly way: live connections are ended with a last event, and their clients come back by themselves."""
    line.target = None
    assert node.terminate() == 0, node.output()
    node.start()
    line.target = node.port


# A torn SSE connection is an error that these clients hand to the application; a poll is simply tried again.
RETURNS = [("long-poll", kill_and_return), ("sse", stop_and_return)]


def messages(node: Node, path: str) -> list[Any]:
    with node.connect() as connection:
        return read_messages(connection, path)


# --- @durable-streams/client: the producer ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_a_producer_writes_exactly_once_over_cut_connections(node: Node, scripts: Path, kind: str) -> None:
    count = 400
    with proxying(node.port, Plan(2500, 2500)) as bad_line:
        batch_bytes = 60 if kind == "application/json" else 15
        plan = {"url": f"{bad_line.url}/v1/stream/cut", "contentType": kind, "count": count, "batchBytes": batch_bytes}
        with running(scripts, "producer.mjs", plan) as script:
            facts = script.facts()
        cuts = dict(bad_line.cut_counts)
    assert facts["errors"] == []
    assert min(cuts.values()) >= 2, cuts
    assert facts["networkErrors"] >= sum(cuts.values()) // 2
    with node.connect() as connection:
        if kind == "text/plain":
            assert read_bytes(connection, "/v1/stream/cut") == b"".join(b"%d;" % n for n in range(count))
        else:
            assert [one["n"] for one in read_messages(connection, "/v1/stream/cut")] == list(range(count))


def test_a_producer_writes_exactly_once_while_the_server_is_killed(node: Node, line: Proxy, scripts: Path) -> None:
    count = 1500
    plan = {"url": f"{line.url}/v1/stream/killed", "contentType": "application/json", "count": count, "batchBytes": 60}
    kills = 0
    with running(scripts, "producer.mjs", {**plan, "close": True}) as script:
        while kills < 3:
            if node.request("HEAD", "/v1/stream/killed").status == 200:
                # It is killed only when it has written something since it came up.
                before = len(messages(node, "/v1/stream/killed"))
                if before >= min(count, 100 * (kills + 1)) or script.process.poll() is not None:
                    kill_and_return(node, line)
                    kills += 1
        facts = script.facts()
    assert facts["errors"] == []
    assert [one["n"] for one in messages(node, "/v1/stream/killed")] == list(range(count))
    assert node.request("HEAD", "/v1/stream/killed").header("stream-closed") == "true"


def test_a_second_producer_fences_the_first_by_claiming_an_epoch(node: Node, scripts: Path) -> None:
    plan = {"url": f"{node.url}/v1/stream/fenced", "contentType": "application/json", "count": 60, "batchBytes": 60}
    for more, epoch in (({"epoch": 5}, 5), ({"autoClaim": True}, 6), ({"autoClaim": True}, 7)):
        with running(scripts, "producer.mjs", {**plan, **more}) as script:
            facts = script.facts()
        assert (facts["errors"], facts["epoch"]) == ([], epoch)
    assert [one["n"] for one in messages(node, "/v1/stream/fenced")] == [*range(60)] * 3
    stale = {"Producer-Id": "producer-1", "Producer-Epoch": "6", "Producer-Seq": "99"}
    assert node.request("POST", "/v1/stream/fenced", JSON | stale, b"[1]").status == 403


# --- @durable-streams/client: the tail ----------------------------------------------------------------------


def await_seen(script: Script, count: int) -> None:
    while script.wait_line().get("seen", 0) < count:
        pass


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_live_tail_misses_and_repeats_nothing_across_kills(node: Node, line: Proxy, scripts: Path, live: str) -> None:
    path = "/v1/stream/tailed"
    assert node.request("PUT", path, JSON, b"[0,1,2]").status == 201
    written = 3
    with running(scripts, "tail.mjs", {"url": f"{line.url}{path}", "offset": "-1", "live": live}) as script:
        await_seen(script, written)
        for _ in range(2):
            for _ in range(5):
                assert node.request("POST", path, JSON, b"%d" % written).status == 204
                written += 1
            await_seen(script, written)
            kill_and_return(node, line)
            # Written while nobody follows: the tail has to find it when it is back.
            for _ in range(5):
                assert node.request("POST", path, JSON, b"%d" % written).status == 204
                written += 1
            await_seen(script, written)
        assert node.request("POST", path, JSON, b'{"end":true}').status == 204
        facts = script.facts()
    assert facts["items"] == [*range(written), {"end": True}]
    assert facts["offset"] == node.request("HEAD", path).header("stream-next-offset")


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_live_tail_is_taken_up_again_without_the_application_when_the_server_stops_in_order(
    node: Node, line: Proxy, scripts: Path, live: str
) -> None:
    path = "/v1/stream/stopped"
    assert node.request("PUT", path, JSON, b"[0]").status == 201
    with running(scripts, "tail.mjs", {"url": f"{line.url}{path}", "offset": "-1", "live": live}) as script:
        for n in range(1, 4):
            await_seen(script, n)
            stop_and_return(node, line)
            assert node.request("POST", path, JSON, b"%d" % n).status == 204
        assert node.request("POST", path, JSON, b'{"end":true}').status == 204
        facts = script.facts()
    assert facts["items"] == [0, 1, 2, 3, {"end": True}]
    assert facts["torn"] == []


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_live_tail_misses_and_repeats_nothing_over_cut_connections(node: Node, scripts: Path, live: str) -> None:
    path = "/v1/stream/cut-tail"
    assert node.request("PUT", path, JSON).status == 201
    with proxying(node.port, Plan(0, 4000)) as bad_line:
        plan = {"url": f"{bad_line.url}{path}", "offset": "-1", "live": live}
        with running(scripts, "tail.mjs", plan) as script:
            await_seen(script, 0)
            for n in range(150):
                assert node.request("POST", path, JSON, b"%d" % n).status == 204
                if n % 15 == 14:
                    await_seen(script, n + 1)
            assert node.request("POST", path, JSON, b'{"end":true}').status == 204
            facts = script.facts()
        assert bad_line.cut_counts["response"] >= 2, bad_line.cut_counts
    assert facts["items"] == [*range(150), {"end": True}]


# --- @durable-streams/state and y-durable-streams -----------------------------------------------------------


@pytest.mark.parametrize(("live", "return_of"), RETURNS)
def test_state_databases_agree_across_a_restart(
    node: Node, line: Proxy, scripts: Path, live: str, return_of: Callable[[Node, Proxy], None]
) -> None:
    with running(scripts, "state.mjs", {"url": f"{line.url}/v1/stream/state", "live": live}) as script:
        assert script.wait_line() == {"ready": True}
        return_of(node, line)
        script.say("go on")
        facts = script.facts()
    users = [{"id": f"u{n}", "name": "renamed" if n == 3 else f"name {n}"} for n in range(10)]
    expected = {"users": users, "notes": [{"id": "n1", "text": "final"}]}
    assert facts["first"] == facts["second"] == facts["third"] == expected
    assert (facts["foldedUsers"], facts["foldedNote"]) == (10, "final")


@pytest.mark.parametrize(("live", "return_of"), RETURNS)
def test_a_yjs_document_converges_across_a_restart_and_compaction(
    node: Node, line: Proxy, scripts: Path, live: str, return_of: Callable[[Node, Proxy], None]
) -> None:
    plan = {"url": line.url, "live": live, "compactionBytes": 1500}
    with running(scripts, "yjs.mjs", plan) as script:
        assert script.wait_line() == {"ready": True}
        return_of(node, line)
        script.say("go on")
        facts = script.facts()
    assert facts["words"] == ["again", "hello", "world"]
    assert sorted(facts["items"], key=lambda item: int(item.split()[1])) == [f"item {n}" for n in range(200)]
    assert "_snapshot" in facts["snapshot"], "the document was compacted, so the late one began from a snapshot"
