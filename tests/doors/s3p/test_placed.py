"""S3P of streams that live in another group than the home of their name, which another member serves.
Clients are connected to member 0; see `test_routed` for streams that live at home."""

from __future__ import annotations

import pytest

from headwater.config import Settings
from headwater.doors.s3p.connection import Connection
from headwater.doors.s3p.exclusive import Undecided
from headwater.doors.s3p.names import key_of
from headwater.doors.s3p.replies import records
from headwater.doors.s3p.server import S3pServer
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from tests.doors.s3p import id_reply, request
from tests.doors.s3p.client import append_request as append
from tests.doors.s3p.client import read_request
from tests.doors.s3p.hand import Peer
from tests.doors.s3p.two_members import MS, Node, create, played


@pytest.mark.parametrize("home", [0, 1])
def test_a_stream_is_reached_where_its_names_home_has_placed_it(home: int) -> None:
    async def play(node: Node) -> None:
        # What a client of member 0 asks goes to member 1: to stay there, or to come back marked.
        name, holder = node.name(home), node.members[1 - home]
        node.members[home].place(name, 1 - home)
        client, other = await node.client(), await node.client(1)
        assert await client.call(create(name)) == b"+OK\r\n"
        assert holder.group.loaded.find(key_of(name)) is not None
        client.send(append(name, b"a") * 3 + read_request(name, count=1) + append(name, b"b"))
        client.send(request(b"TRIM", name, [b"MIN_ID", b"%d-3" % MS]) + request(b"APPEND", name, [b"ID", b"7"], [b"x"]))
        ids = [id_reply(MS, n) for n in range(4)]
        wanted = [*ids[:3], records([(MS, 0, b"a")]), ids[3], b"+OK\r\n"]
        assert [await client.reply() for _ in wanted] == wanted
        assert (await client.reply()).startswith(b"-ERR_NON_MONOTONIC_ID")
        assert await other.call(read_request(name)) == records([(MS, 3, b"b")])
        client.send(read_request(name, block=60_000, min_id=f"{MS}-4"))
        await node.until(lambda: holder.server.blocked_count == 1)
        assert await other.call(append(name, b"c")) == id_reply(MS, 4)
        assert await client.reply() == records([(MS, 4, b"c")])
        client.send(read_request(name, block=60_000, min_id=f"{MS}-5"))
        await node.until(lambda: holder.server.blocked_count == 1)
        client.writer.write_eof()
        assert await client.reply() == records([])
        assert await other.call(request(b"DELETE", name, [])) == b"+OK\r\n"

    played(play)


@pytest.mark.parametrize("group", [0, 1])
def test_a_creation_waits_until_it_is_decided_where_its_name_is_placed(group: int) -> None:
    async def play(node: Node) -> None:
        client, name = await node.client(), node.name(group)
        home = node.members[group]
        async with home.placing._decide(key_of(name)):
            client.send(create(node.name(0, 1)) + create(name) + append(name, b"x"))
            assert await client.reply() == b"+OK\r\n"
            waiting = home.server.from_members if group else home.server.connections
            await node.until(lambda: any(type(connection.alone) is Undecided for connection in waiting))
            home.place(name, 1 - group)
        assert [await client.reply(), await client.reply()] == [b"+OK\r\n", id_reply(MS, 0)]
        assert node.members[1 - group].group.has(key_of(name)) and not home.group.has(key_of(name))

    played(play)


def test_a_creation_waits_in_the_same_way_where_one_process_has_all_groups() -> None:
    async def play(node: Node) -> None:
        engine = Engine({**node.here.engine.owned, **node.there.engine.owned}, 2, node.here.clock)
        placing = ForkPlacement(engine)
        server = S3pServer(Settings(), engine, placing=placing)
        peer, name = Peer(server), node.name(0)
        assert type(peer.connection) is Connection
        async with placing._decide(key_of(name)):
            peer.send(create(name) + append(name, b"x"))
            await node.until(lambda: type(peer.connection.alone) is Undecided)
            node.here.place(name, 1)
        await node.until(lambda: node.there.group.has(key_of(name)))
        await node.until(lambda: len(peer.transport.written) > len(b"+OK\r\n"))
        assert peer.taken() == b"+OK\r\n" + id_reply(MS, 0)

    played(play)


def test_a_connection_that_is_cut_takes_a_creation_with_it_that_waits() -> None:
    async def play(node: Node) -> None:
        client, name = await node.client(), node.name(0)
        async with node.here.placing._decide(key_of(name)):
            client.send(create(name))
            await node.until(lambda: any(connection.alone is not None for connection in node.here.server.connections))
            [connection] = node.here.server.connections
            connection.abort()
            await node.until(lambda: not node.here.server.connections)
        # The creation that waited ends in a later turn of the loop than its connection.
        await node.until(lambda: not node.here.placing.is_deciding(key_of(name)))
        assert not node.here.group.has(key_of(name))

    played(play)


def test_creations_sent_by_a_placement_that_is_over_are_refused() -> None:
    async def play(node: Node) -> None:
        client, name = await node.client(), node.name(0)
        node.here.place(name, 1)
        assert await client.call(create(name)) == b"+OK\r\n"
        placement = node.here.engine.placement(key_of(name))
        assert placement is not None
        node.there.engine.bar(key_of(name), placement.version)
        refused = b"-ERR_UNAVAILABLE member 0, which serves this, does not answer; retry\r\n"
        client.send(append(name, b"x") + request(b"DELETE", name, []) + create(name) + create(node.name(0, 1)))
        wanted = [id_reply(MS, 0), b"+OK\r\n", refused, b"+OK\r\n"]
        assert [await client.reply() for _ in wanted] == wanted
        node.here.place(name, 1)
        assert await client.call(create(name)) == b"+OK\r\n"

    played(play)


def test_a_client_cannot_say_where_a_stream_is_placed() -> None:
    async def play(node: Node) -> None:
        client = await node.client()
        client.send(request(b"CREATE", node.name(1), [b"PLACED", b"0/1"]))
        assert (await client.reply()).startswith(b"-ERR_BAD_FORMAT unknown option PLACED")

    played(play)
