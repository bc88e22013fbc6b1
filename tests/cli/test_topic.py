"""`headwater topic …` against a server of the contract: what is typed, what is printed, which exit code.
Each test has topics of its own; the server is shared."""

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


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with topics_server(tmp_path_factory.mktemp("topics")) as url:
        yield url


@pytest.fixture
def typed(url: str) -> Typed:
    def run(*args: str, stdin: bytes = b"", code: int = 0) -> Result:
        result = CliRunner().invoke(app, ["topic", *args], input=stdin, env={"HEADWATER_URL": url})
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def test_create_write_and_read_give_the_data_back(typed: Typed, name: str) -> None:
    assert typed("create", name).stdout == f"created {name} (application/json)\n"
    assert typed("create", name).stdout == f"exists already: {name} (application/json)\n"
    assert typed("write", name, '{"n": 1.50}').stdout == f"wrote 1 record to {name}, head seq 1\n"
    typed("write", name, "--lines", stdin=b'"two"\n\n[3]\n')
    assert typed("read", name).stdout == '{"n": 1.5}\ntwo\n[3]\n'
    assert typed("read", name, "--from-seq", "1", "--limit", "1").stdout == "two\n"


def test_whole_records_are_json_lines(typed: Typed, name: str) -> None:
    typed("create", name)
    typed("write", name, "1", "--tag", "t", "--node", "n", "--meta", '{"m":1}', "--key", "k")
    (line,) = typed("read", name, "--json").stdout.splitlines()
    record = json.loads(line)
    del record["ts_ms"]
    assert record == {"seq": 1, "data": 1, "tag": "t", "node": "n", "meta": {"m": 1}, "key": "k"}
    assert typed("read", name, "--node", "n").stdout == ""


def test_text_topics_take_text_and_files(typed: Typed, name: str, tmp_path: Path) -> None:
    typed("create", name, "--content-type", "text/plain")
    (tmp_path / "data").write_text("from a file")
    typed("write", name, "not {json")
    typed("write", name, "--file", str(tmp_path / "data"))
    typed("write", name, "-", stdin=b"from stdin")
    assert typed("read", name).stdout == "not {json\nfrom a file\nfrom stdin\n"


def test_show_and_update_tell_and_change_the_configuration(typed: Typed, name: str) -> None:
    typed("create", name, "--cap-records", "5", "--queue", "--lease", "10", "--dead-letter", f"{name}-dead")
    info = json.loads(typed("show", name, "--json").stdout)
    assert info["config"]["cap_records"] == 5
    assert (info["config"]["queue"]["lease_ms"], info["config"]["queue"]["dead_letter"]) == (10_000, f"{name}-dead")
    typed("update", name, "--cap-records", "6", "--ttl", "60")
    shown = typed("show", name).stdout
    assert "cap records\t6\n" in shown and "ttl ms\t60000\n" in shown and "queue lease ms\t10000\n" in shown


def test_topics_are_listed_with_their_state(typed: Typed, name: str) -> None:
    for last in ("b", "a"):
        typed("create", f"{name}-{last}")
    typed("write", f"{name}-a", "1")
    rows = [line.split("\t") for line in typed("list", "--prefix", name).stdout.splitlines()]
    assert [(row[0], row[1], row[4]) for row in rows] == [(f"{name}-a", "1", "1"), (f"{name}-b", "0", "0")]
    lines = typed("list", "--prefix", name, "--json").stdout.splitlines()
    assert [json.loads(line)["topic"] for line in lines] == [f"{name}-a", f"{name}-b"]


def test_records_are_deleted_by_seq_and_tag_and_a_topic_with_all_of_them(typed: Typed, name: str) -> None:
    typed("create", name)
    for tag in ("a", "b", "ab"):
        typed("write", name, f'"{tag}"', "--tag", tag)
    assert typed("delete-records", name, "--before", "2").stdout == f"deleted 1 record of {name}, earliest seq 2\n"
    typed("delete-records", name, "--tag-prefix", "a")
    assert typed("read", name).stdout == "b\n"
    assert typed("delete", name).stdout == f"deleted {name}\n"
    typed("read", name, code=1)


def test_records_that_are_lost_are_told_of_beside_the_data(typed: Typed, name: str) -> None:
    typed("create", name, "--cap-records", "1")
    typed("write", name, "--lines", stdin=b"1\n2\n3\n")
    result = typed("read", name)
    assert result.stdout == "3\n"
    assert result.stderr == "records 1 to 2 are lost: the topic keeps no more\n"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["read", "missing"], 1, "create it with: headwater topic create missing"),
        (["write", "{name}", "{broken"], 2, "the data is not JSON"),
        (["write", "{name}"], 2, "give DATA, - for standard input, or --file FILE"),
        (["write", "{name}", "1", "--lines"], 2, "leave DATA out"),
        (["write", "{name}", "--lines", "--key", "k"], 2, "--key would be the same"),
        (["write", "{name}", "1", "--meta", "[]"], 2, "--meta is not a JSON object"),
        (["create", "{name}", "--cap-records", "7"], 1, "see what it is with: headwater topic show {name}"),
        (["create", "{name}", "--lease", "7"], 2, "add --queue"),
        (["update", "{name}"], 2, "there is nothing to change"),
        (["delete-records", "{name}"], 2, "give --before, --tag or --tag-prefix"),
        (["delete-records", "{name}", "--tag", "a", "--tag-prefix", "b"], 2, "not both"),
        (["show", "/"], 2, "the topic's name is empty"),
        (["show", "x", "--url", "nonsense"], 2, "write the server's address as http://HOST:PORT"),
        (["show", "x", "--url", "http://127.0.0.1:1"], 1, "start it with: headwater serve"),
    ],
)
def test_what_goes_wrong_comes_with_what_to_do(typed: Typed, args: list[str], code: int, said: str) -> None:
    name = "refusals"
    typed("create", name)
    result = typed(*(arg.replace("{name}", name) for arg in args), code=code)
    assert said.replace("{name}", name) in result.stderr
    assert result.stdout == ""


def test_a_tail_prints_what_is_written_later_until_it_is_interrupted(typed: Typed, url: str, name: str) -> None:
    typed("create", name)
    typed("write", name, '"before"')
    command = [sys.executable, "-u", "-m", "headwater", "topic", "tail", name, "--from-seq", "0", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)) as tail:
        try:
            assert tail.stdout is not None
            assert tail.stdout.readline() == b"before\n"
            with Headwater(url) as hw:
                hw.topic(name).write({"later": True})
            assert tail.stdout.readline() == b'{"later": true}\n'
            tail.send_signal(signal.SIGINT)
            assert tail.wait(WAIT_S) == 130
        finally:
            tail.kill()
