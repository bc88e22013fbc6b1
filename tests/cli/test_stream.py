"""`headwater stream …` against a real node: what is typed, what is printed, which exit code.
Each test has streams of its own; the node keeps nothing and is shared."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headwater.cli.main import app
from tests.support.node import Node

WAIT_S = 60


class Typed:
    """Runs commands against one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.env = {"HEADWATER_URL": node.url}

    def __call__(self, *args: str, stdin: bytes = b"", code: int = 0) -> Result:
        result = CliRunner().invoke(app, ["stream", *args], input=stdin, env=self.env)
        assert result.exit_code == code, result.output
        return result

    def process(self, *args: str, unbuffered: bool = False, **more: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, *(["-u"] if unbuffered else []), "-m", "headwater", "stream", *args]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen(command, env={**os.environ, **self.env}, **streams)


@pytest.fixture(scope="module")
def hw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    with Node.started(tmp_path_factory.mktemp("node"), memory=True) as node:
        yield Typed(node)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def text(hw: Typed, name: str) -> str:
    hw("create", name, "--content-type", "text/plain")
    return name


@pytest.fixture
def messages(hw: Typed, name: str) -> str:
    hw("create", name, "--content-type", "application/json")
    return name


def test_create_append_and_read_give_the_bytes_back(hw: Typed, name: str) -> None:
    created = hw("create", name, "hello", "--content-type", "text/plain").stdout
    assert created == f"created {name} (text/plain), next offset {5:020}\n"
    assert hw("append", name, " world").stdout == f"appended 6 bytes to {name}, next offset {11:020}\n"
    assert hw("read", name).stdout_bytes == b"hello world"


def test_creating_again_says_that_nothing_was_added(hw: Typed, text: str) -> None:
    again = hw("create", text, "more", "--content-type", "text/plain").stdout
    assert again.startswith(f"exists already, nothing added: {text}")


def test_creating_with_another_type_is_refused_with_what_to_look_at(hw: Typed, text: str) -> None:
    result = hw("create", text, "--content-type", "image/png", code=1)
    assert result.stderr.startswith("error: ")
    assert f"headwater stream head {text}" in result.stderr
    assert result.stdout == ""


def test_a_stream_can_be_created_closed_with_all_it_will_ever_hold(hw: Typed, name: str) -> None:
    assert hw("create", name, "all", "--closed").stdout.endswith(", closed\n")
    assert hw("read", name).stdout == "all"
    result = hw("append", name, "more", code=1)
    assert "a closed one stays closed" in result.stderr


def test_lifetime_and_durability_are_shown_by_head(hw: Typed, name: str) -> None:
    hw("create", name, "--ttl", "3600", "--durability", "memory")
    facts = json.loads(hw("head", name, "--json").stdout)
    assert facts == {
        "stream": name,
        "url": f"{hw.node.url}/v1/stream/{name}",
        "content_type": "application/octet-stream",
        "next_offset": f"{0:020}",
        "closed": False,
        "ttl_s": 3600,
        "durability": "memory",
    }


def test_an_absolute_end_is_kept_and_excludes_a_lifetime(hw: Typed, name: str) -> None:
    hw("create", name, "--expires-at", "2999-01-01T00:00:00Z")
    assert json.loads(hw("head", name, "--json").stdout)["expires_at"].startswith("2999-01-01T00:00:00")
    result = hw("create", name, "--ttl", "1", "--expires-at", "2999-01-01T00:00:00Z", code=2)
    assert "exclude each other" in result.stderr


def test_head_prints_lines_that_a_script_can_split(hw: Typed, text: str) -> None:
    lines = dict(line.split("\t") for line in hw("head", text).stdout.splitlines())
    assert lines["content type"] == "text/plain"
    assert lines["closed"] == "false"


def test_data_comes_from_standard_input_or_a_file(hw: Typed, name: str, tmp_path: Path) -> None:
    blob = bytes(range(256)) * 50
    path = tmp_path / "blob"
    path.write_bytes(blob)
    hw("create", name, "-", stdin=blob)
    hw("append", name, "-", stdin=blob)
    hw("append", name, "--file", str(path))
    assert hw("read", name).stdout_bytes == blob * 3


