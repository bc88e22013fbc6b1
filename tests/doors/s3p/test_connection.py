"""One S3P connection on a hand-made transport and log: order of replies, waits, blocked reads, back-pressure, time.
Nothing here opens a socket; what the commands mean is in `test_spec_server`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.config import Settings
from headwater.doors.s3p import connection as connections
from headwater.doors.s3p.exclusive import SLICE_BYTES, parts
from headwater.doors.s3p.outcomes import replied
from headwater.doors.s3p.replies import records
from headwater.engine.reads_by_id import Record
from headwater.model.commands import Create, Durability
from headwater.model.events import Appended
from tests.doors.s3p import id_reply, request
from tests.doors.s3p.client import append_request as append
from tests.doors.s3p.client import read_request
from tests.doors.s3p.hand import Door, played

MIB = 1 << 20


# ---- the order of replies ---------------------------------------------------------------------------------


def test_no_append_is_answered_before_it_is_durable() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        peer = door.peer()
        peer.send(append(b"s", b"a") + append(b"s", b"b"))
        await door.settle()
        assert peer.taken() == b""
        await door.synced()
        assert peer.taken() == id_reply(1_000_000, 0) + id_reply(1_000_000, 1)

    played(play)


def test_a_reply_that_is_ready_early_waits_for_those_in_front_of_it() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/slow")
        door.submit(Create("_default/quick", None, [], durability=Durability.MEMORY), "_default/quick")
        door.sync()
        peer = door.peer()
        peer.send(append(b"slow", b"a") + append(b"quick", b"b") + append(b"slow", b"c") + append(b"nowhere", b"d"))
        await door.settle()
        assert peer.taken() == b""
        await door.synced()
        unknown = b"-ERR_UNKNOWN_STREAM stream nowhere does not exist\r\n"
        ids = [id_reply(1_000_000, n) for n in (0, 0, 1)]
        assert peer.taken() == b"".join([*ids, unknown])

    played(play)


def test_a_pipelined_read_sees_the_append_before_it_and_not_the_one_behind_it() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        peer = door.peer()
        peer.send(append(b"s", b"a") + read_request(b"s") + append(b"s", b"b"))
        await door.synced()
        assert peer.taken() == id_reply(1_000_000, 0) + records([(1_000_000, 0, b"a")])
        await door.synced()
        assert peer.taken() == id_reply(1_000_000, 1)

    played(play)


def test_pipelined_appends_to_one_stream_are_logged_as_one_and_answered_one_by_one() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        peer = door.peer()
        logged_count = len(door.log.events)
        peer.send(append(b"s", b"a") + append(b"s", b"b", b"c", b"d") + append(b"s", b"e") * 9)
        await door.synced()
        assert len(door.log.events) == logged_count + 1
        assert peer.taken() == b"".join(id_reply(1_000_000, n) for n in (0, 3, *range(4, 13)))
        assert door.read("_default/s") == b"abcd" + b"e" * 9

    played(play)


def test_appends_that_differ_in_stream_or_timestamp_are_not_joined() -> None:
    async def play() -> None:
        door = Door()
        for key in ("_default/s", "_default/t"):
            door.create(key)
        peer = door.peer()
        logged_count = len(door.log.events)
        dated = request(b"APPEND", b"s", [b"ID", b"2000000"], [b"x"])
        peer.send(append(b"s", b"a") + append(b"t", b"b") + append(b"s", b"c") + dated * 2 + append(b"s", b"d"))
        await door.synced()
        assert len(door.log.events) == logged_count + 5
        ids = [(1_000_000, 0), (1_000_000, 0), (1_000_000, 1), (2_000_000, 0), (2_000_000, 1), (2_000_000, 2)]
        assert peer.taken() == b"".join(id_reply(*one) for one in ids)

    played(play)


def test_joined_appends_stay_within_the_limits_of_one() -> None:
    async def play() -> None:
        door = Door(Settings(s3p_append_bytes_max=10, s3p_records_max=4))
        door.create("_default/s")
        peer = door.peer()
        logged_count = len(door.log.events)
        peer.send(append(b"s", b"12345") * 4 + append(b"s", b"1") * 8)
        await door.synced()
        assert [len(event.records) for _, event in door.log.events[logged_count:]] == [2, 2, 4, 4]
        assert peer.taken() == b"".join(id_reply(1_000_000, n) for n in range(12))

    played(play)


def test_a_run_that_is_refused_is_refused_command_by_command() -> None:
    async def play() -> None:
        door = Door()
        peer = door.peer()
        peer.send(append(b"nowhere", b"a") * 3)
        await door.synced()
        assert peer.taken() == b"-ERR_UNKNOWN_STREAM stream nowhere does not exist\r\n" * 3

    played(play)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2_000), st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_the_replies_of_a_run_are_those_of_its_commands(ms: int, n: int, counts: list[int]) -> None:
    event = Appended(1, 0, 9, 0, ms, n, [b"r"] * sum(counts), False, None, None)
    lasts = [n + sum(counts[: index + 1]) - 1 for index in range(len(counts))]
    assert replied(b"s", event, counts) == b"".join(id_reply(ms, last) for last in lasts)


def test_one_connection_does_not_take_all_turns() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        door.create("_default/t")
        busy, other = door.peer(), door.peer()
        count = 3 * connections.COMMANDS_PER_TURN_MAX
        busy.send(append(b"s", b"a") * count)
        other.send(append(b"t", b"b"))
        door.sync()
        await asyncio.sleep(0)
        assert other.taken() == id_reply(1_000_000, 0)
        for _ in range(8):
            await door.synced()
        assert busy.taken() == b"".join(id_reply(1_000_000, n) for n in range(count))

    played(play)


# ---- what waits for what is not durable yet ---------------------------------------------------------------


def test_a_read_of_a_stream_under_creation_waits_for_it() -> None:
    async def play() -> None:
        door = Door()
        writer, reader = door.peer(), door.peer()
        writer.send(request(b"CREATE", b"s", []))
        reader.send(read_request(b"s"))
        await door.settle()
        assert reader.taken() == b""
        await door.synced()
        assert (writer.taken(), reader.taken()) == (b"+OK\r\n", b"*0\r\n")

    played(play)


def test_a_read_of_a_stream_under_deletion_waits_for_it() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        writer, reader = door.peer(), door.peer()
        writer.send(request(b"DELETE", b"s", []))
        reader.send(read_request(b"s", block=1_000))
        await door.settle()
        assert reader.taken() == b""
        await door.synced()
        assert reader.taken() == b"-ERR_UNKNOWN_STREAM stream s does not exist\r\n"

    played(play)


def test_a_failed_log_is_unavailable_to_writers_and_readable_to_readers() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        peer = door.peer()
        peer.send(append(b"s", b"kept"))
        await door.synced()
        peer.taken()
        peer.send(append(b"s", b"lost") + request(b"CREATE", b"t", []) + read_request(b"s") + read_request(b"t"))
        door.fail("the disk is on fire")
        await door.settle()
        lines = peer.taken().split(b"\r\n")
        assert [line[:16] for line in lines[:2]] == [b"-ERR_UNAVAILABLE"] * 2
        assert lines[2:7] == [b"*2", b"$9", b"1000000-0", b"$4", b"kept"]
        assert lines[7].startswith(b"-ERR_UNAVAILABLE")
        assert not peer.transport.closed

    played(play)


# ---- blocked reads ----------------------------------------------------------------------------------------


def test_a_blocked_read_wakes_when_a_record_is_durable_not_when_it_is_written() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        reader = door.peer()
        reader.send(read_request(b"s", block=60_000))
        door.post(b"x", "_default/s")
        await door.settle()
        assert reader.taken() == b"" and door.server.blocked_count == 1
        await door.synced()
        assert reader.taken() == records([(1_000_000, 0, b"x")])
        assert door.server.blocked_count == 0
        assert not door.group.find("_default/s", touch=False).followers

    played(play)


def test_blocked_reads_that_ask_for_the_same_share_their_reply() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        readers = [door.peer() for _ in range(3)]
        asked = [read_request(b"s", block=60_000, min_id="0-0")] * 2 + [read_request(b"s", block=60_000, count=1)]
        for reader, data in zip(readers, asked, strict=True):
            reader.send(data)
        door.submit(Create("_default/other", None, []), "_default/other")
        for payload in (b"x", b"y"):
            door.post(payload, "_default/s")
        await door.synced()
        both = records([(1_000_000, 0, b"x"), (1_000_000, 1, b"y")])
        assert [reader.taken() for reader in readers] == [both, both, records([(1_000_000, 0, b"x")])]

    played(play)


def test_a_client_that_leaves_takes_its_blocked_read_with_it() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        reader = door.peer()
        reader.send(read_request(b"s", block=60_000) + append(b"s", b"never"))
        reader.connection.connection_lost(None)
        assert door.server.blocked_count == 0
        assert not door.group.find("_default/s", touch=False).followers
        await door.synced()
        assert door.read("_default/s") == b""
        assert not door.server.connections

    played(play)


def test_blocked_reads_end_with_the_input_and_what_is_behind_them_is_done() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        peer = door.peer()
        blocked = read_request(b"s", block=60_000)
        peer.send(blocked + append(b"s", b"x") + read_request(b"s", block=60_000, min_id="9000000-0") + blocked)
        assert peer.connection.eof_received()
        await door.settle()
        assert door.server.blocked_count == 0 and not door.group.find("_default/s", touch=False).followers
        assert peer.taken() == records([])
        await door.synced()
        assert peer.taken() == id_reply(1_000_000, 0) + records([]) + records([(1_000_000, 0, b"x")])
        assert peer.transport.closed

    played(play)


def test_a_read_that_is_being_looked_for_is_still_answered_after_the_end_of_input() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        asked: list[Callable[[list[Record]], None]] = []
        door.server.engine.read_by_id = lambda *given: asked.append(given[5])  # type: ignore[method-assign]
        peer = door.peer()
        peer.send(read_request(b"s", block=60_000))
        assert peer.connection.eof_received() and door.server.blocked_count == 0
        await door.settle()
        assert peer.taken() == b"" and not peer.transport.closed
        asked[0]([(1, 0, b"from the lake")])
        await door.settle()
        assert peer.taken() == records([(1, 0, b"from the lake")]) and peer.transport.closed

    played(play)


# ---- refusals -------------------------------------------------------------------------------------------------


def test_a_refused_client_that_sends_on_is_read_for_a_while_so_that_it_sees_why() -> None:
    async def play() -> None:
        door = Door()
        for step_s, longest_s in ((connections.LINGER_S / 2, connections.LINGER_S_MAX), (0.0, connections.LINGER_S)):
            peer = door.peer()
            peer.send(b"nonsense\r\n")
            assert peer.taken().startswith(b"-ERR_BAD_FORMAT") and peer.transport.eof and peer.transport.reading
            begin_s = now_s = door.server.now_s
            while not peer.transport.aborted:
                now_s += step_s or 0.5
                if step_s:
                    peer.send(b"more")
                peer.connection.tick(now_s)
            assert longest_s - 1 <= now_s - begin_s <= longest_s + 2

    played(play)


# ---- back-pressure ----------------------------------------------------------------------------------------


def test_a_client_that_pipelines_without_end_is_not_read_until_it_is_answered() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        peer = door.peer()
        count = connections.PIPELINE_MAX + 1
        peer.send(append(b"s", b"a") * count)
        await door.settle()
        assert not peer.transport.reading
        for _ in range(4):
            await door.synced()
        assert peer.transport.reading
        assert peer.taken().count(b"$") == count

    played(play)


def test_a_client_behind_a_blocked_read_may_send_only_so_much() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        peer = door.peer()
        peer.send(read_request(b"s", block=60_000))
        large = append(b"t", b"x" * MIB)
        sent = 0
        while peer.transport.reading and sent < 100:
            peer.send(large)
            sent += 1
        assert sent * MIB <= connections.IN_FLIGHT_BYTES_MAX + 2 * MIB
        door.post(b"go", "_default/s")
        await door.synced()
        await door.synced()
        assert peer.transport.reading
        assert peer.taken().count(b"-ERR_UNKNOWN_STREAM") == sent

    played(play)


def test_nothing_starts_while_the_client_does_not_take_its_replies() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        peer = door.peer()
        peer.connection.pause_writing()
        assert not peer.transport.reading
        peer.connection.data_received(append(b"s", b"a"))
        await door.synced()
        assert door.read("_default/s") == b""
        peer.connection.resume_writing()
        await door.settle()
        await door.synced()
        assert peer.taken() == id_reply(1_000_000, 0)
        assert peer.transport.reading

    played(play)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 3 * SLICE_BYTES), max_size=6))
def test_a_reply_in_parts_is_the_reply(sizes: list[int]) -> None:
    found = [(index, 0, bytes([index]) * size) for index, size in enumerate(sizes)]
    pieces = list(parts(found))
    assert b"".join(pieces) == records(found)
    assert all(len(piece) < 4 * SLICE_BYTES for piece in pieces)


# ---- time and the end --------------------------------------------------------------------------------


def test_an_unfinished_command_may_take_time_for_its_size() -> None:
    async def play() -> None:
        door = Door(Settings(s3p_idle_timeout_ms=1_000))
        patient, dripping = door.peer(), door.peer()
        head = b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*0\r\n*1\r\n$10000000\r\n"
        for peer, size in ((patient, 64 * 1024), (dripping, 1)):
            peer.send(head)
            peer.connection.tick(0.0)
            for second in range(1, 5):
                peer.send(b"x" * size)
                peer.connection.tick(second - 0.1)
        assert dripping.transport.closed
        assert not patient.transport.closed

    played(play)


def test_a_reader_that_never_takes_its_reply_is_cut_after_the_idle_time() -> None:
    async def play() -> None:
        door = Door(Settings(s3p_idle_timeout_ms=1_000))
        door.create("_default/s")
        door.post(b"x" * 4 * SLICE_BYTES, "_default/s")
        door.sync()
        peer = door.peer()
        peer.connection.pause_writing()
        peer.connection.data_received(read_request(b"s"))
        for now_s in (0.0, 0.9):
            peer.connection.tick(now_s)
        assert not peer.transport.aborted
        peer.connection.tick(1.1)
        assert peer.transport.aborted

    played(play)


def test_an_append_under_way_at_shutdown_gets_its_true_answer() -> None:
    async def play() -> None:
        door = Door()
        door.create("_default/s")
        peer = door.peer()
        peer.send(append(b"s", b"a"))
        closing = asyncio.ensure_future(door.server.close(grace_s=5))
        await door.settle()
        assert peer.taken() == b""
        await door.synced()
        assert peer.taken() == id_reply(1_000_000, 0)
        assert peer.transport.closed
        peer.connection.connection_lost(None)
        await closing

    played(play)
