"""`backfill` of files onto streams of a real node: in order, each row once, also when it is cut off and run again.
Files are written here; what arrived is read back over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import streams
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

BY_DEVICE = "concat('devices/', device)"
DEVICES = 4


def backfill(spark: SparkSession, node: Node, *paths: Path, **more: Any) -> dict[str, Any]:
    from headwater.spark.jobs.backfill import backfill as job
    from headwater.spark.node import Node as Caller

    given = {"paths": [str(path) for path in paths], "format": "parquet", "stream": BY_DEVICE}
    return job(spark, Caller(node.url), **{**given, **more})


def parquet(path: Path, first: int, count: int, **more: Any) -> Path:
    numbers = list(range(first, first + count))
    columns = {"device": [f"d{n % DEVICES}" for n in numbers], "n": numbers, "at": [-n for n in numbers]}
    pq.write_table(pa.table(columns), path, **more)
    return path


def arrived(node: Node) -> dict[str, list[int]]:
    found = {name: streams.read_json(node, f"devices/{name}") for name in streams.names(node, "devices")}
    return {name: [message["n"] for message in messages] for name, messages in found.items()}


def expected(count: int) -> dict[str, list[int]]:
    return {f"d{d}": list(range(d, count, DEVICES)) for d in range(DEVICES)}


def test_rows_stand_as_in_their_files_which_go_by_name(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    # Written last to first, in many row groups that Spark splits between tasks.
    for part in (2, 1, 0):
        parquet(tmp_path / "in" / f"part-{part}.parquet", part * 4_000, 4_000, row_group_size=100)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "4k")
    try:
        done = backfill(spark, node, tmp_path / "in")
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert arrived(node) == expected(12_000)
    assert (done["files"], done["rows_written"], done["rows_known"], done["streams"]) == (3, 12_000, 0, DEVICES)
    assert streams.read_json(node, "devices/d0")[0] == {"device": "d0", "n": 0, "at": 0}


def test_the_same_load_again_adds_nothing_and_another_one_does(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    first = parquet(tmp_path / "a.parquet", 0, 400)
    done = backfill(spark, node, first)
    again = backfill(spark, node, first, partitions=7)
    assert (again["rows_written"], again["rows_known"]) == (0, 400)
    assert again["producer_id"] == done["producer_id"]
    assert arrived(node) == expected(400)

    second = parquet(tmp_path / "b.parquet", 400, 400)
    more = backfill(spark, node, second)
    assert (more["rows_written"], more["rows_known"]) == (400, 0)
    assert arrived(node) == expected(800)
    assert backfill(spark, node, first, where="n >= 0")["rows_written"] == 400  # other options are another load


def test_rows_may_be_ordered_by_a_column(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    backfill(spark, node, parquet(tmp_path / "a.parquet", 0, 100), order_by=["at"])
    assert arrived(node) == {name: numbers[::-1] for name, numbers in expected(100).items()}


def test_a_named_load_is_known_by_its_name_alone(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    backfill(spark, node, parquet(tmp_path / "a.parquet", 0, 100), producer_id="history")
    moved = (tmp_path / "a.parquet").rename(tmp_path / "moved.parquet")
    assert backfill(spark, node, moved, producer_id="history")["rows_known"] == 100
    assert arrived(node) == expected(100)


def test_lines_of_json_and_csv_and_text_are_loaded(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    lines = tmp_path / "lines.json"
    lines.write_text("".join(f'{{"device": "d{n % 2}", "n": {n}}}\n' for n in range(10)))
    backfill(spark, node, lines, format="json", stream="concat('json/', device)")
    assert [one["n"] for one in streams.read_json(node, "json/d1")] == [1, 3, 5, 7, 9]

    table = tmp_path / "table.csv"
    table.write_text("device;n\n" + "".join(f"d{n % 2};{n}\n" for n in range(10)))
    options = {"header": "true", "sep": ";"}
    backfill(
        spark,
        node,
        table,
        format="csv",
        stream="concat('csv/', device)",
        options=options,
        schema="device string, n int",
    )
    assert streams.read_json(node, "csv/d0") == [{"device": "d0", "n": n} for n in range(0, 10, 2)]

    backfill(
        spark,
        node,
        lines,
        format="text",
        stream="concat('text/', get_json_object(value, '$.device'))",
        payload="value",
        content_type="application/json",
    )
    answer = node.request("GET", "/v1/stream/text/d0")
    assert answer.body.startswith(b'[{"device": "d0", "n": 0},')  # to the byte, spaces and all


def test_progress_is_told_in_rows(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    backfill(
        spark,
        node,
        parquet(tmp_path / "a.parquet", 0, 2_000),
        partitions=40,
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    assert told[-1] == ("rows", 2_000, 2_000)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"format": "xlsx"}, "there are parquet, json, csv, orc, text"),
        ({"paths": []}, "no file is named"),
        ({"paths": ["missing-folder"]}, "PATH_NOT_FOUND"),
        ({"stream": "concat("}, "PARSE_SYNTAX_ERROR"),
        ({"stream": "devise"}, "UNRESOLVED_COLUMN"),
        ({"order_by": ["rand()"]}, "give another result each time"),
        ({"where": "n >"}, "PARSE_SYNTAX_ERROR"),
    ],
)
def test_what_cannot_be_loaded_is_refused(
    spark: SparkSession, node: Node, tmp_path: Path, more: dict[str, Any], told: str
) -> None:
    from headwater.spark.job_runs import JobRefused

    with pytest.raises(JobRefused, match=told) as refused:
        backfill(spark, node, parquet(tmp_path / "a.parquet", 0, 4), **more)
    assert "\n" not in str(refused.value)
    assert streams.names(node, "devices") == []


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"stream": "cast(null AS string)"}, "`stream` is null in a row"),
        ({"payload": "cast(n AS string)", "content_type": "application/xml; x", "stream": "'/x'"}, "400 bad_name"),
        ({"payload": "n"}, "`payload` is binary or string, not bigint"),
    ],
)
def test_rows_that_cannot_be_written_fail_the_load_in_one_line(
    spark: SparkSession, node: Node, tmp_path: Path, more: dict[str, Any], told: str
) -> None:
    from headwater.spark.sending import SinkFailed

    with pytest.raises(SinkFailed, match=re.escape(told)) as failure:
        backfill(spark, node, parquet(tmp_path / "a.parquet", 0, 4), **more)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("name", "lines", "more", "told"),
    [
        (
            "bad.json",
            '{"n": 1}\n\n{"n": oops\n{"n": 4}\n',
            {"schema": "n int"},
            "line 3 of {file} is not JSON of the columns",
        ),
        ("bad line.json", '{"n": 1}\r\n{"n": oops\r\n', {}, 'line 2 of {file} is not JSON: {{"n": oops: nothing was'),
        (
            "bad.json",
            '{"n": 1}\n{"n": "x"}\n',
            {"schema": "n int"},
            "line 2 of {file} is not JSON of the columns n int: ",
        ),
        ("bad.json", '{"n": 1', {"options": {"multiLine": "true"}}, "{file} is not JSON"),
        ("bad.csv", "n,m\n1,2\n3\n", {"options": {"header": "true"}}, "line 3 of {file} is not CSV: 3"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_with_its_file_and_nothing_is_written(
    spark: SparkSession, node: Node, tmp_path: Path, name: str, lines: str, more: dict[str, Any], told: str
) -> None:
    from headwater.spark.job_runs import JobRefused

    (tmp_path / "in").mkdir()
    bad = tmp_path / "in" / name
    format = bad.suffix[1:]
    (tmp_path / "in" / f"a.{format}").write_text({"json": '{"n": 1}\n', "csv": "n,m\n5,6\n"}[format])
    bad.write_text(lines, newline="")
    with pytest.raises(JobRefused, match=re.escape(told.format(file=bad))):
        backfill(spark, node, tmp_path / "in", format=format, stream="'devices/all'", **more)
    assert streams.names(node, "devices") == []


def test_a_load_that_is_killed_and_run_again_has_every_row_once(tmp_path: Path) -> None:
    rows, pad_bytes, room_bytes = 4_000, 2_500, 4 << 20
    parquet(tmp_path / "a.parquet", 0, rows)
    # A node that takes less than half of it and then nothing more: the kill comes in the middle, however quick all is.
    with Node.started(tmp_path, flags=("--hot-bytes-max", str(room_bytes))) as node, ExitStack() as full:
        full.enter_context(node.full())
        with (tmp_path / "log").open("wb") as log:
            # A group of its own: the command and the JVM that it starts end together.
            loading = subprocess.Popen(_load(node, tmp_path, pad_bytes), stdout=log, stderr=log, start_new_session=True)
        try:
            deadline_s = time.monotonic() + 120
            while _written(node) < room_bytes:
                assert loading.poll() is None and time.monotonic() < deadline_s, (tmp_path / "log").read_text()[-3_000:]
                time.sleep(0.02)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(loading.pid, signal.SIGKILL)
            loading.wait(30)
        assert _written(node) < rows * (pad_bytes + 10)
        full.close()
        _finish(node, tmp_path, rows, pad_bytes)


def _load(node: Node, folder: Path, pad_bytes: int) -> list[str]:
    return [
        *(sys.executable, "-m", "headwater", "pipeline", "run", "backfill", str(folder / "a.parquet")),
        *("--format", "parquet", "--stream", BY_DEVICE, "--url", node.url, "--partitions", "2"),
        *("--payload", f"concat(lpad(n, 10, '0'), repeat('x', {pad_bytes}))", "--master", "local[2]"),
    ]


def _written(node: Node) -> int:
    return sum(streams.tail(node, f"devices/d{d}") for d in range(DEVICES))


def _finish(node: Node, folder: Path, rows: int, pad_bytes: int) -> None:
    """The load again, to its end; and what is there then."""
    again = subprocess.run(_load(node, folder, pad_bytes), capture_output=True, text=True, timeout=200)
    assert again.returncode == 0, again.stderr[-3_000:]
    done = json.loads(again.stdout)
    assert done["rows_written"] + done["rows_known"] == rows
    assert done["rows_written"] > 0
    assert done["rows_known"] > 0
    for d in range(DEVICES):
        body = streams.read(node, f"devices/d{d}")
        assert [int(text) for text in re.findall(rb"(\d{10})x+", body)] == expected(rows)[f"d{d}"]
        assert len(body) == rows // DEVICES * (pad_bytes + 10)

    status = subprocess.run(
        [sys.executable, "-m", "headwater", "pipeline", "status", "--url", node.url], capture_output=True, text=True
    )
    assert json.loads(status.stdout)["job"] == "backfill"
