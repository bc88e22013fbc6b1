"""S3P v0.2.0 sections 9 to 16 against a real node over a socket: errors, case, limits, order, pipelining.
Each test names the section it holds; sections 3 to 8 are in `test_spec_server`."""

from __future__ import annotations

import pytest

from tests.doors.s3p import array, bulk, request
from tests.doors.s3p.client import OK, Client, Error, id_of, read_request, refused, s3p_port, still_open
from tests.doors.s3p.hand import Door, played
from tests.support.node import Node

BLOCK_MS = 300


# ---- 9. Error format --------------------------------------------------------------------------------------


def test_9_the_name_in_an_error_cannot_break_out_of_its_line(client: Client) -> None:
    client.send(request(b"DELETE", b"a\r\n+OK\r\n\xff", []))
    assert client.reply() == Error("ERR_UNKNOWN_STREAM", "stream a??+OK??? does not exist")
    assert still_open(client)


# ---- 10. Case insensitivity -------------------------------------------------------------------------------


def test_10_commands_and_option_keys_in_any_case(client: Client) -> None:
    assert client.call(b"cReAtE", b"orders", []) == OK
    assert client.call(b"append", b"orders", [b"iD", b"3"], [b"r"]) == b"3-0"
    assert client.call(b"Read", b"orders", [b"min_ID", b"3-0"]) == [b"3-0", b"r"]
    assert client.call(b"tRIM", b"orders", [b"Min_Id", b"4-0"]) == OK
    assert client.call(b"delete", b"orders", []) == OK


def test_10_names_and_records_keep_their_case(client: Client) -> None:
    client.create(b"orders")
    assert client.read(b"Orders").code == "ERR_UNKNOWN_STREAM"
    client.append(b"orders", b"MiXeD")
    assert [record for _, record in client.read(b"orders")] == [b"MiXeD"]


# ---- 11. Configuration and limits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (request(b"CREATE", b"n" * 33, []), "stream name length not in range [1, 32]"),
        (
            request(b"APPEND", b"s", [], [b"r"] * 11),
            "too many records in APPEND request (maximum 10, s3p_records_max)",
        ),
        (request(b"APPEND", b"s", [], [b"r" * 1_001]), "individual record too large"),
        (request(b"APPEND", b"s", [], [b"r" * 900] * 4), "aggregate of records in APPEND command too large"),
        (request(b"READ", b"s", [b"COUNT", b"21"]), "COUNT not in range [1, 20]"),
        (request(b"READ", b"s", [b"BLOCK", b"20001"]), "BLOCK not in range [0, 20000]"),
    ],
)
def test_11_each_limit_is_a_setting_and_closes_when_exceeded(node: Node, data: bytes, message: str) -> None:
    assert refused(node, data) == Error("ERR_LIMITS", message)


def test_11_what_just_fits_is_taken(client: Client) -> None:
    name = b"n" * 32
    client.delete(name)
    assert client.create(name) == OK
    assert isinstance(client.append(name, *[b"r" * 300] * 10), bytes)
    assert isinstance(client.append(name, b"r" * 1_000), bytes)
    assert len(client.read(name, count=20)) == 11


# ---- 12. Concurrency and ordering -------------------------------------------------------------------------


def test_12_ids_grow_strictly_over_many_connections(node: Node, client: Client) -> None:
    client.create(b"orders")
    clients = [Client.of(node) for _ in range(8)]
    try:
        for round_ in range(10):
            for number, other in enumerate(clients):
                other.send(request(b"APPEND", b"orders", [], [b"%d-%d" % (number, round_)] * 2) * 3)
        acked = {other: [id_of(other.reply()) for _ in range(30)] for other in clients}
    finally:
        for other in clients:
            other.close()
    for ids in acked.values():
        assert ids == sorted(set(ids))
    found, min_id = [], "0-0"
    while page := client.read(b"orders", count=20, min_id=min_id):
        found += page
        ms, n = id_of(page[-1][0])
        min_id = f"{ms}-{n + 1}"
    ids = [id_of(record_id) for record_id, _ in found]
    assert len(ids) == 8 * 10 * 3 * 2
    assert ids == sorted(set(ids))
    assert {one for some in acked.values() for one in some} <= set(ids)


def test_12_ids_never_go_back_when_the_clock_does() -> None:
    async def play() -> None:
        door = Door()
        peer = door.peer()
        peer.send(request(b"CREATE", b"s", []))
        ids = []
        for now_ms in (1_000, 1_000, 1_005, 400, 1_004, 1_005, 1_006, 0, 1_006):
            door.clock.ms = now_ms
            peer.send(request(b"APPEND", b"s", [], [b"r"]) * 2)
        await door.synced()
        lines = peer.taken().split(b"\r\n")
        ids = [line.decode() for line in lines[2:-1:2]]
        assert ids == [
            *("1000-0", "1000-1", "1000-2", "1000-3", "1005-0", "1005-1", "1005-2", "1005-3", "1005-4", "1005-5"),
            *("1005-6", "1005-7", "1006-0", "1006-1", "1006-2", "1006-3", "1006-4", "1006-5"),
        ]

    played(play)


