"""`headwater queue …` against a server of the contract: what is typed, what is printed, which exit code.
Each test has queues of its own; the server is shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headwater.cli.main import app
from headwater.client import Headwater
from tests.client.topics_server import topics_server

WAIT_S = 60
Typed = Callable[..., Result]
TASKS = """
import sys
from headwater.client import Reject

def shout(job):
    print(job.data.upper(), flush=True)

def fail(job):
    raise Reject("never")

def wait(job):
    print("begun", flush=True)
    sys.stdin.readline()
    print("ended", flush=True)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with topics_server(tmp_path_factory.mktemp("topics")) as url:
        yield url


@pytest.fixture
def typed(url: str) -> Typed:
    def run(*args: str, stdin: bytes = b"", code: int = 0) -> Result:
        result = CliRunner().invoke(app, ["queue", *args], input=stdin, env={"HEADWATER_URL": url})
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def name(url: str, request: pytest.FixtureRequest) -> str:
    with Headwater(url) as hw:
        hw.queue(request.node.name).create(max_deliveries=1, dead_letter=f"{request.node.name}-dead")
    return str(request.node.name)


@pytest.fixture
def working(url: str, tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    (tmp_path / "tasks.py").write_text(TASKS)

    def start(*args: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headwater", "queue", "work", *args]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "HEADWATER_URL": url}, **pipes)

    return start


def test_jobs_are_put_counted_and_looked_at(typed: Typed, name: str) -> None:
    assert typed("put", name, '{"to":"ada"}', "--key", "k", "--tag", "t").stdout == f"put 1 job into {name}\n"
    assert typed("put", name, "1", "--key", "k").stdout == f"put 1 job into {name}, 1 of them there already\n"
    typed("put", name, "--lines", "--delay", "3600", stdin=b"1\n2\n")
    counts = json.loads(typed("stats", name, "--json").stdout)
    # A job for later may count as ready until a claim comes to it.
    assert (counts["ready"] + counts["delayed"], counts["leased"]) == (3, 0)
    assert "leased\t0\n" in typed("stats", name).stdout
    row = typed("peek", name, "--limit", "1").stdout.rstrip("\n").split("\t")
    assert row[0] == "1" and row[2:] == ["0", "k", "t", '{"to": "ada"}']
    (line,) = typed("peek", name, "--state", "ready", "--limit", "1", "--json").stdout.splitlines()
    assert json.loads(line)["data"] == {"to": "ada"}
    assert typed("peek", name, "--state", "leased").stdout == ""
    assert typed("purge", name).stdout == f"deleted 3 jobs of {name}\n"


def test_a_function_works_the_jobs_and_dead_ones_are_put_back(
    typed: Typed, name: str, working: Callable[..., subprocess.Popen[bytes]]
) -> None:
    typed("put", name, '"hello"')
    with working(name, "tasks:fail", "--until-empty") as failing:
        out, err = failing.communicate(timeout=WAIT_S)
    assert out == f"ran 1 job of {name}\n".encode(), err
    assert b"job 1 is rejected: never" in err
    assert typed("retry", name, "--max", "5").stdout == f"put 1 job back into {name}\n"
    with working(name, "tasks:shout", "--until-empty", "--concurrency", "2") as shouting:
        out, err = shouting.communicate(timeout=WAIT_S)
    assert out == f"HELLO\nran 1 job of {name}\n".encode(), err


def test_a_signal_lets_the_running_job_end(
    typed: Typed, name: str, working: Callable[..., subprocess.Popen[bytes]]
) -> None:
    typed("put", name, '"x"')
    with working(name, "tasks:wait") as worker:
        try:
            assert worker.stdin is not None and worker.stdout is not None and worker.stderr is not None
            assert worker.stdout.readline() == b"begun\n"
            worker.send_signal(signal.SIGTERM)
            for line in worker.stderr:
                if b"stopping" in line:
                    break
            out, err = worker.communicate(b"go\n", timeout=WAIT_S)
        finally:
            worker.kill()
    assert out == f"ended\nran 1 job of {name}\n".encode(), err
    assert worker.returncode == 0
    assert json.loads(typed("stats", name, "--json").stdout)["leased"] == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["stats", "missing"], 1, "create it with: headwater topic create missing --queue"),
        (["stats", "plain"], 1, "make it one with: headwater topic update plain --queue"),
        (["put", "plain", "1"], 1, "make it one with: headwater topic update plain --queue"),
        (["retry", "letterless"], 1, "--dead-letter TOPIC"),
        (["work", "letterless", "nowhere"], 2, "write it as MODULE:FUNCTION"),
        (["work", "letterless", "no_such_module:f"], 2, "cannot import no_such_module"),
        (["work", "letterless", "json:nothing"], 2, "json has no function nothing"),
        (["work", "missing", "json:dumps"], 1, "create it with: headwater topic create missing --queue"),
        (["put", "letterless", "{"], 2, "the data is not JSON"),
    ],
)
def test_what_goes_wrong_comes_with_what_to_do(typed: Typed, url: str, args: list[str], code: int, said: str) -> None:
    with Headwater(url) as hw:
        hw.topic("plain").create()
        hw.queue("letterless").create()
    assert said in typed(*args, code=code).stderr
