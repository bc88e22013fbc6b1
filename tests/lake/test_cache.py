"""Caches: bounded in bytes, one fetch for many readers, and never a wrong byte, whatever lies on the disk.
The clock plays no part: order of use alone decides what goes."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.lake.cache import DiskCache, MemoryCache
from headwater.lake.store import StoreRefused


class Source:
    """Counts what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def load(self, key: object, size: int):
        def load() -> tuple[object, int]:
            self.asked.append(key)
            return f"value of {key}", size

        return load


# ---- memory -----------------------------------------------------------------------------------------------------


def test_a_value_is_loaded_once_and_then_kept() -> None:
    cache, source = MemoryCache(100), Source()
    for _ in range(3):
        assert cache.get("a", source.load("a", 10)) == "value of a"
    assert source.asked == ["a"]
    assert (cache.hits_count, cache.misses_count, cache.bytes) == (2, 1, 10)


def test_the_least_recently_used_goes_first() -> None:
    cache, source = MemoryCache(30), Source()
    for key in "abcad":  # a is used again before d needs room
        cache.get(key, source.load(key, 10))
    source.asked.clear()
    for key in "adcb":
        cache.get(key, source.load(key, 10))
    assert source.asked == ["b"]


def test_a_value_larger_than_the_cache_is_handed_out_and_not_kept() -> None:
    cache, source = MemoryCache(30), Source()
    cache.get("small", source.load("small", 10))
    assert cache.get("large", source.load("large", 31)) == "value of large"
    assert cache.bytes == 10
    cache.get("small", source.load("small", 10))
    assert source.asked == ["small", "large"]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 15)), max_size=60), st.integers(0, 40))
def test_the_bound_holds_and_the_cache_behaves_as_a_list_of_recent_uses(
    uses: list[tuple[int, int]], bytes_max: int
) -> None:
    cache, recent = MemoryCache(bytes_max), []
    sizes: dict[int, int] = {}
    for key, size in uses:
        loaded = []
        cache.get(key, lambda key=key, size=size, loaded=loaded: (loaded.append(key), size))
        assert bool(loaded) == (key not in recent)
        if key in recent:
            recent.remove(key)
        else:
            sizes[key] = size
        if sizes[key] <= bytes_max:
            recent.append(key)
        while sum(sizes[one] for one in recent) > bytes_max:
            recent.pop(0)
        assert cache.bytes == sum(sizes[one] for one in recent) <= bytes_max


def test_readers_who_come_while_it_loads_wait_for_the_one_load() -> None:
    cache, calls = MemoryCache(100), []
    started, may_end = threading.Event(), threading.Event()

    def load() -> tuple[str, int]:
        calls.append(1)
        started.set()
        may_end.wait(60)
        return "value", 10

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(cache.get, "a", load)
        started.wait(60)
        others = [pool.submit(cache.get, "a", load) for _ in range(7)]
        may_end.set()
        assert [future.result(10) for future in (first, *others)] == ["value"] * 8
    assert calls == [1]


def test_a_load_of_one_key_does_not_hold_up_another() -> None:
    cache = MemoryCache(100)
    may_end, started = threading.Event(), threading.Event()

    def slow() -> tuple[str, int]:
        started.set()
        may_end.wait(60)
        return "slow", 1

    thread = threading.Thread(target=cache.get, args=("slow", slow))
    thread.start()
    started.wait(60)
    assert cache.get("quick", lambda: ("quick", 1)) == "quick"
    may_end.set()
    thread.join()


def test_a_failure_reaches_everyone_who_waited_and_is_not_kept() -> None:
    cache = MemoryCache(100)
    started, may_end = threading.Event(), threading.Event()

    def failing() -> tuple[str, int]:
        started.set()
        may_end.wait(60)
        raise OSError("away")

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(cache.get, "a", failing)]
        started.wait(60)
        futures += [pool.submit(cache.get, "a", failing) for _ in range(2)]
        may_end.set()
        for future in futures:
            with pytest.raises(OSError, match="away"):
                future.result(10)
    assert cache.get("a", lambda: ("back", 1)) == "back"
    assert cache.bytes == 1


def test_what_is_forgotten_is_loaded_again() -> None:
    cache, source = MemoryCache(100), Source()
    for key in (("x", 1), ("x", 2), ("y", 1)):
        cache.get(key, source.load(key, 10))
    cache.forget(lambda key: isinstance(key, tuple) and key[0] == "x")
    assert cache.bytes == 10
    cache.get(("y", 1), source.load(("y", 1), 10))
    assert len(source.asked) == 3


# ---- disk -------------------------------------------------------------------------------------------------------


class Remote:
    def __init__(self) -> None:
        self.fetched: list[tuple[str, int, int]] = []

    def fetch(self, key: str, start: int, length: int):
        def fetch() -> bytes:
            self.fetched.append((key, start, length))
            return content(key, start, length)

        return fetch


