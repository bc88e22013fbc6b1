"""What the source does before it asks anybody: options, chosen rows, and the arithmetic of ranges of the log.
Nothing here starts Spark or a node."""

from __future__ import annotations

import pickle
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model import glob
from headwater.model.subscriptions import path_of
from headwater.spark import options as asked
from headwater.spark.lake_place import Place
from headwater.spark.node import NodeError
from headwater.spark.options import NAMES, BadOptions, for_batch, for_streaming, parse
from headwater.spark.ranges import (
    FAR,
    File,
    Piece,
    Range,
    Share,
    file_of,
    limits_by_group,
    part_bytes,
    reach,
    share_out,
)
from headwater.spark.selection import Selection

URL = {"url": "http://127.0.0.1:4437"}


# ---- options -----------------------------------------------------------------------------------------------------


def test_options_are_taken_in_any_case_and_mean_what_they_say() -> None:
    options = parse(
        {
            **URL,
            "TOKEN": "secret",
            "subscribe": "orders/1, plain",
            "startingoffsets": '{"0": 7, "1": 12}',
            "maxoffsetspertrigger": "100",
            "failOnDataLoss": "False",
            "includeheaders": "true",
        }
    )
    assert options.node is not None and options.node.url == URL["url"]
    assert options.selection.streams == {("orders", "1"), ("_default", "plain")}
    assert options.starting == {0: 7, 1: 12}
    assert (options.rows_max, options.fail_on_loss, options.with_headers) == (100, False, True)
    assert pickle.loads(pickle.dumps(options)).selection == options.selection


def test_a_lake_is_named_with_its_endpoint() -> None:
    options = parse({"lake": "s3://bucket/x", "endpoint": "http://127.0.0.1:1", "region": "here"})
    assert options.place == Place("s3://bucket/x", "http://127.0.0.1:1", "here")
    assert options.node is None


