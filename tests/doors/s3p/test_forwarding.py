"""Commands as they are sent on, and where replies end, in any cutting of their bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.doors.s3p.commands import Append, Create, Delete, Limits, Placed, Read, Trim
from headwater.doors.s3p.forwarding import COPIED_BYTES_MAX, ReplyFraming, encode
from headwater.doors.s3p.replies import Failure
from headwater.doors.s3p.wire import Parser
from headwater.engine.placements import Placement
from tests.doors.s3p import request

LIMITS = Limits(1024, 10, 10_000, 60_000, 1_000, 1 << 20, 1 << 22)
UINT64 = st.integers(0, (1 << 64) - 1)
NAMES = st.binary(min_size=1, max_size=40)
COMMANDS = st.one_of(
    st.builds(Create, NAMES),
    st.builds(Delete, NAMES),
    st.builds(Append, NAMES, st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=5), st.none() | UINT64),
    st.builds(Read, NAMES, st.integers(1, 10_000), st.integers(0, 60_000), UINT64, UINT64),
    st.builds(Trim, NAMES, UINT64, UINT64),
)
REPLIES = [
    b"+OK\r\n",
    b"-ERR_CONFLICT no\r\n",
    b"$5\r\nhe\r\nl\r\n",
    b"*0\r\n",
    b"*4\r\n$3\r\n1-0\r\n$2\r\n\r\n\r\n$3\r\n1-1\r\n$1\r\n*\r\n",
]


@given(st.lists(COMMANDS, min_size=1, max_size=5))
def test_a_command_that_is_sent_on_is_understood_as_the_same_command(commands) -> None:
    pieces = [piece for command in commands for piece in encode(command)]
    assert Parser(LIMITS).feed(b"".join(pieces)) == commands


@given(COMMANDS, st.integers(0, 10**9 - 1), st.integers(0, 10**18))
def test_a_placement_is_sent_with_its_command_and_understood_between_members_alone(command, group, version) -> None:
    data = b"".join(encode(command, Placement(group, version)))
    follower = Create(b"next")
    behind = data + b"".join(encode(follower))
    assert Parser(LIMITS, from_member=True).feed(behind) == [Placed(command, group, version), follower]
    [refused] = Parser(LIMITS).feed(behind)
    assert isinstance(refused, Failure) and "PLACED" in refused.message


def test_a_placement_that_is_none_is_refused() -> None:
    [refused] = Parser(LIMITS, from_member=True).feed(request(b"CREATE", b"s", [b"PLACED", b"1-2"]))
    assert isinstance(refused, Failure)


def test_a_long_record_is_sent_on_without_a_copy() -> None:
    long, short = bytes(COPIED_BYTES_MAX + 1), b"short"
    for records in ([long], [short, long, short]):
        pieces = encode(Append(b"s", records, None))
        assert any(piece is long for piece in pieces)
        assert Parser(LIMITS).feed(b"".join(pieces)) == [Append(b"s", records, None)]


@given(st.lists(st.sampled_from(REPLIES), min_size=1, max_size=6), st.lists(st.integers(0, 1_000), max_size=40))
def test_replies_end_in_the_same_places_however_their_bytes_are_cut(replies, cuts) -> None:
    stream = b"".join(replies)
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    found, current, framing = [], b"", ReplyFraming()
    for low, high in pairwise(edges):
        data, at = stream[low:high], 0
        while at < len(data):
            end = framing.take(data, at)
            current += data[at:end]
            at = end
            if framing.complete:
                found.append(current)
                current = b""
    assert found == replies


@pytest.mark.parametrize("data", [b":1\r\n", b"x" * 2_000, b"$x\r\n"])
def test_what_is_no_reply_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        ReplyFraming().take(data)
