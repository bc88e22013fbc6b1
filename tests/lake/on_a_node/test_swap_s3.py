"""Swaps, gc and `verify` where the lake is a real S3. The S3 is one SeaweedFS for all tests; outages are a proxy's in
front of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.lake.layout import SCHEMA
from headwater.lake.open_store import open_store
from headwater.lake.sorted_writer import write_sorted
from headwater.lake.store import ObjectStore
from headwater.lake.writer import SORTED_BY
from tests.lake.on_a_node.surface import QUIET, append, assert_table_is_http, content, create, flush
from tests.lake.on_a_node.swaps import listing, paths, swap, swapped
from tests.lake.on_a_node.test_s3 import CREDENTIALS, flags, fresh_lake, options
from tests.support.node import Node
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY, Fault, FaultProxy

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]
KEYS = ("s3/a", "s3/b")


def fill(node: Node) -> None:
    with node.connect() as connection:
        for key in KEYS:
            create(connection, key)
        for number in range(3):
            for key in KEYS:
                append(connection, key, f"{key} {number}\n".encode() * 50)
            flush(node)


def opened(s3: S3, lake: str) -> ObjectStore:
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    return open_store(lake, endpoint=s3.endpoint, region="us-east-1", **keys)


def rewritten(store: ObjectStore, files: list[str]) -> str:
    rows = pa.concat_tables([pq.read_table(pa.BufferReader(store.get(file))) for file in files]).cast(SCHEMA)
    written = write_sorted(rows.sort_by([(name, "ascending") for name in SORTED_BY]).to_batches(), 0, "new", "zstd")
    assert written is not None
    store.put(written.file.path, written.data)
    return written.file.path


def command(node: Node, s3: S3, lake: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`headwater lake …` beside a stopped node."""
    settings = {"HEADWATER_LAKE": lake, "HEADWATER_LAKE_ENDPOINT": s3.endpoint, "HEADWATER_LAKE_REGION": "us-east-1"}
    full = [sys.executable, "-m", "headwater", "lake", *arguments, "--data", str(node.data_directory)]
    env = {**os.environ, **CREDENTIALS, **settings}
    return subprocess.run(full, capture_output=True, text=True, timeout=200, env=env, check=False)


def test_files_in_a_bucket_are_swapped_swept_and_verified(s3: S3, tmp_path: Path) -> None:
    lake = fresh_lake()
    store = opened(s3, lake)
    with Node.started(tmp_path, env=CREDENTIALS, flags=flags(s3.endpoint, lake, *QUIET)) as node:
        fill(node)
        before, old = [content(node, key) for key in KEYS], paths(node)
        assert listing(node)["lake"] == {"url": lake, "endpoint": s3.endpoint, "region": "us-east-1"}
        new = rewritten(store, old)
        assert swapped(node, old, [new]) == {"removed_rows": 6, "added_rows": 6, "dropped_rows": 0}
        assert [content(node, key) for key in KEYS] == before
        assert_table_is_http(node, KEYS, lake, options(s3))
        assert node.terminate() == 0, node.output()
        done = command(node, s3, lake, "verify", "--deep")
        assert done.returncode == 0, done.stdout + done.stderr
        assert {stored.key for stored in store.list("data")} == {new, *old}
        done = command(node, s3, lake, "gc", "--grace-ms", "0")
        assert done.returncode == 0, done.stdout + done.stderr
        assert {stored.key for stored in store.list("data")} == {new}
        done = command(node, s3, lake, "verify", "--deep")
        assert done.returncode == 0, done.stdout + done.stderr
        node.start()
        assert [content(node, key) for key in KEYS] == before


def test_a_commit_that_the_store_does_not_take_is_made_later(s3: S3, proxy: FaultProxy, tmp_path: Path) -> None:
    lake = fresh_lake()
    with Node.started(tmp_path, env=CREDENTIALS, flags=flags(proxy.endpoint, lake, *QUIET)) as node:
        fill(node)
        before, old = [content(node, key) for key in KEYS], paths(node)
        new = rewritten(opened(s3, lake), old)
        with proxy.lock:
            proxy.faults.append(Fault("PUT", "_delta_log/", 1 << 30, None))
        answer = swap(node, old, [new])
        assert answer.status == 503, answer
        assert [content(node, key) for key in KEYS] == before
        with proxy.lock:
            proxy.faults.clear()
        assert swapped(node, old, [new])["added_rows"] == 6
        assert paths(node) == [new]
        assert_table_is_http(node, KEYS, lake, options(s3))
        assert node.terminate() == 0, node.output()
    done = command(node, s3, lake, "verify", "--deep")
    assert done.returncode == 0, done.stdout + done.stderr