def test_what_to_append_must_be_said_once(hw: Typed, text: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    assert "DATA" in hw("append", text, code=2).stderr
    assert "DATA" in hw("append", text, "x", "--file", str(path), code=2).stderr
    assert "DATA" in hw("append", text, "x", "--lines", code=2).stderr


def test_lines_of_text_read_back_as_the_same_lines(hw: Typed, text: str) -> None:
    lines = b"one\n\ntwo\r\nlast"
    assert hw("append", text, "--lines", stdin=lines).stdout.startswith("appended 4 records to ")
    assert hw("read", text).stdout_bytes == lines


def test_lines_from_a_file_may_close_the_stream_behind_them(hw: Typed, text: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("a\nb\n")
    assert hw("append", text, "--lines", "--file", str(path), "--close").stdout.endswith(", closed\n")
    assert json.loads(hw("head", text, "--json").stdout)["closed"] is True


def test_each_line_of_json_is_one_message_even_if_it_is_an_array(hw: Typed, messages: str) -> None:
    hw("append", messages, "--lines", stdin=b'{"a": 1}\n\n[2, 3]\n"x"\n')
    assert hw("read", messages, "--json").stdout == '{"a":1}\n[2,3]\n"x"\n'


@pytest.mark.parametrize("line", [b"1, 2", b"{", b"]", b"nope"])
def test_a_line_that_is_not_json_stops_with_its_number(hw: Typed, name: str, line: bytes) -> None:
    stream = f"not-json-{line.hex()}"
    hw("create", stream, "--content-type", "application/json")
    result = hw("append", stream, "--lines", stdin=b"0\n" + line + b"\n3\n", code=1)
    assert result.stderr.startswith("error: line 2 is not JSON")
    assert hw("read", stream, "--json").stdout == "0\n"


def test_an_array_is_one_message_per_element_and_reads_as_one_array(hw: Typed, messages: str) -> None:
    hw("append", messages, '[1.50, {"b":2,"a":1}]')
    hw("append", messages, "--json", "3")
    assert json.loads(hw("read", messages).stdout) == [1.5, {"b": 2, "a": 1}, 3]
    assert hw("read", messages, "--json").stdout == '1.50\n{"b":2,"a":1}\n3\n'


def test_json_output_of_a_stream_that_holds_no_json_is_refused(hw: Typed, text: str) -> None:
    assert "holds text/plain, not JSON" in hw("read", text, "--json", code=2).stderr


def test_a_json_append_to_a_text_stream_says_where_to_see_its_type(hw: Typed, text: str) -> None:
    result = hw("append", text, "--json", "1", code=1)
    assert f"headwater stream head {text}" in result.stderr


def test_reading_begins_at_an_offset(hw: Typed, text: str) -> None:
    offset = hw("append", text, "first").stdout.split()[-1]
    hw("append", text, "second")
    assert hw("read", text, "--offset", offset).stdout == "second"
    assert hw("read", text, "--offset", "now").stdout == ""
    assert hw("read", text, "--from-start").stdout == "firstsecond"
    assert hw("read", text, "--from-start", "--offset", offset, code=2).stdout == ""


def test_a_malformed_offset_is_refused_by_the_server(hw: Typed, text: str) -> None:
    assert hw("read", text, "--offset", "no/offset", code=1).stderr.startswith("error: ")


def test_reading_into_a_file_says_how_to_go_on(hw: Typed, text: str, tmp_path: Path) -> None:
    hw("append", text, "kept")
    path = tmp_path / "out"
    said = hw("read", text, "--output", str(path)).stdout
    assert said == f"wrote 4 bytes of {text} to {path}, next offset {4:020}\n"
    assert path.read_bytes() == b"kept"


def test_a_refused_read_leaves_the_output_file_alone(hw: Typed, name: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"precious")
    hw("read", name, "--output", str(path), code=1)
    assert path.read_bytes() == b"precious"


def test_an_output_file_that_cannot_be_written_is_said_so(hw: Typed, text: str, tmp_path: Path) -> None:
    result = hw("read", text, "--output", str(tmp_path / "no" / "dir"), code=1)
    assert result.stderr.startswith("error: cannot write ")


def test_a_repeated_append_of_a_producer_is_said_to_be_there_already(hw: Typed, text: str) -> None:
    again = ("append", text, "x", "--producer", "p", "--producer-seq", "0")
    assert hw(*again).stdout.startswith("appended 1 byte to ")
    assert hw(*again).stdout.startswith("already there, nothing appended to ")
    assert hw("read", text).stdout == "x"


def test_a_producer_is_told_how_to_continue(hw: Typed, text: str) -> None:
    producer = ("append", text, "x", "--producer", "p")
    hw(*producer, "--producer-seq", "0", "--epoch", "3")
    assert "--producer-seq 1" in hw(*producer, "--producer-seq", "7", "--epoch", "3", code=1).stderr
    assert "--epoch 4 --producer-seq 0" in hw(*producer, "--producer-seq", "1", "--epoch", "1", code=1).stderr
    assert "belong together" in hw(*producer, code=2).stderr


def test_lines_of_a_producer_can_be_sent_twice_and_are_stored_once(hw: Typed, text: str) -> None:
    for _ in range(2):
        hw("append", text, "--lines", "--producer", "p", "--producer-seq", "0", stdin=b"a\nb\n")
    assert hw("read", text).stdout == "a\nb\n"


def test_stream_seq_must_grow_and_does_not_go_with_lines(hw: Typed, text: str) -> None:
    hw("append", text, "x", "--seq", "b")
    assert hw("append", text, "x", "--seq", "a", code=1).stderr.startswith("error: ")
    assert "--seq" in hw("append", text, "--lines", "--seq", "c", code=2).stderr


def test_appending_may_close_and_closing_again_is_fine(hw: Typed, text: str) -> None:
    assert hw("append", text, "end", "--close").stdout.endswith(", closed\n")
    assert hw("close", text).stdout == f"closed {text}, next offset {3:020}, closed\n"


def test_deleting_needs_no_answer_where_nobody_can_give_one(hw: Typed, text: str) -> None:
    assert hw("delete", text).stdout == f"deleted {text}\n"
    assert hw("delete", text, "--yes", code=1).stderr.startswith("error: ")


@pytest.mark.parametrize("command", [("head",), ("read",), ("tail",), ("close",), ("append", "x")])
def test_a_stream_that_is_not_there_is_told_how_to_create(hw: Typed, command: tuple[str, ...]) -> None:
    result = hw(command[0], "it's missing", *command[1:], code=1)
    assert result.stderr.startswith("error: no such stream")
    assert """headwater stream create 'it'"'"'s missing'""" in result.stderr


def test_names_of_any_characters_are_carried_through(hw: Typed) -> None:
    odd = "bücket/näme with ?&#%41 and/slash"
    hw("create", odd, "x")
    assert hw("read", odd).stdout == "x"


def test_header_values_with_line_ends_are_refused_before_sending(hw: Typed, name: str) -> None:
    hw("create", name, "--content-type", "a/b\r\nX-Evil: 1", code=2)
    hw("head", name, code=1)


def test_a_server_that_is_not_there_is_told_how_to_start() -> None:
    result = CliRunner().invoke(app, ["stream", "read", "x", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr == (
        "error: nothing answers at http://127.0.0.1:1\n  is the server running? start it with: headwater serve\n"
    )


def test_an_address_that_is_none_is_a_usage_error() -> None:
    result = CliRunner().invoke(app, ["stream", "read", "x"], env={"HEADWATER_URL": "nowhere"})
    assert result.exit_code == 2
    assert result.stderr.startswith("error: 'nowhere' is not the address of a server")


def test_listing_names_the_streams_of_a_bucket(hw: Typed) -> None:
    for stream in ("loaded/a-1", "loaded/a-2", "loaded/b"):
        hw("create", stream, "12345", "--content-type", "text/plain")
    hw("close", "loaded/b")
    rows = [line.split("\t") for line in hw("ls", "loaded").stdout.splitlines()]
    assert [row[0] for row in rows] == ["a-1", "a-2", "b"]
    assert [row[1].lower() for row in rows] == ["open", "open", "closed"]
    assert {(row[2], int(row[3])) for row in rows} == {("text/plain", 5)}
    found = [json.loads(line) for line in hw("ls", "loaded", "--prefix", "a-", "--json").stdout.splitlines()]
    assert [stream["stream_id"] for stream in found] == ["a-1", "a-2"]


SPEAKING = "shapes/a\x1b]0;x\x07\x9bm"


@pytest.mark.parametrize("arguments", [("ls", "shapes"), ("ls", "shapes", "--json"), ("head", SPEAKING)])
def test_a_stored_name_cannot_speak_to_the_terminal(hw: Typed, arguments: tuple[str, ...]) -> None:
    hw("create", SPEAKING)
    said = hw(*arguments).stdout
    assert said and all(line.replace("\t", " ").isprintable() for line in said.splitlines())


def test_listing_without_a_bucket_lists_the_default_one(hw: Typed, text: str) -> None:
    assert text in [line.split("\t")[0] for line in hw("ls").stdout.splitlines()]


def test_listing_a_bucket_that_is_not_there_is_an_error(hw: Typed) -> None:
    assert hw("ls", "no-such-bucket", code=1).stderr.startswith("error: ")


@pytest.mark.parametrize("bucket", ["cli", "Ünder", "x"])
def test_ls_lists_a_bucket_whatever_its_name(hw: Typed, bucket: str) -> None:
    hw("create", f"{bucket}/one", "--content-type", "text/plain")
    assert [line.split("\t")[0] for line in hw("ls", bucket).stdout.splitlines()] == ["one"]


def test_tail_of_a_closed_stream_prints_it_and_ends(hw: Typed, name: str) -> None:
    blob = bytes(range(256))
    hw("create", name, "-", "--closed", stdin=blob)
    assert hw("tail", name, "--offset", "-1").stdout_bytes == blob


def test_tail_of_text_keeps_spaces_and_line_ends(hw: Typed, text: str) -> None:
    for data in ("  two spaces", "\n", "line\n\n", " end"):
        hw("append", text, data)
    hw("close", text)
    assert hw("tail", text, "--offset", "-1").stdout == "  two spaces\nline\n\n end"


def test_tail_prints_json_messages_one_per_line(hw: Typed, messages: str) -> None:
    hw("append", messages, '[{"a": [1, 2]}, 2]')
    hw("append", messages, "3", "--close")
    assert hw("tail", messages, "--offset", "-1").stdout == '{"a":[1,2]}\n2\n3\n'


@pytest.fixture
def tailing(hw: Typed, text: str) -> Iterator[subprocess.Popen[bytes]]:
    """A tail of `text` in a process of its own, known to be following because it has printed something."""
    hw("append", text, "!")
    process = hw.process("tail", text, "--offset", "-1")
    try:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"!"
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def test_tail_follows_live_and_ends_with_the_stream(hw: Typed, text: str, tailing: subprocess.Popen[bytes]) -> None:
    assert tailing.stdout is not None
    hw("append", text, "live")
    assert tailing.stdout.read(4) == b"live"
    hw("append", text, "end", "--close")
    out, err = tailing.communicate(timeout=WAIT_S)
    assert (out, tailing.returncode) == (b"end", 0)
    assert err.decode() == f"{text} is closed\n"


def test_ctrl_c_ends_a_tail_quietly_with_130(tailing: subprocess.Popen[bytes]) -> None:
    tailing.send_signal(signal.SIGINT)
    out, err = tailing.communicate(timeout=WAIT_S)
    assert (tailing.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_slow_reader_of_the_output_gets_every_byte(hw: Typed, text: str, unbuffered: bool) -> None:
    lines = b"".join(b"%d\n" % number for number in range(200_000))
    hw("append", text, "-", stdin=lines)
    process = hw.process("read", text, unbuffered=unbuffered)
    assert process.stdout is not None
    with process.stdout as pipe:
        assert b"".join(iter(lambda: os.read(pipe.fileno(), 1_000), b"")) == lines
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_reader_that_stops_listening_causes_no_traceback(hw: Typed, text: str, unbuffered: bool) -> None:
    hw("append", text, "-", stdin=b"y\n" * 500_000)
    process = hw.process("read", text, unbuffered=unbuffered)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(2) == b"y\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(WAIT_S) == 1


def test_tail_goes_on_where_it_was_when_its_connections_are_ended(tmp_path: Path) -> None:
    flags = ("--sse-lifetime-ms", "40", "--sse-keepalive-ms", "20")
    with Node.started(tmp_path, memory=True, flags=flags) as node:
        hw = Typed(node)
        hw("create", "s", "0;", "--content-type", "text/plain")
        process = hw.process("tail", "s", "--offset", "-1")
        try:
            assert process.stdout is not None
            sent = [f"{number};" for number in range(1, 20)]
            seen = process.stdout.read(2)
            for data in sent:
                hw("append", "s", data)
                seen += process.stdout.read(len(data))
            hw("close", "s")
            rest, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
            process.wait(WAIT_S)
        assert (seen + rest).decode() == "0;" + "".join(sent)
        assert process.returncode == 0


class Terminal:
    """A command that believes it talks to a person."""

    def __init__(self, hw: Typed, *args: str) -> None:
        self._master, slave = pty.openpty()
        self.process = hw.process(*args, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.seen = ""

    def until(self, text: str) -> None:
        while text not in self.seen:
            self._more()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        try:
            while True:
                self._more()
        except (OSError, EOFError):
            pass
        os.close(self._master)
        return self.process.wait(WAIT_S)

    def _more(self) -> None:
        chunk = os.read(self._master, 4_096)
        if not chunk:
            raise EOFError(self.seen)
        self.seen += chunk.decode()


@pytest.mark.parametrize(("typed", "code", "left"), [("n\n", 1, 0), ("y\n", 0, 1)])
def test_on_a_terminal_deleting_asks_first(hw: Typed, typed: str, code: int, left: int) -> None:
    stream = f"asked-{code}"
    hw("create", stream)
    terminal = Terminal(hw, "delete", stream)
    terminal.until(f"Delete {stream} and all its data?")
    terminal.type(typed)
    assert terminal.end() == code
    hw("head", stream, code=left)


def test_on_a_terminal_yes_is_not_asked_for(hw: Typed, text: str) -> None:
    terminal = Terminal(hw, "delete", text, "--yes")
    assert terminal.end() == 0
    assert terminal.seen.strip() == f"deleted {text}"


def test_on_a_terminal_head_is_a_table_and_reading_ends_its_line(hw: Typed, text: str) -> None:
    hw("append", text, "no line end")
    table = Terminal(hw, "head", text)
    assert table.end() == 0
    assert "│" in table.seen and "text/plain" in table.seen
    read = Terminal(hw, "read", text)
    assert read.end() == 0
    assert read.seen == "no line end\r\n"


def test_nothing_to_append_is_told_with_what_to_give(hw: Typed, text: str) -> None:
    for args, stdin in ((("append", text, ""), b""), (("append", text, "-"), b"")):
        said = hw(*args, stdin=stdin, code=2).output
        assert "nothing to append" in said and "--close" in said


def test_a_door_that_does_not_speak_http_is_told_as_such(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"-ERR_BAD_FORMAT expected an array\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        result = CliRunner().invoke(app, ["stream", "head", "x", "--url", url])
        thread.join(WAIT_S)
    assert result.exit_code == 1 and "does not answer in HTTP" in result.output