def test_12_a_timestamp_ahead_of_the_clock_holds_it_up(client: Client) -> None:
    client.create(b"orders")
    future = 4_000_000_000_000
    assert client.append(b"orders", b"a", ms=future) == b"%d-0" % future
    assert client.append(b"orders", b"b") == b"%d-1" % future
    assert client.append(b"orders", b"c", ms=future - 1).code == "ERR_NON_MONOTONIC_ID"
    assert client.append(b"orders", b"d", ms=future) == b"%d-2" % future


# ---- 13. Pipelining ---------------------------------------------------------------------------------------


def test_13_replies_come_in_the_order_of_the_commands(client: Client) -> None:
    client.send(
        request(b"CREATE", b"orders", [])
        + request(b"APPEND", b"orders", [b"ID", b"1"], [b"a"])
        + request(b"APPEND", b"nowhere", [], [b"x"])
        + request(b"APPEND", b"orders", [b"ID", b"2"], [b"b", b"c"])
        + read_request(b"orders")
        + request(b"APPEND", b"orders", [b"ID", b"1"], [b"late"])
        + request(b"CREATE", b"orders", [])
        + request(b"TRIM", b"orders", [b"MIN_ID", b"2-1"])
        + read_request(b"orders", block=BLOCK_MS)
        + request(b"DELETE", b"orders", [])
        + read_request(b"orders")
        + request(b"CREATE", b"orders", [])
        + read_request(b"orders")
    )
    unknown = Error("ERR_UNKNOWN_STREAM", "stream orders does not exist")
    late = "provided timestamp ID 1 is not greater than last appended ID 2"
    assert [client.reply() for _ in range(13)] == [
        OK,
        b"1-0",
        Error("ERR_UNKNOWN_STREAM", "stream nowhere does not exist"),
        b"2-1",
        [b"1-0", b"a", b"2-0", b"b", b"2-1", b"c"],
        Error("ERR_NON_MONOTONIC_ID", late),
        Error("ERR_STREAM_EXISTS", "stream orders already exists"),
        OK,
        [b"2-1", b"c"],
        OK,
        unknown,
        OK,
        [],
    ]


def test_13_thousands_of_pipelined_commands_are_all_answered_in_order(client: Client) -> None:
    client.create(b"orders")
    count = 5_000
    client.send(b"".join(request(b"APPEND", b"orders", [b"ID", b"%d" % n], [b"%d" % n]) for n in range(count)))
    assert [client.reply() for _ in range(count)] == [b"%d-0" % n for n in range(count)]


def test_13_a_blocked_read_holds_only_its_own_connection(node: Node, client: Client) -> None:
    client.create(b"orders")
    client.delete(b"other")
    with Client.of(node) as blocked:
        blocked.send(read_request(b"orders", block=20_000) + request(b"CREATE", b"other", []))
        for n in range(20):
            assert client.append(b"other", b"x").code == "ERR_UNKNOWN_STREAM", f"the command behind READ ran, {n}"
        assert client.append(b"orders", b"go", ms=1) == b"1-0"
        assert blocked.records() == [("1-0", b"go")]
        assert blocked.reply() == OK
        assert isinstance(client.append(b"other", b"x"), bytes)


# ---- 14. to 16. -------------------------------------------------------------------------------------------


def test_14_unknown_commands_close(node: Node) -> None:
    assert refused(node, request(b"HELLO", b"3", [])) == Error("ERR_BAD_FORMAT", "unknown command HELLO")


def test_15_a_declared_length_is_refused_before_its_bytes_are_awaited(node: Node) -> None:
    head = b"*4\r\n" + bulk(b"APPEND") + bulk(b"s") + array([])
    assert refused(node, head + b"*1\r\n$99999999999\r\n").code == "ERR_LIMITS"
    assert refused(node, head + b"*99999999999\r\n").code == "ERR_LIMITS"


def test_16_a_client_that_half_closes_gets_all_its_replies(client: Client) -> None:
    client.send(request(b"CREATE", b"orders", []) + request(b"APPEND", b"orders", [b"ID", b"1"], [b"a"]))
    client.socket.shutdown(1)
    assert [client.reply(), client.reply()] == [OK, b"1-0"]
    assert client.ended()


def test_the_address_is_logged_and_the_ready_line_stays_alone_on_standard_output(node: Node) -> None:
    out = (node.directory / "node.1.out").read_text()
    assert out == f"headwater ready on {node.url}\n"
    assert s3p_port(node) != node.port
