"""Where responses end, in any cutting of their bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cluster.framing import BadAnswer, ResponseFraming

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
RESPONSES = [
    (b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: 5\r\n\r\n", False),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", False),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", False),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", True),
    (CHUNKED + b"5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n", False),
    (CHUNKED + b"0\r\n\r\n", False),
    (CHUNKED + b"2\r\n\r\n\r\n0\r\nTrailer: x\r\n\r\n", False),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", False),
]


def framed(stream: bytes, cuts: list[int], head_only: list[bool]) -> list[bytes]:
    """The responses of a stream of bytes that arrives in pieces."""
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    out: list[bytes] = []
    current = b""
    framing = ResponseFraming(head_only[0])
    for low, high in pairwise(edges):
        data = stream[low:high]
        while data:
            took = framing.take(data)
            current += data[:took]
            data = data[took:]
            if framing.complete:
                out.append(current)
                current = b""
                framing = ResponseFraming(head_only[min(len(out), len(head_only) - 1)])
    assert not current
    return out


@given(st.lists(st.sampled_from(RESPONSES), min_size=1, max_size=6), st.lists(st.integers(0, 10_000), max_size=40))
def test_responses_end_in_the_same_places_however_their_bytes_are_cut(parts, cuts) -> None:
    stream = b"".join(part for part, _ in parts)
    assert framed(stream, cuts, [head_only for _, head_only in parts]) == [part for part, _ in parts]


def test_a_response_without_a_length_ends_with_its_connection() -> None:
    framing = ResponseFraming(False)
    data = b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nsome"
    assert framing.take(data) == len(data)
    assert not framing.complete and framing.size is None
    assert framing.end() and framing.complete


def test_a_cut_response_is_not_complete_at_the_end_of_its_connection() -> None:
    framing = ResponseFraming(False)
    framing.take(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel")
    assert not framing.end()


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        CHUNKED + b"zz\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_response_is_refused(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        ResponseFraming(False).take(data)
