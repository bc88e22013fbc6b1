"""A row group that is decoded in pieces, because somebody appends, is the same as one decoded at once.
When that is so is judged by a clock and a log that are moved by hand."""

from __future__ import annotations

import random

import pytest

from headwater.lake import reader as module
from headwater.lake.append_pressure import LASTING_S, AppendPressure
from headwater.lake.cache import MemoryCache
from headwater.lake.reader import Reader
from headwater.lake.store import LakeDamaged, ObjectStore
from headwater.lake.writer import Built, build
from headwater.model.extents import Run
from tests.lake.rows import run


class Moved:
    tail = 7
    now_s = 100.0


def test_courtesy_is_due_while_the_log_grows_and_a_little_longer() -> None:
    moved = Moved()
    append_pressure = AppendPressure(lambda: moved.tail, lambda: moved.now_s)
    assert not append_pressure.is_due(), "what the log held at the start is nobody's append"
    moved.tail += 1
    assert append_pressure.is_due()
    moved.now_s += LASTING_S * 0.9
    assert append_pressure.is_due()
    moved.now_s += LASTING_S * 0.2
    assert not append_pressure.is_due()
    moved.tail += 1
    assert append_pressure.is_due()


@pytest.fixture
def breaths(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    taken: list[None] = []
    monkeypatch.setattr(module, "breathe", lambda: taken.append(None))  # the reader's alone: the writer breathes too
    return taken


def _runs(sizes: list[int]) -> list[Run]:
    chance = random.Random(3)
    return [run("b/a", 4, [chance.randbytes(size) for size in sizes]), run("b/b", 5, [b"x", b"", b"yz"])]


SHAPES = {
    "small": [700] * 4_000,
    "large": [900_000, 1, 800_000, 0, 700_000],
    "one": [2_900_000],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("commas", [False, True])
def test_pieces_are_the_whole(either_store: ObjectStore, breaths: list[None], shape: str, commas: bool) -> None:
    runs = _runs(SHAPES[shape])
    built = build(runs, 0, "t")
    either_store.put(built.file.path, built.data)
    gentle = Reader(either_store, MemoryCache(0), append_pressure=lambda: True)
    for one, extent in zip(_by_extent(built, runs), built.extents, strict=True):
        found = gentle.stretch(extent, extent.start, extent.end, commas)
        assert found is not None and bytes(found.data) == (b"," if commas else b"").join(one)
        assert gentle.records(extent, extent.start, extent.end).payloads == one
    assert breaths or shape == "one", "a row group of this size is cut"


def _by_extent(built: Built, runs: list[Run]) -> list[list[bytes]]:
    payloads = {one.sid: one.payloads for one in runs}
    return [payloads[e.sid][e.seq_start : e.seq_start + e.row_count] for e in built.extents]


def test_a_small_row_group_is_read_at_once(either_store: ObjectStore, breaths: list[None]) -> None:
    built = build(_runs([1_000] * 500), 0, "t")
    either_store.put(built.file.path, built.data)
    extent = built.extents[0]
    Reader(either_store, MemoryCache(0), append_pressure=lambda: True).records(extent, extent.start, extent.end)
    assert not breaths


def test_a_flipped_bit_in_any_piece_is_noticed(either_store: ObjectStore, breaths: list[None]) -> None:
    runs = _runs(SHAPES["small"])
    built = build(runs, 0, "t")
    content = b"".join(built.data)
    extent = built.extents[0]
    noticed = 0
    places = range(len(content) // 20, len(content), len(content) // 10)
    for at in places:
        either_store.put(built.file.path, content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        try:
            gentle = Reader(either_store, MemoryCache(0), append_pressure=lambda: True)
            payloads = gentle.records(extent, extent.start, extent.end).payloads
            assert payloads == runs[0].payloads[: extent.row_count]
        except LakeDamaged:
            noticed += 1
    assert noticed >= len(places) - 2, "nearly all of the file is payload of the first stream"
    assert breaths
