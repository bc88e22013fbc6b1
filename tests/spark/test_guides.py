"""The code in the guides of Spark and of the lake, taken out of the pages and run as it stands there, but for addresses
and directories: against a real node, and a lake that was really compacted."""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.spark.node import Node as Calls
from tests.spark.lakes import FLAGS, Model, fill, keys
from tests.support.fences import Fence, commands, fences
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_800)]
ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guides"
LAKE = "/var/lib/headwater/lake"
JSON = {"Content-Type": "application/json"}
NOT_RUN = {
    "pip install": "changes the environment",
    "examples/agent_runs": "test_examples.py runs them",
    "--continuous": "goes on until it is interrupted",
    "# until SIGTERM": "goes on until it is ended",
    "spark_jars_packages": "downloads jars",
    "s3://marts": "looks into a bucket; test_erase_everything.py runs it",
}
"""Pieces that hold this are left out, and why."""

# ---- DuckDB, Polars, pandas and Spark over the lake ----------------------------------------------------------------


def counted(found: Any) -> dict[str, int]:
    """Records of each stream, from whatever a piece of the guide has as its result."""
    if type(found).__module__.startswith("pandas"):
        return {"/".join(name): int(count) for name, count in found.items()}
    rows = found.rows() if hasattr(found, "rows") else found.collect() if hasattr(found, "collect") else found
    return {f"{bucket}/{stream}": count for bucket, stream, count in rows}


def test_each_query_of_the_lake_guide_counts_every_record_once_after_a_compaction_and_a_glob_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    import duckdb

    from headwater.spark.jobs.compact import compact

    pieces = [one for one in fences(GUIDES / "lake.md") if one.language == "python" and LAKE in one.text]
    for name in ("duckdb", "polars", "pandas", "spark.read"):
        assert any(name in one.text for one in pieces), f"the guide has no query with {name}"
    with Node.started(tmp_path, flags=FLAGS) as node:
        model: Model = {}
        fill(node, model, keys(3), rounds=5)
        done = compact(spark, Calls(node.url))
        assert (done["files_before"], done["files_after"]) == (5, 1)
        lake = node.data_directory / "lake"
        expected = {name: len(records) for name, records in model.items()}
        for piece in pieces:
            names: dict[str, Any] = {}
            exec(compile(piece.text.replace(LAKE, str(lake)), f"lake.md:{piece.line}", "exec"), names)
            assert counted(names["records"]) == expected, f"lake.md, line {piece.line}"
        files = glob.glob(f"{lake}/data/*/*.parquet")
        twice = duckdb.execute("SELECT count(*) FROM read_parquet($files)", {"files": files}).fetchone()
        assert twice == (2 * sum(expected.values()),), "the guide warns of what no longer happens"


# ---- the guide of Spark --------------------------------------------------------------------------------------------


def pieces_of(page: list[Fence], places: Mapping[str, str]) -> list[dict[str, Any]]:
    """What to run, in the order of the page: a command at a time. Addresses and directories are those of the test."""
    found = []
    for fence in page:
        if fence.language not in ("python", "sql", "sh"):
            continue
        for text in commands(fence.text) if fence.language == "sh" else [fence.text]:
            if not any(mark in text for mark in NOT_RUN):
                for before, after in places.items():
                    text = re.sub(before, after, text)
                found.append({"language": fence.language, "text": text, "line": fence.line})
    return found


def fill_for_the_guide(node: Node, folder: Path) -> None:
    """Streams and files that the guide's code speaks of."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    streams = {
        "orders/1": [{"state": "paid", "customer": f"c{n}"} for n in range(4)],
        "orders/2": [{"state": "open", "customer": "c1"}],
        "runs/a": [
            {"kind": "tokens", "at": f"2026-06-01T12:00:{n:02d}Z", "model": "large", "tokens": 100 * n}
            for n in range(30)
        ],
        "boards/b": [{"id": n % 3, "n": n} for n in range(120)],
        "users/4711": [{"name": "somebody"}],
    }
    for name, records in streams.items():
        assert node.request("PUT", f"/v1/stream/{name}", JSON, json.dumps(records).encode()).status == 201
    (folder / "events").mkdir()
    pq.write_table(pa.table({"device": ["a", "b"], "at": [1, 2]}), folder / "events" / "1.parquet")
    (folder / "events.csv").write_text("id,name\n1,x\n2,y\n")
    (folder / "lines.jsonl").write_text('{"user": "u1"}\n{"user": "u2"}\n')


def test_the_code_of_the_spark_guide_runs_as_it_stands(tmp_path: Path) -> None:
    page = fences(GUIDES / "spark.md")
    (tmp_path / "work").mkdir()
    for declared in (one for one in page if one.language == "toml"):
        name = "schedule.toml" if "[[job]]" in declared.text else "pipeline.toml"
        (tmp_path / "work" / name).write_text(declared.text)
    with Node.started(tmp_path / "node", flags=FLAGS) as node:
        fill_for_the_guide(node, tmp_path / "work")
        places = {
            r"http://127\.0\.0\.1:4437": node.url,
            r"s3://company/headwater": str(node.data_directory / "lake"),
            r"""(?<=[\s"'])/(?=(?:data|var)/)""": f"{tmp_path}/",
            r"local\[\*\]": "local[2]",
        }
        plan = {
            "names": {"url": node.url, "checkpoint": str(tmp_path / "checkpoint")},
            "pieces": pieces_of(page, places),
        }
        assert len(plan["pieces"]) > 25
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
        said = tmp_path / "said.txt"
        with said.open("w") as out:
            done = subprocess.run(
                [sys.executable, Path(__file__).with_name("guide_driver.py")],
                cwd=tmp_path / "work",
                input=json.dumps(plan),
                env={**inherited, "HEADWATER_URL": node.url, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=out,
                text=True,
            )
        assert done.returncode == 0, said.read_text()[-6_000:]


@pytest.mark.parametrize("page", sorted(GUIDES.glob("*.md")), ids=lambda page: page.name)
def test_no_heading_of_a_guide_is_empty(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "code", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if line.strip()]
    for line, after in zip(lines, [*lines[1:], "#"], strict=True):
        level, next_level = (len(found[0]) if (found := re.match("#+(?= )", one)) else 0 for one in (line, after))
        assert not level or (after != "#" and (not next_level or next_level > level)), f"{page.name}: {line}"