def test_an_unknown_option_is_refused_and_all_known_ones_are_named() -> None:
    with pytest.raises(BadOptions, match="no option startingOffset for") as refused:
        parse({**URL, "startingOffset": "earliest"})
    assert all(name in str(refused.value) for name in NAMES)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "nothing says where to read"),
        ({"url": "127.0.0.1:4437"}, "http://HOST:PORT"),
        ({**URL, "bucket": " "}, "bucket is empty"),
        ({**URL, "endpoint": "http://x"}, "add .option"),
        ({**URL, "subscribe": "a/b", "bucket": "a"}, "subscribe and bucket both say"),
        ({**URL, "subscribe": "a/b", "subscribePattern": "*"}, "subscribe and subscribePattern"),
        ({**URL, "subscribe": " , "}, "names no stream"),
        ({**URL, "subscribe": "a/../b"}, "subscribe names 'a/../b'"),
        ({**URL, "subscribePattern": "**/a/**/b/**/c/**/d/**"}, "at most 4 times"),
        ({**URL, "bucket": "a/b"}, "has a slash"),
        ({**URL, "startingOffsets": "first"}, '{"0": 81236}'),
        ({**URL, "startingOffsets": '{"0": 1, "one": 4}'}, "0 is a group"),
        ({**URL, "startingOffsets": '{"00": 4}'}, '{"0": 81236}'),
        ({**URL, "startingOffsets": '{"0": -1}'}, '{"0": 81236}'),
        ({**URL, "startingOffsets": '{"0": true}'}, '{"0": 81236}'),
        ({**URL, "startingOffsets": "earliest", "startingTimestamp": "0"}, "both say where to begin"),
        ({**URL, "startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({**URL, "minPartitions": "0"}, "at least 1"),
        ({**URL, "maxBytesPerTrigger": "many"}, "at least 1"),
        ({**URL, "failOnDataLoss": "no"}, "true or false"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises((BadOptions, NodeError), match=re.escape(why)):
        parse(given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({**URL, "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streaming"),
        ({**URL, "maxbytespertrigger": "5"}, "maxBytesPerTrigger is for streaming"),
        ({**URL, "startingOffsets": "latest"}, "has no rows"),
        ({**URL, "endingOffsets": "earliest"}, "has no rows"),
        ({**URL, "startingOffsets": '{"0": 9}', "endingOffsets": '{"0": 8}'}, "of group 0 lies after"),
        ({"lake": "/x", "startingTimestamp": "0"}, "through a node"),
    ],
)
def test_what_makes_no_sense_in_a_batch_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(BadOptions, match=re.escape(why)):
        for_batch(given)


def test_a_streaming_read_has_no_end_and_needs_a_node() -> None:
    with pytest.raises(BadOptions, match="endingOffsets is for batch reads"):
        for_streaming({**URL, "endingOffsets": "latest"})
    with pytest.raises(BadOptions, match="follows a node"):
        for_streaming({"lake": "/somewhere"})


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1700000000000", 1_700_000_000_000), ("2023-11-14T22:13:20Z", 1_700_000_000_000), ("1970-01-02", 86_400_000)],
)
def test_a_moment_is_milliseconds_or_a_date(text: str, ms: int) -> None:
    assert parse({**URL, "startingTimestamp": text}).starting_ms == ms


def test_the_positions_of_an_offset_are_read_strictly() -> None:
    assert asked.offset_in("x", '{"0": 12, "1": 3}').positions == {0: 12, 1: 3}
    for text in ("12", "[]", "{}", '{"0": "12"}', '{"0": 12, "x": 3}', '{"0": 1.5}', '{"-1": 1}', '{"9999": 1}'):
        with pytest.raises(BadOptions):
            asked.offset_in("x", text)


# ---- which rows ----------------------------------------------------------------------------------------------------

KEYS = ["orders/1", "orders/2", "orders/a/b", "other/1", "_default/orders", "_default/x/y", "_headwater/pipeline-runs"]


def table_of(keys: list[str]) -> pa.Table:
    parts = [key.partition("/") for key in keys]
    return pa.table(
        {
            "bucket": pa.array([part[0] for part in parts], pa.string()),
            "stream": pa.array([part[2] for part in parts], pa.string()),
            "position": pa.array(range(len(keys)), pa.int64()),
        }
    )


def chosen(selection: Selection, keys: list[str]) -> list[str]:
    rows = table_of(keys)
    kept = rows.filter(selection.mask(rows))
    return [f"{row['bucket']}/{row['stream']}" for row in kept.to_pylist()]


def test_without_a_choice_everything_but_the_pipelines_own_records_is_read() -> None:
    assert chosen(Selection(), KEYS) == KEYS[:-1]
    assert chosen(Selection(bucket="_headwater"), KEYS) == KEYS[-1:]
    named = frozenset({("_headwater", "pipeline-runs"), ("other", "1")})
    assert chosen(Selection(streams=named), KEYS) == ["other/1", "_headwater/pipeline-runs"]


@pytest.mark.parametrize(
    "pattern", ["*", "**", "orders/*", "orders/**", "*/1", "orders", "_default/x/*", "**/b", "o/*"]
)
def test_a_pattern_takes_in_what_it_takes_in_elsewhere(pattern: str) -> None:
    expected = [key for key in KEYS[:-1] if glob.matches(pattern, path_of(key))]
    selection = Selection(pattern=pattern)
    assert chosen(selection, KEYS) == expected
    assert [key for key in KEYS if selection.takes(*key.split("/", 1))] == expected
    assert chosen(Selection(pattern="_headwater/*"), KEYS) == KEYS[-1:]


names = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join)
selections = st.one_of(
    st.builds(Selection),
    st.builds(lambda keys: Selection(streams=frozenset(keys)), st.sets(st.tuples(st.sampled_from("abc"), names))),
    st.builds(lambda text: Selection(pattern=text), st.sampled_from(["a/*", "a/**", "*/b", "**", "a/b/**", "*", "c"])),
    st.builds(lambda bucket: Selection(bucket=bucket), st.sampled_from("abc")),
)


@given(selections, st.lists(st.builds("{}/{}".format, st.sampled_from("abc"), names), min_size=1))
def test_bounds_never_rule_out_a_row_that_is_wanted(selection: Selection, keys: list[str]) -> None:
    rows = table_of(keys)

    def bounds(column: str) -> tuple[str, str]:
        values = rows[column].to_pylist()
        return min(values), max(values)

    wanted = rows.filter(selection.mask(rows))
    if selection.rules_out(bounds):
        assert not len(wanted)
    elif not selection.needs(bounds):
        assert wanted == rows


# ---- ranges ------------------------------------------------------------------------------------------------------


def file(name: str, low: int, high: int, rows: int, size: int = 1_000) -> File:
    return File(name, size, rows, rows, low, high, 0)


def test_bounds_that_nobody_knows_are_taken_as_wide_as_can_be() -> None:
    facts = {"path": "x", "bytes": 5, "rows": 3, "live_rows": 2, "position_min": None, "position_max": None}
    found = file_of({**facts, "modified_ms": 9})
    assert found == File("x", 5, 3, 2, 1, FAR, 9)
    assert found.meets(Range(10, 11)) and not found.within(Range(0, 100))


def test_a_number_of_rows_reaches_about_as_far_as_files_say() -> None:
    files = [file("a", 1, 100, 100), file("b", 101, 300, 100), file("c", 1_001, 1_100, 100)]
    assert reach(files, Range(0, 1_100), 50, None)[0] == 50
    assert reach(files, Range(0, 1_100), 150, None)[0] == 200
    assert reach(files, Range(0, 1_100), 250, None)[0] == 1_050
    assert reach(files, Range(0, 1_100), 1_000, None) == (1_100, 300, 3_000)
    assert reach(files, Range(0, 1_100), 250, 1_500)[0] == 200
    assert reach([], Range(5, 9), 1, 1) == (9, 0, 0)


spans = st.builds(
    lambda low, width, rows: file(f"{low}-{width}-{rows}", low, low + width, rows, rows * 7 + 1),
    st.integers(1, 1_000),
    st.integers(0, 500),
    st.integers(1, 1_000),
)


@given(st.lists(spans, max_size=8), st.integers(0, 1_200), st.integers(1, 1_500), st.integers(1, 300))
def test_a_limited_read_always_gets_on_and_comes_to_its_end(
    files: list[File], after: int, width: int, rows_max: int
) -> None:
    wanted = Range(after, after + width)
    total = sum(one.live_rows for one in files)
    steps = 0
    while wanted.after < wanted.until:
        at, rows, _ = reach(files, wanted, rows_max, None)
        assert wanted.after < at <= wanted.until
        # All rows of a position come together, however many they are.
        assert at == wanted.until or rows <= rows_max + 1 + sum(
            one.live_rows / (one.position_max - one.position_min + 1) for one in files
        )
        wanted = Range(at, wanted.until)
        steps += 1
        assert steps <= 2 * total + len(files) + 2


@given(st.integers(1, 10**18), st.dictionaries(st.integers(0, 40), st.integers(0, 10**12), min_size=1))
def test_a_limit_is_shared_out_by_what_groups_have_left_and_nothing_of_it_is_lost(
    limit: int, left: dict[int, int]
) -> None:
    shares = limits_by_group(limit, left)
    total = sum(left.values())
    assert sum(shares.values()) == (limit if total else 0)
    for group, much in left.items():
        assert abs(shares[group] * total - limit * much) < max(total, 1)
    if total:
        assert shares[max(left, key=lambda group: left[group])] > 0 or limit < 1


def test_positions_are_those_of_every_group_that_there_is() -> None:
    assert asked.of_each("startingOffsets", {0: 5, 1: 9}, [0, 1]) == {0: 5, 1: 9}
    for named, there in (({0: 5}, [0, 1]), ({0: 5, 1: 9}, [0])):
        with pytest.raises(BadOptions, match=r"startingOffsets names positions of group .* name one of each"):
            asked.of_each("startingOffsets", named, there)


def shared_out(pieces: list[Piece], wanted: Range, parts_min: int | None, cores: int) -> list[Share]:
    return share_out(pieces, wanted, part_bytes(sum(piece.file.size_bytes for piece in pieces), parts_min, cores))


def test_much_is_shared_out_and_little_is_not() -> None:
    pieces = [Piece(file(str(number), number * 10 + 1, number * 10 + 10, 5, 1 << 20)) for number in range(64)]
    everything = Range(0, 10_000)
    assert len(shared_out(pieces[:2], everything, None, 8)) == 1
    shares = shared_out(pieces, everything, None, 4)
    assert [len(share.pieces) for share in shares] == [16, 16, 16, 16]
    assert shares[0].whole == [Range(number * 10, number * 10 + 10) for number in range(16)]
    assert len(shared_out(pieces[:2], everything, 2, 1)) == 2
    large = Piece(file("large", 1, 10, 5, 1 << 30))
    parts = shared_out([large], everything, None, 2)
    assert len(parts) == 8
    assert sorted((piece.part, piece.parts) for share in parts for piece in share.pieces) == [(n, 8) for n in range(8)]
    assert all(share.whole is None for share in parts), "a file that several read cannot be read anew by one of them"


@given(st.lists(spans, min_size=1, max_size=12, unique_by=lambda one: one.path), st.integers(1, 6), st.integers(1, 4))
def test_every_file_is_shared_out_once_and_ranges_of_a_share_are_its_own(
    files: list[File], parts_min: int, cores: int
) -> None:
    wanted = Range(0, 2_000)
    shares = shared_out([Piece(one) for one in files], wanted, parts_min, cores)
    seen = sorted((piece.file.path, piece.part, piece.parts) for share in shares for piece in share.pieces)
    parts = {path: count for path, _, count in seen}
    assert seen == sorted((one.path, part, parts[one.path]) for one in files for part in range(parts[one.path]))
    for number, share in enumerate(shares):
        for part in share.whole or ():
            others = [piece for at, other in enumerate(shares) if at != number for piece in other.pieces]
            assert not any(piece.file.meets(part) for piece in others)
        if share.whole is not None:
            held = {p for one in share.pieces for p in range(one.file.position_min, one.file.position_max + 1)}
            assert held <= {p for part in share.whole for p in range(part.after + 1, part.until + 1)}
