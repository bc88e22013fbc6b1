"""The examples of the pipeline, run as a reader would run them, and the page of one in a real browser.
Each is a process of its own; what it prints and leaves behind is what the guide says."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import polars as pl
import pytest

from tests.clients.packages import installed, running
from tests.spark.conftest import QUICK
from tests.support.http import read_messages
from tests.support.node import Node
from tests.support.spark import JAVA_QUICK

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "agent_runs"
BROWSER = ROOT / "tests" / "browser"
JSON = {"Content-Type": "application/json"}


def printed(folder: Path, *command: str | Path, **more: str) -> str:
    """What a command prints on standard output. It has to end well."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env={**inherited, "JAVA_TOOL_OPTIONS": JAVA_QUICK, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("chromium is not installed; tools/system-packages.sh says how")
    return found


def test_agent_runs_go_from_an_empty_directory_to_a_picture_and_a_page_that_starts_from_a_snapshot(
    node: Node, tmp_path: Path, chromium: str
) -> None:
    demo = tmp_path / "demo"
    said = printed(tmp_path, sys.executable, EXAMPLE / "agent_runs.py", demo, HEADWATER_URL=node.url)
    for part in (
        "1571 events appended to 24 streams",
        "1571 rows derived, 0 set aside",
        "24 snapshots published of 1571",
    ):
        assert part in said

    table = pl.read_delta(str(demo / "tables" / "events"))
    assert {str(day) for day in table["day"]} == {"2026-06-01"}
    asked = table.filter(pl.col("kind") == "tokens")
    minutes = asked["at"].drop_nulls().dt.truncate("1m").n_unique()
    assert f"{asked['tokens'].sum()} tokens in {minutes} minutes" in said
    picture = ElementTree.fromstring((demo / "tokens-per-minute.svg").read_text())
    names = [title.text or "" for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    drawn = sum(int(name.rpartition(": ")[2].replace(",", "")) for name in names)
    assert drawn == table["tokens"].sum()

    first = table.filter(pl.col("stream") == "run-00")
    page = f"{(EXAMPLE / 'run.html').as_uri()}?url={quote(node.url, safe='')}&run=run-00"
    ids = ["status", "model", "steps", "tokens", "told"]
    plan = {"chromium": chromium, "page": page, "element": "told", "ids": ids}
    plan["awaited"] = ["a snapshot and 1 records", "followed 1 more"]
    with running(installed(BROWSER), "page.mjs", plan) as script:
        begun = script.wait_line()
        assert begun == {
            "status": "running",
            "model": "small",
            "steps": "99",
            "tokens": str(first["tokens"].sum() + 1_000),
            "told": "started from a snapshot and 1 records",
            "complaints": [],
        }
        end = json.dumps({"kind": "finished", "step": 100, "tokens": 5}).encode()
        assert node.request("POST", "/v1/stream/runs/run-00", JSON, end).status == 204
        followed = script.facts()
    assert (followed["status"], followed["tokens"]) == ("finished", str(first["tokens"].sum() + 1_005))


@pytest.mark.soak  # several JVMs
def test_the_declared_example_makes_of_the_same_events_what_the_script_makes(node: Node, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("tables"))
    script = tmp_path / "example" / "agent_runs.py"
    said = printed(tmp_path, sys.executable, script, "--append", HEADWATER_URL=node.url)
    assert "1571 events appended to 24 streams" in said
    command = (sys.executable, "-m", "headwater", "pipeline", "run", "declared", tmp_path / "example" / "pipeline.toml")
    told = json.loads(printed(tmp_path, *command, "--url", node.url, "--master", "local[2]"))
    tables = tmp_path / "example" / "tables"
    events = pl.read_delta(str(tables / "bronze" / "events")).filter(pl.col("kind") == "tokens")
    rows = {name: one["rows"] for name, one in told["tables"].items()}
    minutes = events["at"].dt.truncate("1m")
    by_minute = events.select(minutes.alias("minute"), "model").unique()
    assert rows == {"events": 1571, "usage": len(events), "per_minute": len(by_minute)}
    assert told["folds"][0]["published"] == 24
    gold = pl.read_delta(str(tables / "gold" / "per_minute"))
    assert (gold["tokens"].sum(), gold["minute"].n_unique()) == (events["tokens"].sum(), minutes.n_unique())
    costly = events.filter(pl.col("tokens") > 2500)
    assert len(costly) > 0
    with node.connect() as connection:
        for model in set(costly["model"]):
            alerts = read_messages(connection, f"/v1/stream/alerts/{model}")
            assert [one["tokens"] for one in alerts] == costly.filter(pl.col("model") == model).sort("at")[
                "tokens"
            ].to_list()


def test_an_example_started_with_a_python_that_lacks_headwater_says_which_one_to_take(tmp_path: Path) -> None:
    # Without site packages there is neither headwater nor pyspark.
    done = subprocess.run(
        [sys.executable, "-S", EXAMPLE / "agent_runs.py", tmp_path / "demo"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "run `make spark`, then this with .venv/bin/python" in done.stderr
    assert not (tmp_path / "demo").exists()


@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="Spark Declarative Pipelines need Spark Connect")
def test_a_pipeline_of_spark_itself_reads_streams_and_writes_them(tmp_path: Path) -> None:
    import pyspark

    shutil.copytree(ROOT / "examples" / "spark_pipeline", tmp_path / "pipeline")
    with Node.started(tmp_path / "node", flags=QUICK) as node:
        body = json.dumps([{"kind": "tokens", "tokens": n} for n in (1, 2, 5_000)]).encode()
        assert node.request("PUT", "/v1/stream/runs/a", JSON, body).status == 201
        program = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
        home = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "PYSPARK_PYTHON": sys.executable}
        spec = tmp_path / "pipeline" / "spark-pipeline.yml"
        changed = spec.read_text().replace("http://127.0.0.1:4437", node.url)
        spec.write_text(changed.replace("/tmp/headwater-spark-pipeline", str(tmp_path)))
        conf = ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]
        printed(spec.parent, program, "run", *conf, **home, SPARK_LOCAL_IP="127.0.0.1")
        with node.connect() as connection:
            assert read_messages(connection, "/v1/stream/alerts/a") == [{"stream": "a", "tokens": 5_000}]
