"""The examples of the client's guide, and the example of a job queue, do what they show.
Streams run against a real node, the rest against the server of topics that all tests of the client use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.topics_server import topics_server
from tests.support.node import Node
from tests.test_docs import ADDRESS, EXAMPLES, GUIDES, Example, examples_of, none, output_complaints

PAGE = (GUIDES / "client.md").read_text()
ALL = examples_of(PAGE)
STREAMS = [example for example in ALL if "hw.stream(" in example.code]
OTHERS = [example for example in ALL if example not in STREAMS]


def ran(folder: Path, *command: object, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(example: Example, url: str, folder: Path) -> list[str]:
    (folder / "example.py").write_text(example.code.replace(f"http://{ADDRESS}", url))
    return output_complaints(example, ran(folder, "example.py"))


def test_the_guide_has_examples_of_each_kind() -> None:
    assert len(STREAMS) == 2 and len(OTHERS) == 3


@pytest.mark.parametrize("example", STREAMS, ids=range(len(STREAMS)))
def test_an_example_with_streams_does_what_it_shows(example: Example, node: Node, tmp_path: Path) -> None:
    none(shown(example, node.url, tmp_path))


@pytest.mark.parametrize("example", OTHERS, ids=range(len(OTHERS)))
def test_an_example_with_topics_does_what_it_shows(example: Example, topics_url: str, tmp_path: Path) -> None:
    none(shown(example, topics_url, tmp_path))


@pytest.fixture
def empty_url(tmp_path: Path) -> Iterator[str]:
    """A server of topics of its own: the example counts from its first job."""
    with topics_server(tmp_path / "server") as url:
        yield url


def test_the_job_queue_sends_each_mail_once_and_tells_which_it_cannot(empty_url: str, tmp_path: Path) -> None:
    script, outbox = EXAMPLES / "job_queue" / "emails.py", tmp_path / "outbox"

    def emails(*args: str) -> str:
        return ran(tmp_path, script, empty_url, *args, OUTBOX=str(outbox))

    assert emails("dead") == ""
    assert emails("put", "ada@example.com", "Hello Ada") == "put\n"
    assert emails("put", "ada@example.com", "Hello Ada") == "is waiting already\n"
    assert emails("put", "nobody", "Hello?") == "put\n"
    assert "sent 1 to ada@example.com\n" in emails("drain")
    assert [letter.read_text() for letter in outbox.iterdir()] == ["To: ada@example.com\n\nHello Ada\n"]
    assert emails("dead") == "nobody rejected: 'nobody' is no address\n"
