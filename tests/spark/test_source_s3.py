"""A lake on S3 read by a Spark that has no jars for it: batch, streaming, and `read_lake`.
The reading runs in a process of its own, with the credentials in its environment and nowhere else."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lake.on_a_node.surface import flush
from tests.spark.conftest import QUICK
from tests.spark.reads import assert_shown, fill
from tests.support.node import Node
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
KEYS = ("orders/text", "orders/json", "other/nested/name")

READ = """
import base64, json, sys
from pathlib import Path
from headwater.spark.native_read import read_lake
from tests.support.spark import local_session

url, lake, endpoint, folder = sys.argv[1:]
spark = local_session(Path(folder))
reader = spark.read.format("headwater")
place = {"lake": lake, "endpoint": endpoint, "region": "us-east-1"}
stream = spark.readStream.format("headwater").option("url", url).option("startingOffsets", "earliest").load()
query = stream.writeStream.format("memory").queryName("streamed").option("checkpointLocation", folder + "/checkpoint")
query.trigger(availableNow=True).start().awaitTermination(120)
frames = {
    "node": reader.option("url", url).load(),
    "native": read_lake(spark, url),
    "stream": spark.table("streamed"),
    "table": spark.read.format("headwater").options(**place).load(),
}
for name, frame in frames.items():
    rows = [row.asDict() for row in frame.drop("timestamp").collect()]
    for row in rows:
        row["payload"] = base64.b64encode(bytes(row["payload"])).decode()
    print("FOUND " + json.dumps([name, rows]), flush=True)
spark.stop()
"""


def test_a_lake_on_s3_is_read_without_any_jar(s3: S3, tmp_path: Path) -> None:
    lake = "s3://lake/spark-source"
    flags = [*QUICK, "--lake", lake, "--lake-endpoint", s3.endpoint, "--lake-region", "us-east-1"]
    with Node.started(tmp_path, env=CREDENTIALS, flags=flags) as node:
        with node.connect() as connection:
            fill(connection, KEYS, 6)
            flush(node)
            fill(connection, KEYS, 6, first=6)
            flush(node)
            fill(connection, KEYS, 3, first=12)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        done = subprocess.run(
            [sys.executable, "-c", READ, node.url, lake, s3.endpoint, str(tmp_path)],
            env={**inherited, **CREDENTIALS, "PYTHONPATH": os.pathsep.join(["src", "."])},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-6_000:]
        lines = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
        found = dict(json.loads(line) for line in lines)
        assert sorted(found) == ["native", "node", "stream", "table"]
        for rows in found.values():
            for row in rows:
                row["payload"] = base64.b64decode(row["payload"])
        for name in ("node", "native", "stream"):
            assert_shown(node, KEYS, found[name])
        assert len(found["table"]) < len(found["node"])
        flush(node)
        assert {row["position"] for row in found["table"]} < {row["position"] for row in found["node"]}
