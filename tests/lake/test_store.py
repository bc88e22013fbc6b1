"""The contract of an object store, held by every one of them: local directory, memory, a real S3.
It knows nothing of how a store works inside."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.lake.local import LocalStore
from headwater.lake.open_store import open_store
from headwater.lake.s3 import S3Store
from headwater.lake.store import LakeDamaged, MemoryStore, ObjectMissing, ObjectStore, StoreRefused, probe


def test_what_was_put_is_read_back_whole_and_in_part(store: ObjectStore) -> None:
    store.put("data/0/a.parquet", b"0123456789")
    assert store.get("data/0/a.parquet") == b"0123456789"
    assert bytes(store.get_range("data/0/a.parquet", 3, 4)) == b"3456"
    assert bytes(store.get_range("data/0/a.parquet", 0, 10)) == b"0123456789"
    assert store.head("data/0/a.parquet") == 10


def test_an_object_that_is_a_file_of_this_machine_is_that_file(store: ObjectStore) -> None:
    store.put("data/1/a", b"0123456789")
    path = store.local_path("data/1/a")
    assert path is None or Path(path).read_bytes() == b"0123456789"
    assert (path is not None) == isinstance(store, LocalStore)


def test_parts_are_stored_one_after_the_other(store: ObjectStore) -> None:
    store.put("a/parts", [b"one", memoryview(b"xtwox")[1:4], b"", b"three"])
    assert store.get("a/parts") == b"onetwothree"


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.put("a/empty", b"")
    assert store.get("a/empty") == b""
    assert store.head("a/empty") == 0


def test_a_large_object_survives_being_sent_in_parts(store: ObjectStore) -> None:
    piece = bytes(range(256)) * 4096
    store.put("a/large", [piece] * 18)
    assert store.head("a/large") == 18 << 20
    assert store.get("a/large") == piece * 18
    assert bytes(store.get_range("a/large", (9 << 20) - 5, 10)) == (piece * 2)[(1 << 20) - 5 : (1 << 20) + 5]


def test_a_put_replaces_what_was_there(store: ObjectStore) -> None:
    store.put("a/x", b"a longer first version")
    store.put("a/x", b"second")
    assert store.get("a/x") == b"second"


def test_the_tail_comes_with_the_size_of_the_object(store: ObjectStore) -> None:
    store.put("a/x", b"0123456789")
    tail, size = store.get_tail("a/x", 4)
    assert (bytes(tail), size) == (b"6789", 10)
    tail, size = store.get_tail("a/x", 100)
    assert (bytes(tail), size) == (b"0123456789", 10)


def test_a_missing_object_is_named(store: ObjectStore) -> None:
    store.put("a/x", b"1")
    for read in (
        lambda: store.get("a/y"),
        lambda: store.get_range("a/y", 0, 1),
        lambda: store.get_tail("b/y", 1),
    ):
        with pytest.raises(ObjectMissing) as raised:
            read()
        assert raised.value.key.endswith("/y")
    assert store.head("a/y") is None
    assert store.head("nowhere/at/all") is None


@pytest.mark.parametrize(("start", "length"), [(5, 6), (0, 11), (10, 1), (50, 5)])
def test_a_range_beyond_the_end_is_damage_not_a_short_answer(store: ObjectStore, start: int, length: int) -> None:
    store.put("a/x", b"0123456789")
    with pytest.raises(LakeDamaged):
        store.get_range("a/x", start, length)


def test_the_first_conditional_put_wins_and_stays(store: ObjectStore) -> None:
    assert store.put_if_absent("log/1.json", b"first")
    assert not store.put_if_absent("log/1.json", [b"sec", b"ond"])
    assert store.get("log/1.json") == b"first"
    store.delete("log/1.json")
    assert store.put_if_absent("log/1.json", b"third")


def test_of_concurrent_conditional_puts_exactly_one_wins(store: ObjectStore) -> None:
    count = 6
    for round_number in range(3):
        gate = threading.Barrier(count)

        def attempt(number: int, gate: threading.Barrier = gate, key: str = f"race/{round_number}") -> bool:
            gate.wait()
            return store.put_if_absent(key, f"contender {number}".encode())

        with ThreadPoolExecutor(count) as pool:
            won = list(pool.map(attempt, range(count)))
        assert won.count(True) == 1
        assert store.get(f"race/{round_number}") == f"contender {won.index(True)}".encode()


def test_a_deleted_object_is_gone_and_deleting_it_again_is_fine(store: ObjectStore) -> None:
    store.put("a/x", b"1")
    store.delete("a/x")
    store.delete("a/x")
    store.delete("never/was")
    assert store.head("a/x") is None
    assert list(store.list("a")) == []


def test_a_listing_holds_every_object_below_a_folder_and_no_other(store: ObjectStore) -> None:
    sizes = {"data/0/a": 1, "data/0/b": 2, "data/1/c": 3, "data-more/d": 4, "top": 5}
    for key, size in sizes.items():
        store.put(key, b"x" * size)
    assert {found.key: found.size_bytes for found in store.list()} == sizes
    assert {found.key for found in store.list("data")} == {"data/0/a", "data/0/b", "data/1/c"}
    assert {found.key for found in store.list("data/0/")} == {"data/0/a", "data/0/b"}
    assert list(store.list("nothing")) == []
    assert all(found.modified_ms > 1_700_000_000_000 for found in store.list())


@pytest.mark.parametrize("key", ["", "/abs", "a//b", "../x", "a/../b", "a/.", "a/", "a\\b", "a/b#1", "a/\n"])
def test_a_key_that_could_leave_the_store_is_refused_everywhere(store: ObjectStore, key: str) -> None:
    for call in (
        lambda: store.put(key, b"1"),
        lambda: store.put_if_absent(key, b"1"),
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.head(key),
    ):
        with pytest.raises(ValueError, match="not a key"):
            call()
    assert list(store.list()) == []


def test_many_threads_share_one_store(store: ObjectStore) -> None:
    def work(number: int) -> bytes:
        store.put(f"shared/{number}", f"{number}".encode() * 100)
        return store.get(f"shared/{number}")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(24))) == [f"{number}".encode() * 100 for number in range(24)]
    assert len(list(store.list("shared"))) == 24


def test_a_healthy_store_passes_its_probe_and_keeps_nothing_of_it(store: ObjectStore) -> None:
    probe(store, "abc")
    assert list(store.list()) == []


# ---- choosing a store -------------------------------------------------------------------------------------------


def test_a_url_or_a_path_names_the_store(tmp_path: Path) -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
    for name in (str(tmp_path / "a b"), f"file://{tmp_path}/a%20b"):
        local = open_store(name)
        assert isinstance(local, LocalStore)
        assert local.uri == str(tmp_path / "a b")
    remote = open_store("s3://bucket/some/prefix/", endpoint="http://127.0.0.1:1", region="r")
    assert isinstance(remote, S3Store)
    assert remote.uri == "s3://bucket/some/prefix"
    assert remote.storage_options["aws_endpoint"] == "http://127.0.0.1:1"
    assert open_store("s3://bucket").uri == "s3://bucket"


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("ftp://host/x", {}, "names no lake"),
        ("file://otherhost/x", {}, "names no lake"),
        ("s3:///prefix", {}, "names a bucket"),
        ("s3://b", {"access_key_id": "only"}, "together"),
        ("s3://b", {"endpoint": "127.0.0.1:9000"}, "write http"),
        ("memory:", {"region": "eu"}, "s3://"),
    ],
)
def test_a_setting_that_can_never_work_is_refused_with_what_to_change(
    url: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(StoreRefused, match=says):
        open_store(url, **options)  # type: ignore[arg-type]


class Overwriting(MemoryStore):
    """An S3 look-alike that ignores If-None-Match."""

    def put_if_absent(self, key: str, data: object) -> bool:
        self.put(key, data)  # type: ignore[arg-type]
        return True


class Forgetful(MemoryStore):
    def get(self, key: str) -> bytes:
        return super().get(key)[:-1]


@pytest.mark.parametrize(("broken", "says"), [(Overwriting, "If-None-Match"), (Forgetful, "other bytes")])
def test_a_store_that_cannot_hold_a_lake_fails_its_probe(broken: type[MemoryStore], says: str) -> None:
    store = broken()
    with pytest.raises(StoreRefused, match=says):
        probe(store, "abc")
    assert list(store.list()) == []
