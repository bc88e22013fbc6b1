"""Routers of real nodes: source, destination and definition in different processes, and SIGKILL while records are
forwarded. Every record arrives once, and in order."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.workers import (
    Writer,
    all_get_on,
    check_records,
    create,
    name_in,
    path_of,
    until,
    workers,
    writing,
)
from tests.support.http import ConnectionEnded
from tests.support.node import Node

RECORDS = 5_000
BATCH = 500
JSON = {"Content-Type": "application/json"}


def define(node: Node, name: str, source: str, dest: str) -> dict[str, Any]:
    body = json.dumps({"source": source, "dest": dest}).encode()
    answer = node.request("PUT", f"/v0/routers/{name}", JSON, body)
    assert answer.status in (200, 201), answer
    found: dict[str, Any] = answer.json()
    return found


def write(node: Node, source: str, first: int, count: int = BATCH) -> None:
    answer = node.request("POST", path_of(source), JSON, json.dumps(list(range(first, first + count))).encode())
    assert answer.status == 204, answer


def copies(node: Node, dest: str) -> list[int]:
    """What the destination holds; nothing while it is not there, or its process is starting."""
    found: list[int] = []
    offset = "-1"
    while True:
        try:
            answer = node.request("GET", f"{path_of(dest)}?offset={offset}")
        except (ConnectionEnded, OSError):
            return []
        if answer.status != 200:
            assert answer.status in (404, 503), answer
            return []
        found += answer.json()
        if answer.header("stream-up-to-date") == "true":
            return found
        offset = str(answer.header("stream-next-offset"))


def test_source_dest_and_definition_live_in_different_processes(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=("--workers", "3", "--groups", "3")) as node:
        source, dest = name_in(1, 3, "town"), name_in(2, 3, "town")
        assert node.request("PUT", path_of(source), JSON).status == 201
        write(node, source, 0)
        define(node, "across", source, dest)
        until(lambda: len(copies(node, dest)) == BATCH, "the first copies")
        write(node, source, BATCH)
        until(lambda: len(copies(node, dest)) == 2 * BATCH, "the rest of them")
        assert copies(node, dest) == list(range(2 * BATCH))
        for number in range(3):
            # Whichever process a connection belongs to, the definition is found.
            with node.connect() as connection:
                connection.request("HEAD", path_of(name_in(number, 3, "town")))
                state = connection.request("GET", "/v0/routers/across").json()["state"]
                assert (state["source_head"], state["lost"]) == (2 * BATCH, 0)
                assert len(connection.request("GET", "/v0/routers").json()["routers"]) == 1
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr(), node.output()
        node.start()
        write(node, source, 2 * BATCH)
        until(lambda: len(copies(node, dest)) == 3 * BATCH, "copies after a restart")
        assert copies(node, dest) == list(range(3 * BATCH))


@pytest.mark.parametrize("kill", [0, 1, 2], ids=["its definition", "its source", "its dest"])
def test_a_process_is_killed_while_records_are_forwarded(tmp_path: Path, kill: int) -> None:
    with Node.started(tmp_path, flags=("--workers", "3", "--groups", "3")) as node:
        source, dest = name_in(1, 3, "town"), name_in(2, 3, "town")
        assert node.request("PUT", path_of(source), JSON).status == 201
        for first in range(0, RECORDS, BATCH):
            write(node, source, first)
        define(node, "across", source, dest)
        until(lambda: copies(node, dest), "the first copies")
        victim = workers(node)[kill]
        os.kill(victim, signal.SIGKILL)
        until(lambda: workers(node).get(kill, victim) != victim, "another process in its place")
        until(lambda: len(copies(node, dest)) >= RECORDS, "all copies")
        assert copies(node, dest) == list(range(RECORDS))


@pytest.mark.parametrize("pauses_s", [(0.0, 0.01, 0.03, 0.06), (0.005, 0.02, 0.04, 0.08)])
def test_a_node_is_killed_again_and_again_while_it_forwards(tmp_path: Path, pauses_s: tuple[float, ...]) -> None:
    """The pauses only say when the kills come: what is asserted holds for any."""
    with Node.started(tmp_path, flags=("--checkpoint-interval-ms", "20")) as node:
        assert node.request("PUT", path_of("town/source"), JSON).status == 201
        for first in range(0, RECORDS, BATCH):
            write(node, "town/source", first)
        define(node, "r", "town/source", "town/dest")
        for pause_s in pauses_s:
            time.sleep(pause_s)
            node.restart()
        write(node, "town/source", RECORDS)
        until(lambda: len(copies(node, "town/dest")) >= RECORDS + BATCH, "all copies")
        assert copies(node, "town/dest") == list(range(RECORDS + BATCH))


def test_processes_are_killed_one_after_another_while_clients_write(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=("--workers", "3", "--groups", "3")) as node:
        source, dest = name_in(1, 3, "town"), name_in(2, 3, "town")
        create(node, [source])
        define(node, "across", source, dest)
        writers = [Writer(node, f"writer-{number}", source, source) for number in range(2)]
        with writing(writers):
            all_get_on(writers, 30)
            for member in (2, 0, 1):
                victim = workers(node)[member]
                os.kill(victim, signal.SIGKILL)
                until(lambda member=member, victim=victim: workers(node).get(member, victim) != victim, "another one")
                all_get_on(writers, 30)

        def read(path: str) -> bytes:
            answer = node.request("GET", f"{path}?offset=-1")
            assert answer.status == 200, answer
            return answer.body

        check_records(read, writers)
        written = read(path_of(source))
        until(lambda: len(read(path_of(dest))) >= len(written), "all copies")
        assert read(path_of(dest)) == written
