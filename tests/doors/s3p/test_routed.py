"""S3P where two members serve a group each: order, blocked reads, owners that go away, size and back-pressure.
Clients are connected to member 0: what concerns group 1 is forwarded. What commands mean is in `test_spec_server`."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import pytest

from headwater.config import Settings
from headwater.doors.s3p.connection import IN_FLIGHT_BYTES_MAX, PIPELINE_MAX, Connection
from headwater.doors.s3p.replies import records
from headwater.doors.s3p.server import S3pServer
from tests.doors.s3p import id_reply, request
from tests.doors.s3p.client import append_request as append
from tests.doors.s3p.client import read_request
from tests.doors.s3p.two_members import MS, Client, Member, Node, create, played
from tests.engine import HandLog

MIB = 1 << 20
LONG = 24
"""Records of one MiB in a reply that is longer than all buffers on its way."""
SLOW = Settings(write_buffer_bytes_max=64 * 1024, read_bytes_max=32 * MIB)


# ---- order ------------------------------------------------------------------------------------------------


def test_ten_thousand_commands_on_streams_of_both_members_are_answered_in_order() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        chance = random.Random(11)
        names = [node.name(group, at) for group in (0, 1) for at in range(3)]
        held: dict[bytes, list[tuple[int, int, bytes]]] = {name: [] for name in names}
        asked, expected = [create(name) for name in names], [b"+OK\r\n"] * len(names)
        for n in range(10_000):
            name = chance.choice(names)
            if chance.random() < 0.9:
                payload = b"%d" % n
                asked.append(append(name, payload))
                held[name].append((MS, len(held[name]), payload))
                expected.append(id_reply(*held[name][-1][:2]))
            else:
                since = max(0, len(held[name]) - 5)
                asked.append(read_request(name, min_id=f"{MS}-{since}"))
                expected.append(records(held[name][since:]))
        data = b"".join(asked)
        while data:
            size = chance.choice((1, 100, 10_000, 50_000))
            client.send(data[:size])
            data = data[size:]
            await asyncio.sleep(0)
        for number, wanted in enumerate(expected):
            assert await client.reply() == wanted, number
        assert node.there.server.from_members

    played(play)


def test_a_reply_of_this_member_waits_for_a_forwarded_one_in_front_of_it_and_the_other_way_round() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        here, there = node.name(0), node.name(1)
        client.send(create(there) + create(here))
        await node.until(lambda: bool(node.there.log.tail and node.here.log.tail))
        node.here.sync()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.05)
        node.there.sync()
        assert [await client.reply(), await client.reply()] == [b"+OK\r\n"] * 2
        client.send(append(here, b"a") + append(there, b"b"))
        tail = node.there.log.tail
        await node.until(lambda: node.there.log.tail > tail)
        node.there.sync()
        await node.until(lambda: node.there.log.synced > tail)
        node.here.sync()
        assert [await client.reply(), await client.reply()] == [id_reply(MS, 0)] * 2

    played(play, logs=HandLog)


def test_pipelined_appends_are_joined_by_the_member_that_owns_their_stream() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        for group in (0, 1):
            assert await client.call(create(node.name(group))) == b"+OK\r\n"
        for group in (0, 1):
            client.send(append(node.name(group), b"x", b"y") * 100)
            assert [await client.reply() for _ in range(100)] == [id_reply(MS, 2 * n + 1) for n in range(100)]
        assert [member.engine.joined_count > 0 for member in node.members] == [True, True]

    played(play)


def test_every_command_is_forwarded_and_means_the_same() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        for group in (0, 1):
            name = node.name(group)
            unknown = b"-ERR_UNKNOWN_STREAM stream %b does not exist\r\n" % name
            assert await client.call(append(name, b"x")) == unknown
            assert await client.call(read_request(name)) == unknown
            assert await client.call(create(name)) == b"+OK\r\n"
            assert await client.call(create(name)) == b"-ERR_STREAM_EXISTS stream %b already exists\r\n" % name
            dated = request(b"APPEND", name, [b"ID", b"%d" % (MS + 7)], [b"c", b"d"])
            client.send(append(name, b"a", b"b") + dated + request(b"TRIM", name, [b"MIN_ID", b"%d-1" % MS]))
            client.send(read_request(name, count=2) + append(name, b"e") + request(b"DELETE", name, []))
            client.send(read_request(name))
            told = [await client.reply() for _ in range(7)]
            both = records([(MS, 1, b"b"), (MS + 7, 0, b"c")])
            ids = [id_reply(MS, 1), id_reply(MS + 7, 1)]
            assert told == [*ids, b"+OK\r\n", both, id_reply(MS + 7, 2), b"+OK\r\n", unknown]

    played(play)


def test_a_command_that_cannot_be_parsed_is_refused_after_the_forwarded_ones_before_it() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        client.send(create(node.name(1)) + append(node.name(1), b"x") + b"nonsense\r\n")
        assert [await client.reply(), await client.reply()] == [b"+OK\r\n", id_reply(MS, 0)]
        assert (await client.reply()).startswith(b"-ERR_BAD_FORMAT")
        assert await client.reader.read() == b""

    played(play)


# ---- blocked reads ----------------------------------------------------------------------------------------


def test_a_blocked_read_is_forwarded_and_what_is_behind_it_waits_for_its_reply() -> None:
    async def play(node: Node) -> None:
        client, other = await node.client(), await node.client()
        here, there = node.name(0), node.name(1)
        for name in (here, there):
            await client.call(create(name))
        client.send(read_request(there, block=60_000) + append(here, b"behind"))
        await node.until(lambda: node.there.server.blocked_count == 1)
        assert await other.call(read_request(here)) == records([])
        assert await other.call(append(there, b"x")) == id_reply(MS, 0)
        assert [await client.reply(), await client.reply()] == [records([(MS, 0, b"x")]), id_reply(MS, 0)]

    played(play)


def test_a_forwarded_blocked_read_ends_with_its_clients_input_and_what_is_behind_it_is_done() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        there = node.name(1)
        await client.call(create(there))
        client.send(read_request(there, block=60_000) + append(there, b"x") + read_request(there, block=60_000))
        client.send(read_request(there, block=60_000, min_id=f"{MS}-9"))
        await node.until(lambda: node.there.server.blocked_count == 1)
        client.writer.write_eof()
        wanted = [records([]), id_reply(MS, 0), records([(MS, 0, b"x")]), records([])]
        assert [await client.reply() for _ in wanted] == wanted
        assert await client.reader.read() == b""
        await node.until(lambda: not node.there.server.from_members)

    played(play)


def test_a_client_that_leaves_takes_its_forwarded_read_with_it() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        there = node.name(1)
        await client.call(create(there))
        client.send(read_request(there, block=60_000))
        await node.until(lambda: node.there.server.blocked_count == 1)
        client.writer.transport.abort()
        await node.until(lambda: node.there.server.blocked_count == 0)
        await node.until(lambda: not node.there.server.from_members)

    played(play)


def test_a_member_that_stops_ends_the_blocked_reads_it_forwarded() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        await client.call(create(node.name(1)))
        client.send(read_request(node.name(1), block=60_000) + append(node.name(1), b"late"))
        await node.until(lambda: node.there.server.blocked_count == 1)
        await node.here.server.close(30.0)
        assert await client.reply() == records([])
        assert (await client.reply()).startswith(b"-ERR_UNAVAILABLE the node is shutting down")
        assert await client.reader.read() == b""

    played(play)


# ---- owners that go away ----------------------------------------------------------------------------------


def cut(member: Member) -> None:
    """Ends the connections of other members as a kill would."""
    for connection in list(member.server.from_members):
        connection.abort()


def test_an_owner_that_goes_away_fails_what_it_had_and_the_connection_goes_on() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        here, there = node.name(0), node.name(1)
        client.send(create(here) + create(there))
        await node.until(lambda: bool(node.there.log.tail and node.here.log.tail))
        for member in node.members:
            member.sync()
        assert [await client.reply(), await client.reply()] == [b"+OK\r\n"] * 2
        tail = node.there.log.tail
        client.send(append(here, b"a") + append(there, b"b") + append(here, b"c"))
        await node.until(lambda: node.there.log.tail > tail)
        cut(node.there)
        node.here.sync()
        assert await client.reply() == id_reply(MS, 0)
        assert await client.reply() == (
            b"-ERR_UNAVAILABLE member 1 went away before it replied; a write may or may not have taken effect\r\n"
        )
        node.here.sync()
        assert await client.reply() == id_reply(MS, 1)
        node.there.sync()
        assert await client.call(read_request(there)) == records([(MS, 0, b"b")])

    played(play, logs=HandLog)


def test_a_member_that_cannot_be_reached_is_a_reason_to_retry() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        here, there = node.name(0), node.name(1)
        await client.call(create(here))
        Path(node.here.members.s3p_path(1)).unlink()
        client.send(create(there) + append(here, b"x") + append(there, b"y") + read_request(there) + append(here, b"z"))
        refused = b"-ERR_UNAVAILABLE member 1, which serves this, does not answer; retry\r\n"
        wanted = [refused, id_reply(MS, 0), refused, refused, id_reply(MS, 1)]
        assert [await client.reply() for _ in wanted] == wanted

    played(play)


def test_a_forwarded_read_whose_owner_goes_away_is_refused_unless_its_reply_has_begun() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        here, there = node.name(0), node.name(1)
        for name in (here, there):
            await client.call(create(name))
        client.send(read_request(there, block=60_000) + append(here, b"x"))
        await node.until(lambda: node.there.server.blocked_count == 1)
        cut(node.there)
        assert (await client.reply()).startswith(b"-ERR_UNAVAILABLE member 1,")
        assert await client.reply() == id_reply(MS, 0)
        assert await client.call(append(there, *[b"x" * MIB] * LONG)) == id_reply(MS, LONG - 1)
        slow = await node.slow_client()
        slow.send(read_request(there) + append(here, b"never"))
        await node.stuck()
        cut(node.there)
        # Half a reply is not followed by anything: the connection ends.
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await slow.reader.readexactly(LONG * MIB)
        assert await client.call(read_request(here)) == records([(MS, 0, b"x")])

    played(play, SLOW)


def test_a_reply_that_is_none_is_an_owner_that_went_away() -> None:
    async def play(node: Node) -> None:
        async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        client = await node.client()
        path = node.here.members.s3p_path(1)
        Path(path).unlink()
        async with await asyncio.start_unix_server(nonsense, path):
            assert (await client.call(create(node.name(1)))).startswith(b"-ERR_UNAVAILABLE member 1 went away")
        assert await client.call(create(node.name(0))) == b"+OK\r\n"

    played(play)


# ---- between members --------------------------------------------------------------------------------------


def test_what_was_forwarded_to_a_member_that_does_not_own_it_is_refused_and_not_forwarded_again() -> None:
    async def play(node: Node) -> None:
        forwarded = await node.forwarding_client(0)
        here, there = node.name(0), node.name(1)
        client = await node.client()
        assert await client.call(create(there)) == b"+OK\r\n"
        assert len(node.there.server.from_members) == 1
        asked = [create(there), append(there, b"x"), read_request(there), request(b"DELETE", there, [])]
        asked += [request(b"TRIM", there, [b"MIN_ID", b"1-0"]), append(there, b"x") * 3]
        forwarded.send(b"".join(asked) + create(here))
        refused = b"-ERR_UNAVAILABLE member 1, which serves this, does not answer; retry\r\n"
        assert [await forwarded.reply() for _ in range(8)] == [refused] * 8
        assert await forwarded.reply() == b"+OK\r\n"
        assert len(node.there.server.from_members) == 1
        assert await client.call(read_request(there)) == records([])

    played(play)


def test_connections_of_members_take_no_clients_place_and_have_no_time_limit() -> None:
    async def play(node: Node) -> None:
        first = await node.client()
        assert await first.call(create(node.name(1))) == b"+OK\r\n"
        [forwarding] = node.there.server.from_members
        assert forwarding not in node.there.server.connections
        client = await node.client(1)
        assert await client.call(append(node.name(1), b"x")) == id_reply(MS, 0)

    played(play, Settings(s3p_connections_max=1))


def test_a_node_of_one_process_has_no_part_in_forwarding() -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            member = Member(0, Path(folder), Settings(), None)
            assert type(S3pServer(Settings(), member.engine).accept()) is Connection

    asyncio.run(run())


# ---- size and back-pressure -------------------------------------------------------------------------------


def test_large_records_are_forwarded_both_ways() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        there = node.name(1)
        await client.call(create(there))
        large = bytes(range(256)) * (8 * MIB // 256)
        client.send(append(there, large) + append(there, b"small", large[: 100 * 1024]) + read_request(there, count=10))
        assert [await client.reply(), await client.reply()] == [id_reply(MS, 0), id_reply(MS, 2)]
        found = await client.reply()
        if found != records([(MS, 0, large)]):  # as much as one reply holds
            assert found == records([(MS, 0, large), (MS, 1, b"small"), (MS, 2, large[: 100 * 1024])])
        assert await client.call(read_request(there, min_id=f"{MS}-1")) == records(
            [(MS, 1, b"small"), (MS, 2, large[: 100 * 1024])]
        )

    played(play)


def test_a_client_that_pipelines_without_end_to_another_member_is_not_read_until_it_is_answered() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        there = node.name(1)
        client.send(create(there))
        await node.until(lambda: bool(node.there.log.tail))
        node.there.sync()
        assert await client.reply() == b"+OK\r\n"
        [connection] = node.here.server.connections
        large = append(there, b"x" * 64 * 1024)
        sending = asyncio.ensure_future(flood(client, large, 4 * IN_FLIGHT_BYTES_MAX // len(large)))
        await node.until(lambda: not connection._receiving)
        assert connection._unanswered_count <= PIPELINE_MAX
        assert connection._in_flight_bytes <= IN_FLIGHT_BYTES_MAX + MIB
        pump = asyncio.ensure_future(synced_again_and_again(node.there))
        for n in range(await sending):
            assert await client.reply() == id_reply(MS, n)
        pump.cancel()

    played(play, logs=HandLog)


async def flood(client: Client, command: bytes, count: int) -> int:
    for _ in range(count):
        client.send(command)
        await client.writer.drain()
    return count


async def synced_again_and_again(member: Member) -> None:
    while True:
        member.sync()
        await asyncio.sleep(0.001)


def test_a_slow_reader_of_another_members_stream_has_neither_member_hold_its_reply() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        here, there = node.name(0), node.name(1)
        for name in (here, there):
            await client.call(create(name))
        await client.call(append(there, *[b"x" * MIB] * LONG))
        slow = await node.slow_client()
        slow.send(read_request(there, count=LONG) * 2 + append(here, b"end"))
        stuck = await node.stuck()
        # Others are served meanwhile.
        assert await client.call(append(here, b"x")) == id_reply(MS, 0)
        assert await client.call(append(there, b"x")) == id_reply(MS, LONG)
        for connection in (stuck, *node.there.server.from_members):
            assert connection._transport is not None
            assert connection._transport.get_write_buffer_size() < 2 * MIB
        reply = records([(MS, n, b"x" * MIB) for n in range(LONG)])
        for _ in range(2):
            assert await slow.reader.readexactly(len(reply)) == reply
        assert await slow.reader.readexactly(len(id_reply(MS, 1))) == id_reply(MS, 1)

    played(play, SLOW)


def test_a_slow_reader_that_is_cut_off_lets_go_of_the_owner() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        there = node.name(1)
        await client.call(create(there))
        await client.call(append(there, *[b"x" * MIB] * LONG))
        slow = await node.slow_client()
        slow.send(read_request(there))
        stuck = await node.stuck()
        stuck.tick(0.0)
        stuck.tick(1e9)
        await node.until(lambda: stuck not in node.here.server.connections)
        await node.until(lambda: len(node.there.server.from_members) == 1)

    played(play, SLOW)
