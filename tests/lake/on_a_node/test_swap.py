"""Files of the lake are swapped for others with the same live rows: readers and writers notice nothing, wrong swaps
change nothing, and the same swap again is no second one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from headwater.lake.local import LocalStore
from headwater.lake.table import LakeTable
from tests.lake.on_a_node.surface import (
    QUIET,
    append,
    assert_table_is_http,
    content,
    create,
    flush,
    path_of,
    table_rows,
)
from tests.lake.on_a_node.swaps import (
    assert_verified,
    extents,
    listing,
    live_rows,
    merged,
    paths,
    rows_of,
    swap,
    swapped,
    write,
)
from tests.support.http import read_bytes
from tests.support.node import Node

KEYS = ("swap/a", "swap/b", "swap/c")
_numbers = count()


def fill(node: Node, rounds: int = 3, keys: tuple[str, ...] = KEYS) -> None:
    """A file for each round, with records of all streams."""
    for _ in range(rounds):
        with node.connect() as connection:
            for key in keys:
                for _ in range(3):
                    append(connection, key, f"{key} {next(_numbers)}\n".encode())
        flush(node)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=QUIET) as node:
        with node.connect() as connection:
            for key in KEYS:
                create(connection, key)
        fill(node)
        yield node
        assert "Traceback" not in node.stderr(), node.output()


@pytest.fixture
def place(node: Node) -> Path:
    return node.data_directory / "lake"


def contents(node: Node) -> list[bytes]:
    return [content(node, key) for key in KEYS]


def test_the_listing_tells_of_every_file_with_settled_records_and_how_far_they_reach(node: Node, place: Path) -> None:
    found = listing(node)
    assert (found["group"], Path(found["lake"]["url"])) == (0, place)
    assert [file["rows"] for file in found["files"]] == [9] * 3 == [file["live_rows"] for file in found["files"]]
    for file in found["files"]:
        positions = pc.min_max(rows_of(place, [file["path"]])["position"]).as_py()
        assert (file["position_min"], file["position_max"]) == (positions["min"], positions["max"])
        assert file["bytes"] == (place / file["path"]).stat().st_size
        assert file["position_max"] <= found["lake_position"]
    with node.connect() as connection:
        connection.request("DELETE", path_of("swap/c"))
    assert [file["live_rows"] for file in listing(node)["files"]] == [6] * 3


def test_a_file_that_another_took_out_of_the_table_is_put_back(node: Node, place: Path) -> None:
    before = listing(node)["files"]
    LakeTable(LocalStore(place)).commit([], [before[0]["path"]], 1)
    answer = node.request("GET", "/__headwater/groups/0/lake/files")
    assert answer.status == 503 and before[0]["path"] in answer.json()["error"]["message"], answer
    assert [file["path"] for file in listing(node)["files"]] == [file["path"] for file in before]
    assert_table_is_http(node, KEYS, place)


def test_extents_name_the_live_rows_and_nothing_else(node: Node, place: Path) -> None:
    with node.connect() as connection:
        connection.request("DELETE", path_of("swap/b"))
    listing(node)  # takes a checkpoint
    found = extents(node, paths(node))
    assert found == sorted(found, key=lambda one: (one["file"], one["row_group"], one["row_start"]))
    rows = live_rows(node, place, paths(node))
    assert pc.unique(rows["stream"]).to_pylist() == ["a", "c"] and len(rows) == 18
    assert extents(node, ["data/0/unknown.parquet"]) == [] == extents(node, [])


def test_streams_come_in_pages_by_incarnation(node: Node) -> None:
    listing(node)  # takes a checkpoint
    found, after, pages = [], "-1", 0
    while True:
        answer = node.request("GET", f"/__headwater/groups/0/lake/streams?after={after}&limit=2")
        assert answer.status == 200, answer
        found += pa.ipc.open_stream(answer.body).read_all().to_pylist()
        pages += 1
        following = answer.header("headwater-next")
        if following is None:
            break
        after = following
    assert pages == 2
    assert [f"{row['bucket']}/{row['stream']}" for row in found] == list(KEYS)
    assert [row["incarnation"] for row in found] == sorted(row["incarnation"] for row in found)
    for row, body in zip(found, contents(node), strict=True):
        assert row["tail"] == row["cold_end"] == len(body) and (row["count"], row["first_seq"]) == (9, 0)


SENSELESS: list[tuple[tuple, int]] = [
    (("GET", "/__headwater/groups/0/lake/streams?after=x"), 400),
    (("GET", "/__headwater/groups/0/lake/streams?limit=0"), 400),
    (("GET", "/__headwater/groups/0/lake/extents"), 405),
    (("POST", "/__headwater/groups/0/lake/files"), 405),
    (("GET", "/__headwater/groups/0/lake/files/more"), 404),
    (("POST", "/__headwater/groups/0/lake/extents", {}, b"{}"), 400),
    (("POST", "/__headwater/groups/0/lake/extents", {}, b'{"files": ["' + b'","'.join([b"x"] * 1_001) + b'"]}'), 400),
    (("POST", "/__headwater/groups/0/lake/swap", {}, b'{"remove": [], "add": []}'), 400),
    (("POST", "/__headwater/groups/0/lake/swap", {}, b'{"remove": ["x"], "add": ["x"]}'), 400),
    (("POST", "/__headwater/groups/0/lake/swap", {}, b'{"remove": "x"}'), 400),
    (("POST", "/__headwater/groups/0/lake/swap", {}, b"\xff"), 400),
    (("GET", "/__headwater/groups/0/losses?after=-1"), 400),
]


def test_a_call_that_makes_no_sense_is_refused(node: Node) -> None:
    for call, status in SENSELESS:
        assert node.request(*call).status == status, call


def test_after_a_swap_everything_is_read_from_the_new_file(node: Node, place: Path) -> None:
    before, old = contents(node), paths(node)
    new = merged(node, place, old, "new")
    assert swapped(node, old, [new]) == {"removed_rows": 27, "added_rows": 27, "dropped_rows": 0}
    assert paths(node) == [new]
    assert len(extents(node, [new])) == 3, "a stream's records lie side by side now"
    for name in old:
        (place / name).unlink()  # nobody needs them: gc would wait for readers of the table
    node.restart()
    assert contents(node) == before
    fill(node, 1)
    assert_table_is_http(node, KEYS, place)
    assert_verified(node)


def test_files_can_be_swapped_for_more_files_and_again(node: Node, place: Path) -> None:
    before, old = contents(node), paths(node)
    rows = live_rows(node, place, old)
    parts = [write(place, rows.slice(at, 4), f"part{at}") for at in range(0, len(rows), 4)]
    assert swapped(node, old, parts)["added_rows"] == 27
    assert contents(node) == before
    fill(node, 1)
    before = contents(node)
    again = merged(node, place, [*parts[:3], parts[-1]], "again")
    swapped(node, [*parts[:3], parts[-1]], [again])
    assert contents(node) == before and len(paths(node)) == len(parts) - 4 + 2
    assert_table_is_http(node, KEYS, place)
    assert_verified(node)


def test_the_same_swap_again_is_none_also_after_a_restart(node: Node, place: Path) -> None:
    old = paths(node)
    new = merged(node, place, old, "new")
    first = swapped(node, old, [new])
    assert swapped(node, old, [new]) == first
    node.restart()
    assert swapped(node, list(reversed(old)), [new]) == first
    assert swap(node, old[:1], [new]).status == 409, "a part of it is another swap"
    assert paths(node) == [new]


def test_streams_deleted_or_trimmed_meanwhile_stay_so(node: Node, place: Path) -> None:
    old = paths(node)
    a, b, _ = contents(node)
    new = merged(node, place, old, "new")
    with node.connect() as connection:
        connection.request("DELETE", path_of("swap/c"))
        edge = sum(len(line) for line in b.splitlines(keepends=True)[:4])
        answer = connection.request("PUT", f"/swap/b/snapshot/{edge:020d}", {"Content-Type": "text/plain"}, b"so far")
        assert answer.status in (200, 201, 204), answer
    told = swapped(node, old, [new])
    # The file's first extent of b is gone; the second one stays whole, because the snapshot lies within it.
    assert told == {"removed_rows": 9 + 6, "added_rows": 9 + 6, "dropped_rows": 9 + 3}
    for restart in (False, True):
        if restart:
            node.restart()
        with node.connect() as connection:
            assert read_bytes(connection, path_of("swap/a")) == a
            assert read_bytes(connection, path_of("swap/b"), f"{edge:020d}") == b[edge:]
            assert connection.request("GET", path_of("swap/b")).status == 410
            assert connection.request("GET", path_of("swap/c")).status == 404
    assert_verified(node)


def test_a_file_whose_rows_all_died_is_swapped_for_nothing(node: Node, place: Path) -> None:
    old = paths(node)
    new = merged(node, place, old, "new")
    with node.connect() as connection:
        for key in KEYS:
            connection.request("DELETE", path_of(key))
    assert swapped(node, old[:2], []) == {"removed_rows": 0, "added_rows": 0, "dropped_rows": 0}
    assert swapped(node, old[2:], [write(place, rows_of(place, old[2:]), "late")])["dropped_rows"] == 9
    assert paths(node) == [] == table_rows(place)
    assert (place / new).exists()
    assert_verified(node)


def test_forks_read_what_they_share_through_a_swap(node: Node, place: Path) -> None:
    a = content(node, "swap/a")
    with node.connect() as connection:
        answer = connection.request("PUT", path_of("swap/fork"), {"Stream-Forked-From": path_of("swap/a")})
        assert answer.status == 201, answer
        append(connection, "swap/fork", b"own\n")
        connection.request("DELETE", path_of("swap/a"))
    flush(node)
    old = paths(node)
    swapped(node, old, [merged(node, place, old, "new")])
    node.restart()
    assert content(node, "swap/fork") == a + b"own\n"
    assert_verified(node)


# ---- what is refused ---------------------------------------------------------------------------------------------


def without_one(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 5), rows.slice(6)])


def with_another(rows: pa.Table) -> pa.Table:
    last = rows.slice(len(rows) - 1)
    seq = pc.add(last["seq"], 1)
    return pa.concat_tables([rows, last.set_column(3, rows.schema.field("seq"), seq)])


def with_other(name: str) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        index = rows.schema.get_field_index(name)
        return rows.set_column(index, rows.schema.field(name), pc.add(rows[name], 1))

    return change


def renamed(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, rows.schema.field("stream"), pc.binary_join_element_wise(rows["stream"], "x", ""))


def as_html(rows: pa.Table) -> pa.Table:
    index = rows.schema.get_field_index("content_type")
    return rows.set_column(index, rows.schema.field("content_type"), pa.array(["text/html"] * len(rows)))


WRONG = {
    "a row is missing": without_one,
    "a row too many": with_another,
    "another offset": with_other("offset"),
    "another time": with_other("ts_ms"),
    "another n": with_other("n"),
    "another position": with_other("position"),
    "another incarnation": with_other("incarnation"),
    "another seq": with_other("seq"),
    "another name": renamed,
    "another content type": as_html,
}


def assert_refused(node: Node, remove: list[str], add: list[str], why: str = "") -> None:
    """Whatever is asked, nothing changes."""
    # Not where the log is: a batch that was being written when the question came may move that.
    before, files = contents(node), listing(node)["files"]
    rows = table_rows(node.data_directory / "lake")
    answer = swap(node, remove, add)
    assert answer.status == 409, answer
    error = answer.json()["error"]
    assert error["code"] == "swap_refused" and why in error["message"], error
    assert listing(node)["files"] == files and contents(node) == before
    assert table_rows(node.data_directory / "lake") == rows


def test_a_new_file_that_does_not_hold_the_same_rows_is_refused(node: Node, place: Path) -> None:
    old = paths(node)
    for number, change in enumerate(WRONG.values()):
        assert_refused(node, old, [merged(node, place, old, f"wrong{number}", change)])
    assert_verified(node)


def test_rows_of_a_file_that_stays_are_refused_too(node: Node, place: Path) -> None:
    old = paths(node)
    assert_refused(node, old[:1], [merged(node, place, old, "all")], "rows that the old ones do not")
    assert_refused(node, old, [merged(node, place, old[:2], "some")], "lack 9 live rows")
    one, two = merged(node, place, old, "one"), merged(node, place, old, "two")
    assert_refused(node, old, [one, two], "27 rows twice")


def test_files_that_are_unknown_dead_or_part_of_the_lake_already_are_refused(node: Node, place: Path) -> None:
    old = paths(node)
    new = merged(node, place, old[:2], "new")
    assert_refused(node, ["data/0/none.parquet"], [new], "no file data/0/none.parquet")
    assert_refused(node, old[:2], ["data/0/none.parquet"], "no such object")
    assert_refused(node, old[:1], old[1:2], "part of the lake already")
    swapped(node, old[:2], [new])
    assert_refused(node, old[:1], [merged(node, place, [new], "newer")], "no longer part of the lake")


def test_a_file_in_the_wrong_place_is_refused(node: Node) -> None:
    for path in ("data/1/x.parquet", "data/0/x.bin", "x.parquet", "data/0/../../x.parquet", "/x"):
        assert_refused(node, paths(node), [path], "no place for a file of group 0")


def foreign() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1, 2, 3]}), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def flipped(whole: bytes) -> bytes:
    """Another byte where the seqs of its first row group end."""
    column = pq.ParquetFile(pa.BufferReader(whole)).metadata.row_group(0).column(3)
    at = column.data_page_offset + column.total_compressed_size - 1
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda whole: b"",
    "noise": lambda whole: b"PAR1" + bytes(range(256)) * 20 + b"PAR1",
    "a file cut short": lambda whole: whole[: len(whole) // 2],
    "the end of a file": lambda whole: whole[-200:],
    "a footer that points nowhere": lambda whole: whole[:4] + whole[len(whole) // 2 :],
    "a bit flipped in its keys": lambda whole: flipped(whole),
    "other columns": lambda whole: foreign(),
}


def test_an_object_that_is_no_file_of_the_lake_is_refused(node: Node, place: Path) -> None:
    old = paths(node)
    whole = (place / merged(node, place, old, "whole")).read_bytes()
    for spoil in GARBAGE.values():
        (place / "data" / "0" / "garbage.parquet").write_bytes(spoil(whole))
        assert_refused(node, old, ["data/0/garbage.parquet"])


def test_rows_that_are_not_in_order_are_refused(node: Node, place: Path) -> None:
    old = paths(node)
    rows = live_rows(node, place, old)
    turned = rows.take(pa.array(list(reversed(range(len(rows))))))
    written = place / "data" / "0" / "turned.parquet"
    pq.write_table(turned, written)
    assert_refused(node, old, ["data/0/turned.parquet"], "not sorted")


# ---- beside everything else --------------------------------------------------------------------------------------


@pytest.mark.full
def test_readers_and_writers_go_on_through_swap_after_swap(tmp_path: Path) -> None:
    flags = ("--flush-bytes", "4KiB", "--flush-interval-ms", "50", "--checkpoint-interval-ms", "20")
    gc = ("--lake-gc-interval-ms", "100")
    with Node.started(tmp_path, flags=(*flags, *gc)) as node:
        place = node.data_directory / "lake"
        with node.connect() as connection:
            for key in KEYS:
                create(connection, key)
        told: dict[str, list[bytes]] = {key: [] for key in KEYS}
        problems: list[str] = []
        over = threading.Event()

        def work() -> None:
            """Each thread writes and reads: whatever was acknowledged is there, in order, once."""
            try:
                with node.connect() as connection:
                    while not over.is_set():
                        for key in KEYS:
                            record = f"{key} {next(_numbers)} {'x' * 300}\n".encode()
                            append(connection, key, record)
                            told[key].append(record)
            except Exception as error:
                problems.append(repr(error))

        def look() -> None:
            try:
                with node.connect() as connection:
                    while not over.is_set():
                        for key in KEYS:
                            known = b"".join(told[key])
                            if not read_bytes(connection, path_of(key)).startswith(known):
                                problems.append(f"{key} was read otherwise")
            except Exception as error:
                problems.append(repr(error))

        threads = [threading.Thread(target=work), threading.Thread(target=look), threading.Thread(target=look)]
        for thread in threads:
            thread.start()
        try:
            done = 0
            for number in range(60):
                old = paths(node)
                if len(old) < 2 or problems:
                    over.wait(0.05)
                    continue
                answer = swap(node, old, [merged(node, place, old, f"{number}")])
                assert answer.status == 200, answer
                done += 1
                if done == 8:
                    break
            assert done >= 4, "there was next to nothing to swap, so nothing was proved"
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not problems
        flush(node)
        assert [content(node, key) for key in KEYS] == [b"".join(told[key]) for key in KEYS]
        assert_table_is_http(node, KEYS, place)
        assert "Traceback" not in node.stderr() and '"error"' not in node.stderr(), node.output()
        assert_verified(node)
