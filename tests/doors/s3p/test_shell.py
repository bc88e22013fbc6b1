"""`headwater s3p`: what is typed becomes bytes, what is answered becomes lines, what is wrong is told in plain words.
It runs the command in this process against a real node, and once in a process and a terminal of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headwater.cli.client import BadUsage
from headwater.cli.main import app
from headwater.cli.s3p import HELP, OPTIONS, USAGE, Session, Typed, completions, parse, shown
from headwater.doors.s3p.commands import Append, Create, Delete, Read, Trim
from tests.doors.s3p import LIMITS, parsed
from tests.doors.s3p.client import Client, s3p_node, s3p_port
from tests.support.node import Node


@pytest.fixture(scope="module")
def address(plain_node: Node) -> Iterator[str]:
    yield f"127.0.0.1:{s3p_port(plain_node)}"


def run(address: str, *commands: str, typed: str | None = None) -> Result:
    flags = [text for command in commands for text in ("-c", command)]
    return CliRunner().invoke(app, ["s3p", address, *flags], input=typed)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("CREATE orders", Create(b"orders")),
        ("create 'two words'", Create(b"two words")),
        ("APPEND orders hello world", Append(b"orders", [b"hello", b"world"], None)),
        ('append orders id=1700 -- rec1 "rec 2"', Append(b"orders", [b"rec1", b"rec 2"], 1700)),
        ("APPEND orders -- ID=1", Append(b"orders", [b"ID=1"], None)),
        ("APPEND orders a=b --", Append(b"orders", [b"a=b", b"--"], None)),
        ("READ orders", Read(b"orders", LIMITS.count_default, 0, 0, 0)),
        ("READ orders COUNT=10 BLOCK=1000 MIN_ID=3-4", Read(b"orders", 10, 1000, 3, 4)),
        ("TRIM orders min_id=3-4", Trim(b"orders", 3, 4)),
        ("delete größe", Delete("größe".encode())),
    ],
)
def test_a_typed_line_is_the_command_it_looks_like(line: str, command: object) -> None:
    typed = parse(line)
    assert typed is not None
    assert parsed(typed.wire) == [command]


@pytest.mark.parametrize(
    ("line", "says", "advice"),
    [
        ("REED orders", "no such command: REED", "did you mean READ?"),
        ("xyzzy", "no such command: xyzzy", "type help"),
        ("READ", "READ needs the name of a stream", USAGE["READ"]),
        ("APPEND orders", "APPEND needs a record", USAGE["APPEND"]),
        ("APPEND orders ''", "a record cannot be empty", USAGE["APPEND"]),
        ("TRIM orders", "TRIM needs MIN_ID", USAGE["TRIM"]),
        ("READ orders COUNT=", "COUNT has no value", USAGE["READ"]),
        ("READ orders LIMIT=3", "READ does not understand 'LIMIT=3'", USAGE["READ"]),
        ('APPEND orders "half', "a quote is not closed", "both sides"),
    ],
)
def test_a_line_that_cannot_be_sent_is_told_how_to_type_it(line: str, says: str, advice: str) -> None:
    with pytest.raises(BadUsage) as refused:
        parse(line)
    assert refused.value.message == says
    assert advice in refused.value.advice


def test_commands_are_run_in_turn_and_their_replies_shown(address: str) -> None:
    result = run(
        address,
        "CREATE shown",
        "APPEND shown ID=17 hello 'two words'",
        "READ shown",
        "TRIM shown MIN_ID=17-1",
        "READ shown COUNT=1",
        "DELETE shown",
    )
    assert result.stdout.splitlines() == ["OK", "17-1", "17-0  hello", "17-1  two words", "OK", "17-1  two words", "OK"]
    assert result.exit_code == 0


def test_errors_are_told_with_advice_and_end_in_code_1(address: str) -> None:
    result = run(address, "READ nowhere")
    assert result.exit_code == 1
    assert result.stderr == "error: stream nowhere does not exist\n  make it with: CREATE nowhere\n"


def test_a_refusal_that_closes_the_connection_does_not_end_the_session(address: str) -> None:
    result = run(address, "READ again COUNT=0", "CREATE again", "DELETE again")
    assert result.stderr.startswith("error: COUNT not in range [1, 10000]\n")
    assert result.stdout.splitlines() == ["OK", "OK"]
    assert result.exit_code == 1


def test_a_connection_that_the_server_closed_for_idleness_is_made_anew(tmp_path: Path) -> None:
    with s3p_node(tmp_path, memory=True, flags=("--s3p-idle-timeout-ms", "10")) as node:
        session = Session(f"127.0.0.1:{s3p_port(node)}")
        with contextlib.closing(session):
            assert session.call(Typed("CREATE", b"a")) == "OK"
            assert select.select([session._socket], [], [], 60)[0], "the server does not close it"
            assert session.call(Typed("DELETE", b"a")) == "OK"


def test_lines_from_a_pipe_are_commands_too(address: str) -> None:
    result = run(address, typed="CREATE piped\n\nAPPEND piped ID=1 x\nREAD piped\nDELETE piped\nquit\nREAD piped\n")
    assert result.stdout.splitlines() == ["OK", "1-0", "1-0  x", "OK"]
    assert result.exit_code == 0


def test_a_wrong_line_ends_in_code_2_and_nothing_is_sent(address: str) -> None:
    assert run(address, "FROBNICATE x").exit_code == 2
    assert run("nowhere", "READ x").exit_code == 2


def test_a_server_that_is_not_there_or_speaks_http_is_told(plain_node: Node) -> None:
    gone = run("127.0.0.1:1", "READ x")
    assert gone.exit_code == 1
    assert gone.stderr.startswith("error: nothing answers at 127.0.0.1:1\n  is the server running")
    http = run(f"127.0.0.1:{plain_node.port}", "READ x")
    assert http.exit_code == 1
    assert "does not answer in S3P" in http.stderr


def test_bytes_that_a_terminal_would_obey_are_shown_as_escapes(address: str, plain_node: Node) -> None:
    with Client.of(plain_node) as client:
        client.create(b"bytes")
        client.append(b"bytes", b"\x1b[2J", b"\xff\xfe", "grün\n".encode(), ms=1)
    lines = run(address, "READ bytes").stdout.splitlines()
    assert lines == ["1-0  \\x1b[2J", "1-1  \\xff\\xfe", "1-2  grün\\n"]


def test_an_empty_result_says_so() -> None:
    assert list(shown([])) == ["(no records)"]


def test_help_shows_every_command(address: str) -> None:
    result = run(address, "help")
    assert result.stdout.strip() == HELP.strip()
    assert all(verb in HELP for verb in USAGE)


def test_the_examples_of_the_help_are_commands() -> None:
    for line in HELP.splitlines():
        example = line.strip().partition("   ")[0]
        if example.split()[0] in USAGE:
            assert parse(example) is not None


@pytest.mark.parametrize(
    ("line", "word", "offered"),
    [
        ("", "", [*(f"{verb} " for verb in USAGE), "help ", "quit "]),
        ("re", "re", ["READ "]),
        ("READ orders ", "", [f"{key}=" for key in OPTIONS["READ"]]),
        ("READ orders m", "m", ["MIN_ID="]),
        ("CREATE x ", "", []),
    ],
)
def test_tab_offers_commands_and_then_options(line: str, word: str, offered: list[str]) -> None:
    assert completions(line, word) == offered


def test_a_person_at_a_terminal_has_a_prompt_and_a_history(plain_node: Node, address: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "HOME": str(tmp_path), "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", "s3p", address],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environ,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""

    def until(mark: bytes) -> None:
        nonlocal seen
        while mark not in seen:
            seen += os.read(ours, 4096)
        seen = seen[seen.index(mark) + len(mark) :]

    try:
        until(b"s3p> ")
        os.write(ours, b"CREATE person\n")
        until(b"OK\r\n")
        os.write(ours, b"APPEND person ID=7 hi\n")
        until(b"7-0\r\n")
        os.write(ours, b"READ person BLOCK=60000 MIN_ID=9-0\n")
        # Only then is it the READ that Ctrl-C interrupts.
        while not plain_node.request("GET", "/__headwater/metrics").json()["s3p_reads_blocked"]:
            pass
        until(b"MIN_ID=9-0\r\n")
        process.send_signal(signal.SIGINT)
        until(b"s3p> ")
        os.write(ours, b"READ person\n")
        until(b"7-0  hi\r\n")
        os.write(ours, b"quit\n")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "CREATE person" in (tmp_path / ".headwater_s3p_history").read_text()
