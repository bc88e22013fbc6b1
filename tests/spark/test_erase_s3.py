"""An erasure where the lake is in a bucket: no object, no file of the data directory and no part that was kept at hand
holds anything of the stream afterwards. The job is a process of its own, with the credentials in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.lake.open_store import open_store
from tests.lake.on_a_node.surface import path_of
from tests.lake.on_a_node.test_erasure import traces
from tests.spark.lakes import run_cli
from tests.spark.test_erase_everything import KEY, NAME, PAYLOAD, QUIET, assert_kept, fill
from tests.support.node import Node
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}


def test_nothing_is_left_in_a_bucket_nor_at_hand_on_the_disk(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.make_bucket("erased")
    lake = ["--lake", "s3://erased/lake", "--lake-endpoint", s3.endpoint, "--lake-disk-cache-bytes", "64MiB"]
    with Node.started(tmp_path / "node", env=KEYS, flags=[*QUIET, *lake]) as node:
        kept = fill(node)
        # Cold reads of others put parts of files at hand that hold its records too.
        for key in kept:
            assert node.request("GET", path_of(key)).status == 200
        cache = node.data_directory / "cache"
        at_hand = {path.name for path in cache.iterdir()}
        assert at_hand
        arguments = ("--url", node.url, "--master", "local[2]", "--stream", KEY, "--delete")
        assert run_cli("pipeline", "run", "erase", *arguments, env=KEYS)["complete"] is True
        own = traces(node.data_directory, NAME, PAYLOAD)
        assert [path for path in own if not path.startswith("cache/")] == []
        assert_kept(node, kept)
        assert node.terminate() == 0

        settings = {"HEADWATER_LAKE": "s3://erased/lake", "HEADWATER_LAKE_ENDPOINT": s3.endpoint, **KEYS}
        for _ in range(2):
            run_cli("lake", "gc", "--data", str(node.data_directory), "--grace-ms", "0", "--json", env=settings)
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        store, copy = open_store("s3://erased/lake", endpoint=s3.endpoint), tmp_path / "copy"
        for folder in ("data", "snapshots", "_delta_log"):
            for stored in store.list(folder):
                (copy / stored.key).parent.mkdir(parents=True, exist_ok=True)
                (copy / stored.key).write_bytes(bytes(store.get(stored.key)))
        assert any(copy.rglob("*.parquet")) and traces(copy, NAME, PAYLOAD) == []
        assert traces(node.data_directory, NAME, PAYLOAD) == []
        left = {name.partition("-")[0] for name in at_hand & {path.name for path in cache.iterdir()}}
        assert len(left) == 1, "only the file that never held a record of it is still there, and at hand"
        node.start()
        assert_kept(node, kept)
