"""What jobs tell of themselves: progress while they run, a summary at the end, and the last runs of all.

Owns the stream those summaries go to. Never fails a job that has done its work: a summary that cannot be recorded is
told and no more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Protocol

from headwater.spark.node import Node, NodeError, NodeRefused

RUNS_STREAM = "_headwater/pipeline-runs"
RUNS_BUCKET = "_headwater"
"""Holds what the pipeline says of itself: sources leave it out unless it is asked for by name."""


class Progress(Protocol):
    def __call__(self, what: str, done: int, total: int | None) -> None:
        """`done` of `total` (None: nobody knows) things of that kind."""
        ...


def silent(what: str, done: int, total: int | None) -> None:
    pass


class JobRefused(Exception):
    """The job cannot do this here, and has changed nothing; `advice` says what to do."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}: {advice}" if advice else message)
        self.message, self.advice = message, advice

    def __reduce__(self) -> tuple[Any, ...]:
        return JobRefused, (self.message, self.advice)


def recorded(job: str, node: Node | None, work: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Runs a job and records how it went; returns its summary, with the seconds it took. Raises what `work` raises."""
    began_s, began_ms = time.monotonic(), time.time_ns() // 1_000_000
    outcome: dict[str, object] = {}
    try:
        outcome = {"outcome": "done", **work()}
        return outcome
    except BaseException as error:
        outcome = {"outcome": "failed", "error": f"{type(error).__name__}: {error}"[:2_000]}
        raise
    finally:
        outcome["seconds"] = round(time.monotonic() - began_s, 3)
        if node is not None:
            _record(node, {"job": job, "began_ms": began_ms, **outcome})


def last_runs(node: Node, count: int = 20) -> list[dict[str, Any]]:
    """The newest runs, newest last. Raises NodeError."""
    try:
        answer = node.call("GET", node.stream_path(RUNS_STREAM))
    except NodeRefused as refused:
        if refused.status == 404:
            return []
        raise
    found: list[dict[str, Any]] = json.loads(answer.body or b"[]")
    while answer.headers.get("stream-up-to-date", "").lower() != "true":
        query = f"?offset={answer.headers['stream-next-offset']}"
        answer = node.call("GET", node.stream_path(RUNS_STREAM) + query)
        found = (found + json.loads(answer.body or b"[]"))[-count:]
    return found[-count:]


def _record(node: Node, run: dict[str, object]) -> None:
    body = json.dumps([run]).encode()
    try:
        node.put_stream(RUNS_STREAM, "application/json")
        node.call("POST", node.stream_path(RUNS_STREAM), body, {"Content-Type": "application/json"})
    except NodeError:
        pass  # the job's own outcome matters more, and says enough if the node is away