def content(key: str, start: int, length: int) -> bytes:
    return f"{key}@{start};".encode().ljust(length, b".")[:length]


def ask(cache: DiskCache, remote: Remote, key: str, start: int = 0, length: int = 100) -> bytes:
    return bytes(cache.get(key, start, length, remote.fetch(key, start, length)))


def test_a_range_is_fetched_once_and_outlives_the_process(tmp_path: Path) -> None:
    remote = Remote()
    for _ in range(2):
        cache = DiskCache(tmp_path, 10_000)
        for start, length in ((0, 100), (100, 100), (0, 50)):
            assert ask(cache, remote, "a", start, length) == content("a", start, length)
            assert ask(cache, remote, "a", start, length) == content("a", start, length)
    assert len(remote.fetched) == 3


def test_the_disk_is_bounded_and_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache, remote = DiskCache(tmp_path, 350), Remote()
    for key in "abcad":
        ask(cache, remote, key)
    assert cache.bytes <= 350
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == cache.bytes
    remote.fetched.clear()
    for key in "adc":
        ask(cache, remote, key)
    assert remote.fetched == []
    ask(cache, remote, "b")
    assert remote.fetched == [("b", 0, 100)]


def test_a_smaller_bound_at_the_next_start_is_kept_from_the_start(tmp_path: Path) -> None:
    remote = Remote()
    cache = DiskCache(tmp_path, 10_000)
    seen: set[Path] = set()
    for number, key in enumerate("abcdef"):
        ask(cache, remote, key)
        (new,) = set(tmp_path.iterdir()) - seen
        os.utime(new, ns=(number, number))  # in this order, whatever the resolution of the file system's clock
        seen.add(new)
    cache = DiskCache(tmp_path, 250)
    assert cache.bytes <= 250
    remote.fetched.clear()
    ask(cache, remote, "f")
    assert remote.fetched == []


@pytest.mark.parametrize("damage", [b"", b"x", bytes(108), b"y" * 108, b"z" * 500])
def test_a_damaged_file_is_fetched_again(tmp_path: Path, damage: bytes) -> None:
    cache, remote = DiskCache(tmp_path, 10_000), Remote()
    ask(cache, remote, "a")
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    assert ask(cache, remote, "a") == content("a", 0, 100)
    assert len(remote.fetched) == 2
    assert ask(DiskCache(tmp_path, 10_000), remote, "a") == content("a", 0, 100)
    assert len(remote.fetched) == 2


def test_files_that_vanish_and_a_directory_that_vanishes_cost_a_fetch_and_no_read(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache, remote = DiskCache(folder, 10_000), Remote()
    ask(cache, remote, "a")
    for path in folder.iterdir():
        path.unlink()
    assert ask(cache, remote, "a") == content("a", 0, 100)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert ask(cache, remote, "a") == content("a", 0, 100)
    assert ask(cache, remote, "b") == content("b", 0, 100)
    assert len(remote.fetched) == 4


def test_what_a_crash_left_half_written_is_swept_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "0123.tmp").write_bytes(b"half")
    DiskCache(tmp_path, 10_000)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreRefused, match="name another directory"):
        DiskCache(tmp_path / "file" / "cache", 100)


def test_a_range_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache, remote = DiskCache(tmp_path, 100), Remote()
    for _ in range(2):
        assert ask(cache, remote, "a", 0, 100) == content("a", 0, 100)
    assert len(remote.fetched) == 2
    assert cache.bytes == 0


def test_many_threads_share_one_disk_cache(tmp_path: Path) -> None:
    cache, remote = DiskCache(tmp_path, 1_000), Remote()
    with ThreadPoolExecutor(8) as pool:
        keys = [f"k{number % 13}" for number in range(200)]
        assert list(pool.map(lambda key: ask(cache, remote, key), keys)) == [content(key, 0, 100) for key in keys]
    assert cache.bytes <= 1_000
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == cache.bytes


def test_all_parts_of_a_file_that_is_gone_are_dropped_and_no_others(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    for key in ("data/a", "data/b"):
        for start in (0, 10, 20):
            cache.get(key, start, 3, lambda: b"abc")
    cache.forget([])
    assert len(list(tmp_path.iterdir())) == 6
    again = DiskCache(tmp_path, 1 << 20)  # what an earlier process kept is known by its file too
    again.forget(["data/a", "data/c"])
    assert len(list(tmp_path.iterdir())) == 3 and again.bytes == 3 * 11
    assert again.get("data/b", 10, 3, lambda: b"xyz") == b"abc"
    assert again.get("data/a", 10, 3, lambda: b"xyz") == b"xyz"


def test_what_an_older_version_kept_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / ("0" * 32)).write_bytes(b"nobody knows of which file this is")
    assert DiskCache(tmp_path, 1 << 20).bytes == 0
    assert list(tmp_path.iterdir()) == []
