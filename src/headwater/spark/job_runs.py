"""What jobs tell of themselves: progress while they run, a summary at the end, and the last runs of all.

Owns the stream those summaries go to, and what of a job's arguments they hold. Never fails a job that has done its
work, and never holds a secret.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from headwater.spark.lake_place import Place
from headwater.spark.node import Node, NodeError, NodeRefused

RUNS_STREAM = "_headwater/pipeline-runs"
RUNS_BUCKET = "_headwater"
"""Holds what the pipeline says of itself: sources leave it out unless it is asked for by name."""
RUNS_MAX = 100_000
RUNS_PER_APPEND = 100
DONE, FINDINGS, FAILED = "done", "findings", "failed"
"""How a run ended: with nothing to say; with findings that a person should look at; with an error."""
PATIENCE_S = 10.0
TOLD_MAX = 2_000
COUNT_TOLD = 100
_SECRET = re.compile(r"token|secret|password|passwd|credential|access.?key|account.?key|private.?key|\bsas\b", re.I)
_USER = re.compile(r"://[^/@\s]*@")
"""Name and password in a URL."""
_NO_INPUTS = ("spark", "node", "progress", "dry_run")
_running: ContextVar[bool] = ContextVar("_running", default=False)
_dry: ContextVar[bool] = ContextVar("_dry", default=False)

Work = Callable[..., dict[str, object]]


class Progress(Protocol):
    def __call__(self, what: str, done: int, total: int | None) -> None:
        """`done` of `total` (None: not known) things of that kind."""
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


def recorded(job: str, omit: Container[str] = (), **shown: Callable[[Any], object]) -> Callable[[Work], Work]:
    """Makes a function a job: its summary says how it went, how long that took and what it was given, and is recorded.

    On the node that it is given as `node`, if there is one. `omit` names arguments that are not recorded; `shown`
    says how others are written. A job that another one runs is a part of that one. Raises what the function raises.

    With `dry_run`, or within `dry_runs`, the function gets that argument and a node that is only looked at, the summary
    says so, and nothing is recorded. A function without such an argument is refused then.
    """

    def wrap(work: Work) -> Work:
        signature = inspect.signature(work)

        @functools.wraps(work)
        def run(*args: Any, **named: Any) -> dict[str, object]:
            if _running.get():
                return work(*args, **named)
            given = signature.bind(*args, **named)
            given.apply_defaults()
            inputs = {
                name: _told(shown[name](value) if name in shown else value)
                for name, value in given.arguments.items()
                if value is not None and name not in _NO_INPUTS and name not in omit
            }
            node: Node | None = given.arguments.get("node")
            dry_run = _dry.get() or bool(given.arguments.get("dry_run")) or (node is not None and node.looks_only)
            if dry_run:
                if "dry_run" not in signature.parameters:
                    raise JobRefused(f"{job} cannot say what it would do", "leave out the dry run")
                given.arguments["dry_run"] = True
                if node is not None:
                    given.arguments["node"] = node = node.looking_only()
            if node is not None:
                inputs = {"url": _told(node.url), **inputs}
            mark = _running.set(True)
            try:
                return _run(job, node, inputs, dry_run, lambda: work(*given.args, **given.kwargs))
            finally:
                _running.reset(mark)

        return run

    return wrap


@contextmanager
def dry_runs(asked: bool) -> Iterator[None]:
    """Jobs of the block only say what they would do, when it is asked; those that cannot are refused."""
    mark = _dry.set(asked or _dry.get())
    try:
        yield
    finally:
        _dry.reset(mark)


def _run(job: str, node: Node | None, inputs: dict[str, object], dry_run: bool, work: Work) -> dict[str, object]:
    began_s, began_ms = time.monotonic(), time.time_ns() // 1_000_000
    outcome: dict[str, object] = {}
    try:
        outcome = {"outcome": DONE, **({"dry_run": True} if dry_run else {}), **work()}
        return outcome
    except BaseException as error:
        outcome = {"outcome": FAILED, "error": f"{type(error).__name__}: {error}"[:2_000]}
        raise
    finally:
        outcome["inputs"] = inputs
        outcome["seconds"] = round(time.monotonic() - began_s, 3)
        if node is not None and not dry_run:
            _record(node, {"job": job, "began_ms": began_ms, **outcome})


def _told(value: Any) -> object:
    """An argument as a summary shows it: without secrets, and short."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _told(one) for name, one in value.items() if not _SECRET.search(str(name))}
    if isinstance(value, Place):
        return _told(value.url)
    if isinstance(value, str | os.PathLike):
        return _USER.sub("://", str(value))[:TOLD_MAX]
    if isinstance(value, Iterable):
        return [_told(one) for one in list(value)[:COUNT_TOLD]]
    if callable(value):
        return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', '?')}"
    return str(value)[:TOLD_MAX]


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


def hidden(value: Any, names: Mapping[str, str]) -> Any:
    """The same without the names: each is replaced by what stands for it."""
    if isinstance(value, str):
        # The longest first: one may be the beginning of another.
        for name in sorted(names, key=len, reverse=True):
            value = value.replace(name, names[name])
        return value
    if isinstance(value, dict):
        return {hidden(key, names): hidden(one, names) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(one, names) for one in value]
    return value


def names_any(value: Any, names: Iterable[str]) -> bool:
    """True when any of the names is anywhere in a run."""
    known = dict.fromkeys(names, "")
    return bool(hidden(value, known) != value)


def rewrite_runs(node: Node) -> bool:
    """The stream of runs is made anew without the hidden names, when a run has one. Returns whether it was.

    What another job records in that moment may be lost. The old stream is deleted, its records are dead rows then.
    """
    runs = last_runs(node, RUNS_MAX)
    if not any(names_any(run, node.hidden) for run in runs):
        return False
    node.call("DELETE", node.stream_path(RUNS_STREAM), repeat=True)
    for at in range(0, len(runs), RUNS_PER_APPEND):
        _append(node, [hidden(run, node.hidden) for run in runs[at : at + RUNS_PER_APPEND]])
    return True


def _record(node: Node, run: dict[str, object]) -> None:
    try:
        _append(Node(node.url, node.token, PATIENCE_S), [hidden(run, node.hidden)])
    except NodeError:
        pass  # the job's own outcome matters more, and says enough if the node is away


def _append(node: Node, runs: list[Any]) -> None:
    body = json.dumps(runs).encode()
    node.put_stream(RUNS_STREAM, "application/json")
    node.call("POST", node.stream_path(RUNS_STREAM), body, {"Content-Type": "application/json"})
