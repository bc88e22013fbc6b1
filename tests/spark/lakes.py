"""Lakes for tests of the jobs that keep them: streams that settled in rounds, and what must hold of them afterwards.
Owns the filling and the comparison. Streams are lists of bytes here; the model knows nothing of files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from headwater.lake.layout import SERVED
from headwater.spark.node import Node as Calls
from tests.lake.on_a_node.surface import TEXT, append, create, flush, path_of
from tests.support.http import read_bytes
from tests.support.node import Node

FLAGS = [
    *("--flush-interval-ms", "600000", "--checkpoint-interval-ms", "500", "--lake-cache-bytes", "1MiB"),
    *("--lake-grace-ms", "60000", "--lake-gc-interval-ms", "600000"),
]
"""Settles and collects only when asked, and keeps little of what was read: reads meet the files."""

Model = dict[str, list[bytes]]


def keys(count: int, bucket: str = "lake") -> list[str]:
    return [f"{bucket}/stream-{number:03d}" for number in range(count)]


def fill(node: Node, model: Model, names: Iterable[str], rounds: int, records: int = 3, size: int = 40) -> None:
    """Appends to each stream and settles, so many times: a file each round."""
    with node.connect() as connection:
        for _ in range(rounds):
            for name in names:
                if name not in model:
                    create(connection, name)
                    model[name] = []
                for _ in range(records):
                    body = f"{name} {len(model[name]):05d} ".encode()
                    model[name].append(body + b"x" * max(0, size - len(body) - 1) + b"\n")
                    append(connection, name, model[name][-1])
            flush(node)


def delete(node: Node, model: Model, name: str) -> None:
    answer = node.request("DELETE", path_of(name))
    assert answer.status == 204, answer
    model.pop(name, None)


def assert_reads(node: Node, model: Model) -> None:
    with node.connect() as connection:
        for name, records in model.items():
            assert read_bytes(connection, path_of(name)) == b"".join(records), name


def table_files(node: Node) -> list[Path]:
    place = node.data_directory / "lake"
    return [place / path for path in DeltaTable(str(place)).to_pyarrow_dataset().files] if place.is_dir() else []


def lake_files(node: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Calls(node.url).lake_files(0)["files"]
    return found


def holders(paths: Iterable[Path], text: bytes) -> list[Path]:
    """Which files have a payload with that text in it."""
    return [path for path in paths if any(text in payload for payload in pq.read_table(path)["payload"].to_pylist())]


def row_groups(node: Node, name: str) -> list[tuple[str, int]]:
    """What a cold read of all of the stream has to fetch."""
    calls = Calls(node.url)
    head = node.request("HEAD", path_of(name))
    incarnation = int((head.header("etag") or "").strip('"').partition(":")[0])
    paths = [file["path"] for file in calls.lake_files(0)["files"]]
    extents = pa.ipc.open_stream(calls.lake_extents(0, paths)).read_all().to_pylist()
    return sorted({(one["file"], one["row_group"]) for one in extents if one["incarnation"] == incarnation})


def fetched_bytes(node: Node, name: str) -> int:
    """The footers and row groups of that, as the files themselves say."""
    groups = row_groups(node, name)
    size = 0
    for file in {file for file, _ in groups}:
        footer = pq.read_metadata(node.data_directory / "lake" / file)
        size += footer.serialized_size
        for number in (number for path, number in groups if path == file):
            group = footer.row_group(number)
            columns = (group.column(index) for index in range(group.num_columns))
            size += sum(one.total_compressed_size for one in columns if one.path_in_schema in SERVED)
    return size


def assert_clean_when_stopped(node: Node) -> None:
    """`headwater lake verify --deep` on what the node left; the node is started again."""
    if node.running:
        assert node.terminate() == 0, node.output()
    assert run_cli("lake", "verify", "--deep", "--data", str(node.data_directory), "--json")["findings_count"] == 0
    node.start()


def run_cli(*arguments: str, env: Mapping[str, str] | None = None, exit_code: int = 0) -> dict[str, Any]:
    """The last line of standard output, which is JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "headwater", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **(env or {})},
        check=False,
    )
    assert done.returncode == exit_code, (done.returncode, done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def snapshot(node: Node, name: str, offset: int, body: bytes = b"a snapshot") -> None:
    """Lets go of everything before the offset."""
    answer = node.request("PUT", f"/{name}/snapshot/{offset:020d}", TEXT, body)
    assert answer.status == 204, answer


def fork(node: Node, name: str, source: str, offset: int) -> None:
    headers = {"Stream-Forked-From": f"/v1/stream/{source}", "Stream-Fork-Offset": f"{offset:020d}"}
    answer = node.request("PUT", path_of(name), {**TEXT, **headers})
    assert answer.status == 201, answer
