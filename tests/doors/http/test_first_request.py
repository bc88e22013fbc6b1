"""Which group the first bytes of a connection are about: paths of all kinds, cut anywhere."""

from __future__ import annotations

import pytest

from headwater.doors.http.first_request import group_of_first
from headwater.engine.buckets import DIRECTORY
from tests.support.processes import Processes
from tests.support.processes import run as run_async

GROUPS = 5


def found(target: str, method: str = "GET") -> tuple[int | None, int]:
    """What is found for a target, and the home of the key `notes/a`."""
    told: list[tuple[int | None, int]] = []

    async def body() -> None:
        processes: Processes[None] = Processes(lambda engine: None, 1, GROUPS)
        engine = processes.start(0).engine
        first = f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        told.append((group_of_first(first, engine, 1_024), engine.home("notes/a")))

    run_async(body)
    return told[0]


@pytest.mark.parametrize(
    "target",
    [
        *("/v1/stream/notes/a", "/v1/stream/notes%2Fa?offset=-1", "/notes/a", "/ds/notes/a", "/notes/a/snapshot/now"),
        *(
            "/v0/topics/notes/a",
            "/v0/topics/notes%2Fa",
            "/v0/topics/notes/a/records",
            "/v0/topics/notes/a/diff?limit=1",
        ),
    ],
)
def test_a_stream_is_found_by_each_of_its_paths(target: str) -> None:
    group, home = found(target)
    assert group == home


@pytest.mark.parametrize(("target", "group"), [("/notes", DIRECTORY), ("/__headwater/groups/3/feed?from=1", 3)])
def test_a_bucket_is_with_the_directory_and_a_call_with_the_group_it_names(target: str, group: int) -> None:
    assert found(target)[0] == group


@pytest.mark.parametrize(
    "target",
    [
        "/healthz",
        "/readyz",
        "/metrics",
        "/__headwater/append",
        "/__headwater/groups/5/feed",
        "/notes/streams",
        "/v0/ws",
        "/v0/topics/notes/a/ws",
        "/v0/topics/notes%2Fa/ws?from_seq=1",
        "/v0/topics",
        "/v0/topics/",
        "/v0/topics/..",
        "/v0/sse?topics=notes/a",
        "/v0/routers/a",
        "/v1/stream/..",
        "*",
        "http://x/v1/stream/notes/a",
        "/%zz/a",
    ],
)
def test_what_any_process_answers_or_refuses_is_nobodys(target: str) -> None:
    assert found(target)[0] is None


def test_bytes_that_do_not_tell_are_nobodys() -> None:
    async def body() -> None:
        processes: Processes[None] = Processes(lambda engine: None, 1, GROUPS)
        engine = processes.start(0).engine
        whole = b"GET /v1/stream/notes/a HTTP/1.1\r\n"
        for size in range(len(whole)):
            assert group_of_first(whole[:size], engine, 1_024) is None
        assert group_of_first(whole, engine, 1_024) == engine.home("notes/a")
        assert group_of_first(bytes(range(256)) * 16, engine, 1_024) is None

    run_async(body)
