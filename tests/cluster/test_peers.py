"""Nodes over real sockets: who sees whom, requests that reach their owner, and owners that change."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.cluster import pings
from headwater.cluster.introduction import ACCEPTED, BYTES_MAX, REFUSED, introduction
from headwater.cluster.membership import HTTP, S3P
from headwater.doors.s3p.names import key_of
from headwater.errors import MemberUnavailable, NoOwner, OutcomeUnknown
from tests.doors.s3p import request as s3p_request
from tests.support.cluster_nodes import GROUPS, HOST, SECRET, Cluster, ClusterNode, cluster, made_group
from tests.support.http import Connection, encode_request

ROUNDS_TO_DIE = 5
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Cluster]:
    """Four nodes; each owns the group of its number."""
    with cluster(tmp_path, "a", "b", "c", "d") as made:
        yield made


def path_of(name: str) -> str:
    return f"/v1/stream/{name}"


def stand_still(nodes: Cluster, node: ClusterNode) -> None:
    """The node hears, and answers nothing any more."""

    async def never(*arguments: Any) -> None:
        await asyncio.Event().wait()

    nodes.run(lambda: node.calls._answers.update(dict.fromkeys(node.calls._answers, never)))


def miss(nodes: Cluster, seer: ClusterNode, *answering: ClusterNode) -> None:
    """So many rounds pass at one node that whoever does not answer is not alive any more."""

    def missed() -> None:
        for _ in range(ROUNDS_TO_DIE):
            seer.view.round()
            for node in answering:
                seer.view.heard(node.view.state, answered=True)

    nodes.run(missed)


# ---- who is there ---------------------------------------------------------------------------------------------------


def test_nodes_see_each_other_and_what_each_owns(four: Cluster) -> None:
    for node in four.nodes:
        assert node.view.alive == [0, 1, 2, 3] and node.view.settled
        assert [node.view.owner(group) for group in range(GROUPS)] == [0, 1, 2, 3]


def test_what_a_node_claims_is_told_before_the_next_round(four: Cluster) -> None:
    a, _, c, _ = four.nodes
    four.move(2, c, a, 7)
    four.until(lambda: all(node.view.claim_of(2) == (0, 7) for node in four.nodes))


def test_a_node_that_stops_is_gone_at_once_and_its_number_is_free(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b") as nodes:
        a, b = nodes.nodes
        nodes.run(b.stop())
        assert a.view.alive == [0] and a.view.others == []
        assert [node.id for node in nodes.run(a.registry.nodes())] == ["a"]


def test_a_node_that_dies_is_missed_and_comes_back_with_its_number(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b") as nodes:
        a, b = nodes.nodes
        nodes.run(b.die())
        for _ in range(ROUNDS_TO_DIE):
            nodes.round(a)
        assert a.view.alive == [0]
        with pytest.raises(NoOwner):
            a.view.owner(1)
        again = nodes.start("b")
        nodes.round(again)
        nodes.until(lambda: a.view.alive == again.view.alive == [0, 1])
        assert again.view.me == 1


def test_a_node_with_another_secret_is_nobody(tmp_path: Path) -> None:
    with cluster(tmp_path, "a") as nodes:
        a = nodes.nodes[0]
        stranger = nodes.start("b", b"another secret")
        for _ in range(2):
            nodes.round()
        assert a.view.alive == [0] and stranger.view.alive == [1]
        assert a.gate.refused_count > 0
        with pytest.raises(MemberUnavailable):
            nodes.run(stranger.calls.ask(0, "ping", stranger.view.state))


def test_a_node_that_is_slow_to_answer_first_is_not_cut_off_when_another_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pings, "PING_MS_MAX", 600_000)
    with cluster(tmp_path, "a", "b") as nodes:
        b = nodes.nodes[1]
        answer = b.calls._answers["ping"]
        began, held = asyncio.Event(), asyncio.Event()

        async def slow(told: Any) -> Any:
            began.set()
            await held.wait()
            return await answer(told)

        nodes.run(lambda: b.calls.register("ping", slow))
        c = nodes.start("c")  # pings both

        async def first_answers() -> None:
            while c.view.alive != [0, 2]:
                c.clock.go_on()  # type: ignore[attr-defined]
                await asyncio.sleep(0.001)
            await began.wait()
            c.view.set_ready(3, True)  # a change
            held.set()
            while c.view.alive != [0, 1, 2]:
                await asyncio.sleep(0.001)

        nodes.run(first_answers())


# ---- the gate -------------------------------------------------------------------------------------------------------


def said_to(node: ClusterNode, data: bytes) -> bytes:
    """What the gate answers until it closes, or until it has let in."""
    host, _, port = node.view.node.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(data)
        answer = b""
        while answer != ACCEPTED and (more := sock.recv(4096)):
            answer += more
        return answer


def test_the_gate_lets_in_who_knows_the_secret_and_tells_others_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, "a") as nodes:
        a = nodes.nodes[0]
        good = introduction(SECRET, "a", HTTP)
        assert said_to(a, good) == ACCEPTED
        assert said_to(a, introduction(SECRET, "a", S3P)) == ACCEPTED
        for bad in (
            introduction(b"wrong", "a", HTTP),
            introduction(SECRET, "b", HTTP),
            introduction(SECRET, "a", "nothing"),
            good.replace(b"headwater-http", b"headwater-s3p"),
            good.replace(b"headwater-proof: ", b"headwater-proof: 0"),
            b"\r\n".join(line for line in good.split(b"\r\n") if not line.startswith(b"headwater-proof")),
            good.replace(b"GET /__headwater/members", b"GET /__headwater/metrics"),
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            b"\xff\xfe\r\n\r\n",
            b"x" * BYTES_MAX,
        ):
            assert said_to(a, bad) == REFUSED, bad
        assert not a.gate.waiting


def test_what_comes_with_an_introduction_belongs_to_the_door(tmp_path: Path) -> None:
    with cluster(tmp_path, "a") as nodes:
        a = nodes.nodes[0]
        asked = b"GET /v1/stream/none HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        host, _, port = a.view.node.address.rpartition(":")
        data = introduction(SECRET, "a", HTTP) + asked
        with socket.create_connection((host, int(port)), timeout=20) as sock:
            for at in range(len(data)):
                sock.sendall(data[at : at + 1])
            answer = b""
            while more := sock.recv(4096):
                answer += more
        assert answer.startswith(ACCEPTED + b"HTTP/1.1 404 Not Found\r\n") or b"503" in answer


def test_clients_do_not_reach_what_nodes_ask_each_other(tmp_path: Path) -> None:
    with cluster(tmp_path, "a") as nodes:
        assert nodes.request(nodes.nodes[0], "POST", "/__headwater/members/ping", (), b"\x90").status == 404


# ---- requests -------------------------------------------------------------------------------------------------------


def test_every_node_takes_every_request(four: Cluster) -> None:
    for group in range(GROUPS):
        path = path_of(four.name(group))
        for node in four.nodes:
            sent = four.request(node, "PUT" if node is four.nodes[0] else "POST", path, TEXT, node.name.encode())
            assert sent.status in (200, 201, 204)
        for node in four.nodes:
            assert four.request(node, "GET", f"{path}?offset=-1").body == b"abcd"


def test_a_writer_keeps_its_connection_while_the_owner_changes(four: Cluster) -> None:
    a, b, c, _ = four.nodes
    path = path_of(four.name(1))
    assert four.request(b, "PUT", path, TEXT).status == 201
    with Connection(HOST, a.port) as writer:

        def write(text: str) -> None:
            for _ in range(3):  # the same head again: what was found out about it before is used
                assert writer.request("POST", path, TEXT, text.encode()).status in (200, 204)

        write("1")
        forwarded_count = a.forwarder.forwarded_count
        four.move(1, b, c, 2)
        four.until(lambda: a.view.owner(1) == 2)
        write("2")
        assert a.forwarder.forwarded_count == forwarded_count + 3
        four.move(1, c, a, 3)
        write("3")
        assert a.forwarder.forwarded_count == forwarded_count + 3
        four.move(1, a, b, 4)
        four.until(lambda: a.view.claim_of(1) is not None)
        write("4")
    assert four.request(c, "GET", f"{path}?offset=-1").body == b"111222333444"


def test_a_client_that_asks_for_it_is_sent_to_the_owner_itself(four: Cluster) -> None:
    a, b, _, _ = four.nodes
    path = path_of(four.name(1))
    wish = {**TEXT, "Headwater-Redirect": "307"}
    for _ in range(2):
        told = four.request(a, "PUT", f"{path}?x=1", wish)
        assert told.status == 307 and told.header("location") == f"http://{HOST}:{b.port}{path}?x=1"
    assert a.forwarder.forwarded_count == 0
    assert four.request(b, "PUT", path, wish).status == 201
    assert four.request(a, "GET", path).status == 200


def test_a_group_without_an_owner_is_answered_so_and_the_others_go_on(four: Cluster) -> None:
    a, b, _, _ = four.nodes
    path, other = path_of(four.name(1)), path_of(four.name(2))
    four.run(lambda: b.give_up(1))
    four.until(lambda: a.view.claim_of(1) is None)
    refused = four.request(a, "PUT", path, TEXT)
    assert refused.status == 503 and refused.header("retry-after") == "1"
    assert json.loads(refused.body)["error"]["code"] == "no_owner"
    assert four.request(b, "GET", path).status == 503
    assert four.request(a, "PUT", other, TEXT).status == 201
    entries = [{"stream": four.name(group), "create": True, "records": ["x"]} for group in (1, 2)]
    bulk = json.dumps(entries).encode()
    answer = four.request(a, "POST", "/__headwater/append", {"Content-Type": "application/json"}, bulk)
    assert b"no_owner" in answer.body


@pytest.mark.parametrize("taker", [0, 2])
def test_a_request_for_a_group_that_changes_hands_waits_for_its_next_owner(four: Cluster, taker: int) -> None:
    path = path_of(four.name(1))
    assert four.request(four.nodes[0], "PUT", path, TEXT, b"a").status == 201
    held = four.run(lambda: four.nodes[1].give_up(1))
    four.until(lambda: four.nodes[0].view.claim_of(1) is None)
    with Connection(HOST, four.nodes[0].port) as connection:
        # The second one comes while the first one waits, and is answered after it.
        connection.send(encode_request("POST", path, TEXT, b"b") + encode_request("POST", path, TEXT, b"c"))
        four.until(lambda: len(four.nodes[0].peers._waiting) > 0)
        four.run(lambda: four.nodes[taker].claim(1, 2, held))
        assert [connection.read_response("POST").status for _ in range(2)] == [204, 204]
    assert four.request(four.nodes[3], "GET", path).body == b"abc"


def test_who_is_not_the_owner_refuses_what_was_sent_on_and_sends_it_nowhere(four: Cluster) -> None:
    a, b, c, _ = four.nodes
    path = path_of(four.name(1))
    four.move(1, b, c, 2)
    four.until(lambda: a.view.owner(1) == 2)

    def believe() -> None:
        a.view._owners[1] = a.view._owners[1]._replace(member=3)  # and it is wrong

    four.run(believe)
    refused = four.request(a, "PUT", path, TEXT)
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "member_unavailable")
    assert four.nodes[3].forwarder.forwarded_count == 0


def test_a_request_to_an_owner_that_stands_still_ends_when_it_is_missed(four: Cluster) -> None:
    a, b, c, d = four.nodes

    async def asked() -> asyncio.Task[Any]:
        task = asyncio.ensure_future(a.calls.ask(1, "ping", a.view.state))
        while not any(len(connection.exchanges) for connection in b.internal.connections):
            await asyncio.sleep(0.001)
        return task

    stand_still(four, b)
    task = four.run(asked())
    miss(four, a, c, d)
    assert a.view.alive == [0, 2, 3]

    async def ended() -> None:
        with pytest.raises(OutcomeUnknown):
            await task

    four.run(ended())


def test_a_live_read_ends_when_its_owner_is_missed(four: Cluster) -> None:
    a, b, c, d = four.nodes
    path = path_of(four.name(1))
    assert four.request(a, "PUT", path, TEXT, b"x").status == 201
    with Connection(HOST, a.port) as reader:
        reader.send(f"GET {path}?offset=now&live=long-poll HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        four.until(lambda: any(len(one.exchanges) for one in b.internal.connections))
        miss(four, a, c, d)
        answer = reader.read_response("GET")
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "member_unavailable")


# ---- what is asked of all -------------------------------------------------------------------------------------------


def test_what_is_asked_of_all_is_refused_while_a_group_has_no_owner(four: Cluster) -> None:
    a, b, c, _ = four.nodes
    made = [four.name(group) for group in range(GROUPS)]
    for name in made:
        assert four.request(a, "PUT", path_of(name), TEXT).status == 201

    def listed(node: ClusterNode) -> Any:
        return four.run(node.engine.questions.ask_all("streams_page", "_default", "", "", 100))

    assert len(listed(a)) == 4
    held = four.run(lambda: b.give_up(1))
    four.until(lambda: all(node.view.claim_of(1) is None for node in four.nodes))
    for node in (a, b):
        with pytest.raises(NoOwner):
            listed(node)
    four.run(lambda: c.claim(1, 2, held))
    four.until(lambda: a.view.owner(1) == 2)
    assert len(listed(a)) == 4


@pytest.mark.parametrize("slow", [1, 2])
def test_an_answer_of_all_neither_lacks_a_group_that_moves_meanwhile_nor_has_it_twice(four: Cluster, slow: int) -> None:
    a, b, c, _ = four.nodes

    async def moved() -> None:
        moving, began = asyncio.Event(), asyncio.Event()

        async def answer(node: ClusterNode) -> list[int]:
            if node.view.me == slow:
                began.set()
                await moving.wait()
            return sorted(node.owned)

        for node in four.nodes:
            node.calls.register("owned", partial(answer, node))
        task = asyncio.ensure_future(a.calls.ask_all("owned"))
        await began.wait()
        c.claim(1, 2, b.give_up(1))
        moving.set()
        with pytest.raises(NoOwner):
            await task

    four.run(moved())
    four.until(lambda: a.view.owner(1) == 2)
    assert four.run(a.calls.ask_all("owned")) == [[0], [], [1, 2], [3]]


def test_one_connection_follows_streams_of_all_nodes(four: Cluster) -> None:
    a, b, _, _ = four.nodes
    names = [four.name(group) for group in range(GROUPS)]
    for name in names:
        assert four.request(a, "PUT", path_of(name), TEXT, name.encode()).status == 201
    query = "&".join(f"stream={name}" for name in names)
    with socket.create_connection((HOST, b.port), timeout=20) as reader:
        reader.sendall(f"GET /__headwater/tail?{query}&from=start HTTP/1.0\r\nhost: b\r\n\r\n".encode())
        received = b""
        while not all(b'"stream":"%b"' % name.encode() in received for name in names):
            more = reader.recv(65536)
            assert more, received
            received += more
    four.run(lambda: four.nodes[3].give_up(3))
    four.until(lambda: b.view.claim_of(3) is None)
    refused = four.request(b, "GET", f"/__headwater/tail?{query}&from=start")
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "no_owner")


# ---- S3P ------------------------------------------------------------------------------------------------------------


def test_s3p_commands_reach_the_owner_and_are_refused_without_one(four: Cluster) -> None:
    a, b, c, _ = four.nodes
    names = (b"t%d" % n for n in range(1000))
    name = next(name for name in names if a.engine.home(key_of(name)) == 1)

    def said(node: ClusterNode, *commands: bytes) -> list[bytes]:
        replies = []
        with socket.create_connection((HOST, node.s3p_port), timeout=20) as sock, sock.makefile("rb") as file:
            for command in commands:
                sock.sendall(command)
                line = file.readline()
                lines_count = 2 * int(line[1:]) if line[:1] == b"*" else int(line[:1] == b"$")
                replies.append(line + b"".join(file.readline() for _ in range(lines_count)))
        return replies

    create = s3p_request(b"CREATE", name, [])
    append = s3p_request(b"APPEND", name, [b"ID", b"5"], [b"one"])
    read = s3p_request(b"READ", name, [b"COUNT", b"9", b"MIN_ID", b"0-0"])
    created, appended, found = said(a, create, append, read)
    assert created[:1] == b"+" and appended[:1] in b"*$" and b"one" in found
    four.move(1, b, c, 2)
    four.until(lambda: a.view.owner(1) == 2 and b.view.owner(1) == 2)
    assert b"one" in said(b, read)[0]
    four.run(lambda: c.give_up(1))
    four.until(lambda: a.view.claim_of(1) is None)
    for reply in said(a, create, append, read, create):
        assert reply.startswith(b"-ERR_UNAVAILABLE") and b"no owner" in reply


def test_a_group_made_anew_is_claimed_like_any(four: Cluster) -> None:
    a = four.nodes[0]
    four.run(lambda: four.nodes[3].give_up(3))
    four.run(lambda: a.claim(3, 9, made_group(3)))
    four.until(lambda: all(node.view.owner(3) == 0 for node in four.nodes))
    assert four.request(four.nodes[2], "PUT", path_of(four.name(3)), TEXT).status == 201
