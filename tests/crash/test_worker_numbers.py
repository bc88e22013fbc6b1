"""How many workers and groups: what does not fit is refused in words, what fits has all the data, and a directory from
before there were groups is taken over."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.crash.workers import create, name_in, path_of
from tests.support.http import read_bytes
from tests.support.node import Node, NotReady

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

FORMER = Path(__file__).parent / "directories" / "format-1.tar.gz"
"""Written by the version before groups, and stopped by SIGTERM. Its log holds what came after its one flush."""
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
GROUPS = 4


def refusal(node: Node, *flags: str) -> str:
    node.flags = list(flags)
    with pytest.raises(NotReady) as refused:
        node.start()
    assert refused.value.exit_code == 1, refused.value
    (line,) = refused.value.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_numbers_that_do_not_fit_are_refused_in_words_and_the_others_serve_all_data(tmp_path: Path) -> None:
    names = [name_in(group, GROUPS, "numbers") for group in range(GROUPS)]
    with Node.started(tmp_path, flags=["--workers", "2", "--groups", str(GROUPS)]) as node:
        create(node, names)
        assert node.terminate() == 0
        assert "5 workers cannot share 4 groups" in refusal(node, "--workers", "5")
        assert "was made with 4 groups, not 3" in refusal(node, "--workers", "2", "--groups", "3")
        written = b""
        for workers in ("2", "4", "1", "3"):
            node.flags = ["--workers", workers]
            node.start()
            for name in names:
                with node.connect() as connection:
                    assert read_bytes(connection, path_of(name)) == written
                    append = connection.request("POST", path_of(name), TEXT, f"by {workers}\n".encode())
                    assert append.status == 204, append
            written += f"by {workers}\n".encode()
            # Half of the runs end in a crash: the next number of workers recovers other workers' logs then.
            if workers in ("2", "1"):
                node.kill()
            else:
                assert node.terminate() == 0, node.output()


def test_a_directory_from_before_groups_is_taken_over_with_all_that_is_in_it(tmp_path: Path) -> None:
    with tarfile.open(FORMER) as tar:
        tar.extractall(tmp_path, filter="data")
    data = tmp_path / "data"
    assert (data / "catalog.db").exists() and not (data / "directory.json").exists()
    node = Node(tmp_path)
    assert "2 workers cannot share 1 group" in refusal(node, "--workers", "2")
    assert "was made with 1 group, not 2" in refusal(node, "--groups", "2")
    # The former version can still serve what this one refused.
    assert (data / "catalog.db").exists() and not (data / "directory.json").exists()
    node.flags = ["--workers", "1"]
    try:
        for _ in range(2):  # taken over, and then as it is now
            node.start()
            check_former(node)
            assert json.loads((data / "directory.json").read_bytes()) == {"format": 2, "groups": 1}
            assert not list(data.glob("catalog.db*")) and (data / "catalog" / "0.db").exists()
            assert node.terminate() == 0, node.output()
        node.start()
        append_to_former(node)
    finally:
        node.kill()


def check_former(node: Node) -> None:
    def read(path: str) -> bytes:
        with node.connect() as connection:
            return read_bytes(connection, path)

    assert read(path_of("old/text")) == b"".join(b"line %d\n" % n for n in range(21))
    settled, last = [{"n": n} for n in range(10)], {"n": "after the flush"}
    assert json.loads(node.request("GET", path_of("old/json")).body) == [*settled, last]
    assert json.loads(node.request("GET", path_of("old/fork")).body) == [*settled[:5], {"n": "fork"}]
    assert read(path_of("old/closed")) == b"the end\n"
    assert node.request("HEAD", path_of("old/closed")).header("stream-closed") == "true"
    snapshot = node.request("GET", "/ds/bucket/board/snapshot/00000000000000000006")
    assert (snapshot.status, snapshot.body) == (200, b"a picture")
    subscription = node.request("GET", path_of("__ds/subscriptions/sub")).json()
    assert subscription["pattern"] == "old/**" and subscription["wake_stream"] == "wakes"
    assert {one["path"]: int(one["acked_offset"]) for one in subscription["streams"]} == {
        "old/text": 150,
        "old/json": 80,
        "old/fork": 52,
        "old/closed": 8,
    }


def append_to_former(node: Node) -> None:
    """Producers and forks go on where they were."""
    producer = {**TEXT, "Producer-Id": "p", "Producer-Epoch": "0"}
    again = node.request("POST", path_of("old/text"), {**producer, "Producer-Seq": "20"}, b"line 20\n")
    assert again.status == 204, again
    following = node.request("POST", path_of("old/text"), {**producer, "Producer-Seq": "21"}, b"line 21\n")
    assert following.status == 200, following
    assert node.request("POST", path_of("old/fork"), JSON, b'{"n": "more"}').status == 204
    assert node.request("POST", "/__headwater/flush", (), b"").status == 200
    assert json.loads(node.request("GET", path_of("old/fork")).body)[-2:] == [{"n": "fork"}, {"n": "more"}]
    assert node.request("PUT", path_of("old/new"), TEXT, b"new\n").status == 201
