"""What somebody reads when a job cannot run: one or two sentences that say why and what to do, and no traceback.
Most of it needs no Spark: texts of Spark's failures stand here as it writes them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from headwater.cli.main import app
from headwater.cli.pipeline import run_app
from headwater.spark import session as sessions
from headwater.spark.failures import advice, cause
from headwater.spark.job_runs import JobRefused
from headwater.spark.launch import refusal, why
from headwater.spark.node import Node as Calls
from headwater.spark.session import SparkMissing, findings, session
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JSON = {"Content-Type": "application/json"}
JOBS = sorted(str(job.name or job.callback.__name__) for job in run_app.registered_commands if job.callback)
JAVA = """An error occurred while calling o132.start.
: java.io.IOException: mkdir of file:/proc/nowhere/9da33ef9 failed
\tat org.apache.hadoop.fs.FileSystem.primitiveMkdir(FileSystem.java:1320)
"""
NO_YARN = """WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" org.apache.spark.SparkException: When running with master 'yarn' either HADOOP_CONF_DIR or YARN_CONF_DIR must be set in the environment.
\tat org.apache.spark.deploy.SparkSubmitArguments.error(SparkSubmitArguments.scala:670)
"""  # noqa: E501
NO_KUBERNETES = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: External scheduler cannot be instantiated
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3380)
Caused by: io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.
Caused by: java.net.ConnectException: Connection refused
"""


def typed(*arguments: str, **env: str) -> Any:
    return CliRunner().invoke(app, ["pipeline", "run", *arguments], env={"COLUMNS": "200", **env})


# ---- where Spark is to run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[2, 3]", "local-cluster[2,1,1024]", "yarn"])
def test_nothing_is_said_against_a_master_that_spark_knows(master: str) -> None:
    assert refusal(master) is None


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("lokal", "'lokal' is no master that Spark knows: write local[*], spark://HOST:PORT, yarn, k8s://… or sc://…"),
        ("local[x]", "is no master that Spark knows"),
        ("127.0.0.1:7077", "is no master that Spark knows"),
        ("spark://somewhere", "write spark://HOST:PORT"),
        ("spark://127.0.0.1:1", "no Spark master answers at spark://127.0.0.1:1"),
        ("spark://127.0.0.1:1,127.0.0.1:2", "start one, or name another with --master"),
        ("sc://127.0.0.1:1/;user_id=me", "no Spark Connect server answers at sc://127.0.0.1:1"),
    ],
)
def test_a_wrong_master_is_told_at_once_in_one_sentence(master: str, told: str) -> None:
    said = refusal(master)
    assert said is not None and told in said and "\n" not in said
    with pytest.raises(SparkMissing) as missing:
        session("messages", master)
    assert str(missing.value) == said


@pytest.mark.parametrize(
    ("error", "held_back", "told"),
    [
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.", NO_YARN, "YARN_CONF_DIR"),
        (NO_KUBERNETES, "", "External scheduler cannot be instantiated: Connection refused"),
        ("stopped", "ERROR All masters are unresponsive! Giving up.\n", "what answers there is no Spark master"),
        ("something else", "", "something else"),
    ],
)
def test_the_reason_of_a_start_that_failed_is_found_in_what_was_held_back(
    error: str, held_back: str, told: str
) -> None:
    failure = RuntimeError(error)
    failure.held_back = held_back  # type: ignore[attr-defined]
    assert told in why(failure) and "\n" not in why(failure)


def test_what_is_missing_is_told_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissing, match=r"java: not found below JAVA_HOME .* apt-get install openjdk-17"):
        session("messages", "local[1]")
    assert not any(finding.what == "java" for finding in findings(connect=True))

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(sessions.importlib.metadata, "version", absent)
    with pytest.raises(
        SparkMissing, match=r"pyspark: not installed\. Install it with: pip install 'headwater\[spark\]'"
    ):
        session("messages", "local[1]")
    told = {finding.what: finding.advice for finding in findings(connect=True)}
    assert "pyspark[connect]" in told["Spark Connect"]


