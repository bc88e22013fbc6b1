"""A request and what is decided about its answer, without any I/O: plans that both transports carry out.

A plan is a generator. It yields what is to be done (`Send` a request, `Pause`), is told what came of it, and returns
its result. A walk is a plan that also yields results one by one, as `Give`. The same plans run over blocking sockets
(`sync_transport`) and on an event loop (`async_transport`).

Owns when a request is sent again. Invariants: a write that carries no producer is sent again only when the server
certainly did nothing; the numbers of a producer are never used for two different writes; a transport that leaves a
plan early closes it, and then a write under way counts as one with an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from headwater.client.connection import Answer, Failed
from headwater.client.failures import HeadwaterError, SequenceConflict, no_answer, not_understood, refusal
from headwater.client.producers import Producer, Stamp
from headwater.client.retries import Patience, Retries

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """One request. The transport answers with an Answer, whatever its status, or with a Failed."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    wait_s: float = 0.0
    """How long the server may hold back its answer, beyond the time that any answer may take."""
    fresh: bool = False
    """Needs a new connection: the server may end a kept one just as the request is sent."""


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Give(Generic[T]):
    """One result of a walk."""

    item: T


Step: TypeAlias = Send | Pause
Reply: TypeAlias = Answer | Failed | None
Plan: TypeAlias = Generator[Step, Reply, T]
Walk: TypeAlias = Generator[Step | Give[T], Reply, None]


@dataclass(frozen=True, slots=True)
class Sent:
    """An answer of 2xx. `repeated`: an earlier attempt may have had its effect already."""

    answer: Answer
    repeated: bool


def sent(request: Send, retries: Retries, *, repeatable: bool = True) -> Plan[Sent]:
    """Sends until there is an answer of 2xx, a failure that lasts, or no patience left. Raises HeadwaterError.

    Not `repeatable`: it is sent again only while the server certainly did nothing.
    """
    patience, doubt = Patience(retries), False
    while True:
        reply = yield request
        if isinstance(reply, Answer) and reply.status < 300:
            return Sent(reply, doubt)
        failure = refusal(reply) if isinstance(reply, Answer) else no_answer(_failed(reply))
        doubt = doubt or failure.outcome_unknown
        failure.outcome_unknown = doubt
        pause_s = patience.pause_s(failure.retry_after_s) if failure.passing else None
        if pause_s is None or (doubt and not repeatable):
            raise failure
        yield Pause(pause_s)


def produced(request: Callable[[Stamp | None], Send], producer: Producer | None, retries: Retries) -> Plan[Sent]:
    """One write with the next numbers of the producer, which move on when the server has it. Raises HeadwaterError.

    The caller holds the producer's lock for as long as the plan runs. A producer that the server expects other numbers
    of (the stream was deleted and created again, or lost what it held in memory) begins a new epoch, once.
    """
    if producer is None:
        return (yield from sent(request(None), retries, repeatable=False))
    try:
        return (yield from _numbered(request, producer, retries))
    except SequenceConflict as why:
        if producer.given or why.outcome_unknown:
            raise
    producer.renew()
    return (yield from _numbered(request, producer, retries))


def _numbered(request: Callable[[Stamp | None], Send], producer: Producer, retries: Retries) -> Plan[Sent]:
    certain = False
    try:
        done = yield from sent(request(producer.stamp()), retries)
        producer.accepted()
        certain = True
        return done
    except HeadwaterError as why:
        certain = not why.outcome_unknown
        raise
    finally:
        # Also when the plan is closed while a request is under way.
        if not certain:
            producer.renew()


def _failed(reply: Reply) -> Failed:
    if isinstance(reply, Failed):
        return reply
    raise TypeError(f"a transport answered a request with {reply!r}")


# --- what requests are made of --------------------------------------------------------------------------------


VERBS = frozenset(
    ["records", "diff", "sse", "ws", "delete", "claim", "ack", "nack", "extend", "work", "queue", "peek", "purge"]
)


def stream_path(name: str) -> str:
    """`name` or `bucket/name` to its path. Raises ValueError for an empty name."""
    if not name.strip("/"):
        raise ValueError("the stream's name is empty")
    return "/v1/stream/" + quote(name, safe="/", errors="surrogateescape")


def topic_path(name: str, verb: str = "") -> str:
    """The path of a topic, or of a verb below it. Raises ValueError for an empty name.

    A last part that is itself a verb would be taken for one: then the slash in front of it is encoded.
    """
    if not name.strip("/"):
        raise ValueError("the topic's name is empty")
    above, _, last = name.rpartition("/")
    if last in VERBS:
        encoded = f"{quote(above or '_default', safe='/', errors='surrogateescape')}%2F{last}"
    else:
        encoded = quote(name, safe="/", errors="surrogateescape")
    return f"/v0/topics/{encoded}" + (f"/{verb}" if verb else "")


def with_query(path: str, **query: str | int | None) -> str:
    """The path with those parameters that have a value."""
    named = {name: str(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(named, errors='surrogateescape')}" if named else path


def json_body(value: object) -> bytes:
    """Raises TypeError or ValueError for what JSON cannot hold."""
    return msgspec.json.encode(value)


def json_request(method: str, path: str, value: object, *, wait_s: float = 0.0, fresh: bool = False) -> Send:
    return Send(method, path, {"Content-Type": "application/json"}, json_body(value), wait_s, fresh)


def understood(answer: Answer, kind: type[T]) -> T:
    """The body as a value of `kind`. Raises BadAnswer."""
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as why:
        raise not_understood(str(why)) from None


def present(**values: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}
