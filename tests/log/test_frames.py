"""Frames: what is written is read back, and no single changed bit, byte or position goes unnoticed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from headwater.log import frames
from headwater.log.frames import CHECKSUM, HEADER, OVERHEAD

positions = st.integers(0, (1 << 63) - 1)


def frame(position: int, body: bytes, kind: int = frames.KIND_COLD, flags: int = 0) -> bytes:
    """A frame, written down from the layout in the module's header."""
    head = HEADER.pack(OVERHEAD + len(body), kind, flags, 0, position) + body
    return head + CHECKSUM.pack(xxh3_64_intdigest(head))


def read(data: bytes, base: int, at: int = 0) -> frames.Frame | None:
    return frames.read_one(memoryview(data), at, base)


@given(positions, st.binary(max_size=200), st.integers(0, 255), st.integers(0, 255))
def test_a_frame_says_its_place_its_kind_and_its_body(position: int, body: bytes, kind: int, flags: int) -> None:
    data = frame(position, body, kind, flags)
    found = read(data, position)
    assert found == (position, position + len(data), kind, flags, memoryview(body))


@settings(max_examples=30)
@given(positions, st.binary(max_size=40))
def test_every_flipped_bit_of_a_frame_is_noticed(position: int, body: bytes) -> None:
    data = frame(position, body)
    # Zeros behind it, as in a preallocated file: a length that grew finds bytes to point at.
    padded = bytearray(data + bytes(64))
    for bit in range(len(data) * 8):
        padded[bit // 8] ^= 1 << bit % 8
        assert read(bytes(padded), position) is None, f"bit {bit}"
        padded[bit // 8] ^= 1 << bit % 8
    assert read(bytes(padded), position) is not None


@given(st.binary(max_size=40), positions, st.integers(1, 1000))
def test_a_frame_in_another_place_than_its_own_is_no_frame(body: bytes, position: int, away: int) -> None:
    assert read(frame(position, body), position + away) is None


@given(st.binary(max_size=40))
def test_a_frame_that_is_cut_short_is_no_frame(body: bytes) -> None:
    data = frame(0, body)
    assert all(read(data[:size], 0) is None for size in range(len(data)))


@given(st.lists(st.binary(max_size=30), max_size=6), positions, st.binary(max_size=40))
def test_a_scan_yields_frames_up_to_the_first_place_where_there_is_none(
    bodies: list[bytes], base: int, rest: bytes
) -> None:
    data = b""
    for body in bodies:
        data += frame(base + len(data), body)
    found = list(frames.scan(memoryview(data + rest), base))
    assert [bytes(one.body) for one in found] == bodies
    assert [one.end for one in found][-1:] == [base + len(data)][: len(bodies)]


@given(st.binary(max_size=300), positions)
def test_any_bytes_can_be_scanned(data: bytes, base: int) -> None:
    for found in frames.scan(memoryview(data), base):
        assert base <= found.position < found.end <= base + len(data)


@given(positions, positions)
def test_a_mark_says_what_was_synced(position: int, synced: int) -> None:
    data = frames.mark(position, synced)
    found = read(data, position)
    assert len(data) == frames.MARK_SIZE
    assert found is not None and found.kind == frames.KIND_MARK
    assert frames.synced_by(found) == synced


def test_an_end_is_a_frame_without_a_body() -> None:
    data = frames.end(500)
    found = read(data, 500)
    assert len(data) == frames.END_SIZE
    assert found is not None and found.kind == frames.KIND_END and not found.body


def test_only_a_later_mark_of_a_later_sync_vouches_for_a_broken_place() -> None:
    base = 10_000
    broken = base + 40
    for synced, vouches in ((broken - 1, False), (broken, False), (broken + 1, True)):
        data = bytes(77)
        data += frames.mark(base + len(data), synced)
        found = frames.vouched_beyond(memoryview(data), base, broken)
        assert found == (base + 77 if vouches else None)


def test_a_mark_in_front_of_the_broken_place_says_nothing_about_it() -> None:
    data = frames.mark(0, 1_000) + bytes(50)
    assert frames.vouched_beyond(memoryview(data), 0, frames.MARK_SIZE) is None


def test_bytes_that_only_look_like_a_mark_vouch_for_nothing() -> None:
    false = bytearray(frames.mark(64, 1_000))
    false[-1] ^= 1
    data = bytes(64) + bytes(false)
    assert frames.vouched_beyond(memoryview(data), 0, 0) is None
    true = frames.mark(len(data), 1_000)
    assert frames.vouched_beyond(memoryview(data + true), 0, 0) == len(data)