# ---- what goes wrong on the way ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told", "what_to_do"),
    [
        (JAVA, "mkdir of file:/proc/nowhere/9da33ef9 failed", "check the path, its permissions"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03",
            "[PATH_NOT_FOUND] Path does not",
            "a relative",
        ),
        (
            ': org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"',
            "No FileSystem",
            "jars",
        ),
        ("[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. SQLSTATE: 42601", "[PARSE_SYNTAX_ERROR]", "Spark SQL"),
        ("ValueError: no", "ValueError: no", ""),
    ],
)
def test_a_failure_of_spark_is_one_line_and_what_to_do(text: str, told: str, what_to_do: str) -> None:
    found = cause(RuntimeError(text))
    assert found.startswith(told) and "\n" not in found and "SQLSTATE" not in found and "o132" not in found
    assert what_to_do in advice(found)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_checkpoint_that_cannot_be_written_is_told_and_another_one_may_be_named(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    from headwater.spark.jobs.derive import derive
    from headwater.spark.jobs.route import route

    assert node.request("PUT", "/v1/stream/runs/a", JSON, b'[{"n": 1}]').status == 201
    (tmp_path / "file").write_text("in the way")
    wrong = str(tmp_path / "file" / "checkpoint")
    with pytest.raises(JobRefused, match=r"not a directory: .*/file: Spark cannot write there: check the path"):
        route(spark, Calls(node.url), source={"bucket": "runs"}, target="'out/a'", checkpoint=wrong)
    table = {"target": str(tmp_path / "table"), "source": {"bucket": "runs"}, "schema": "n INT"}
    with pytest.raises(JobRefused, match=r"not a directory: .*/file: Spark cannot write there: check the path"):
        derive(spark, Calls(node.url), **table, checkpoint=wrong)  # type: ignore[arg-type]
    done = derive(spark, Calls(node.url), **table, checkpoint=str(tmp_path / "right"))  # type: ignore[arg-type]
    assert done["rows"] == 1


# ---- on the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", JOBS)
def test_every_job_has_help_and_a_verbose_option(job: str) -> None:
    done = typed(job, "--help")
    assert done.exit_code == 0
    assert "--verbose" in done.output and "-v" in done.output and "--master" in done.output


def test_what_nobody_foresaw_is_told_in_two_lines_and_with_verbose_where_it_came_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Calls) -> None:
        raise RuntimeError("the sky fell")

    monkeypatch.setattr(Calls, "groups", broken)
    done = typed("usage")
    assert done.exit_code == 1
    assert done.output.splitlines()[0] == "error: RuntimeError: the sky fell"
    assert "Traceback" not in done.output and "--verbose" in done.output
    done = typed("usage", "-v")
    assert done.exit_code == 1 and "Traceback" in done.output and "error: RuntimeError: the sky fell" in done.output


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "p.toml",
            'name = "p"\n[[table]\n',
            "p.toml is not TOML: Expected ']]' at the end of an array declaration (at line 2",
        ),
        ("p.toml", 'name = "p"\n[source]\nbuckt = "runs"\n', "p.toml: source: Object contains unknown field `buckt`"),
        ("p.py", "x = (\n", "p.py cannot be run: SyntaxError: '(' was never closed (p.py, line 1)"),
        ("p.py", "x = 1\n", "p.py has no `pipeline`"),
    ],
)
def test_a_pipeline_that_cannot_be_read_is_told_with_its_place(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    done = typed("declared", str(tmp_path / name))
    assert done.exit_code == 1 and "Traceback" not in done.output
    assert told in done.output


@pytest.mark.soak  # several JVMs
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_job_says_nothing_of_spark_unless_it_is_asked_to(node: Node, tmp_path: Path) -> None:
    def usage(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headwater", "pipeline", "run", "usage", "--master", "local[2]", *more]
        env = {**os.environ, "HEADWATER_URL": node.url}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)

    quiet = usage()
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert json.loads(quiet.stdout)["outcome"] == "done"
    told = usage("--verbose")
    assert told.returncode == 0 and "log4j" in told.stderr
    assert json.loads(told.stdout)["outcome"] == "done"
