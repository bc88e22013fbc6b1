"""The Python client of a server: streams, topics, queues and workers, blocking and for asyncio.

    from headwater.client import Headwater

    with Headwater("http://127.0.0.1:4437") as hw:
        hw.stream("orders").create()
        hw.stream("orders").append({"id": 1})

Beside it, for the command line and the Spark package, the parts that they send through: `connection`, `backoff`, `sse`.
It imports nothing of a server. The names below are loaded when they are first used: whoever needs `connection` alone,
such as an executor of Spark, loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.client.clients import AsyncHeadwater, Headwater
    from headwater.client.failures import (
        BadAnswer,
        BadRequest,
        Closed,
        Conflict,
        EpochChanged,
        Fenced,
        Forbidden,
        Full,
        Gone,
        HeadwaterError,
        LeaseLost,
        NotAQueue,
        NotFound,
        SequenceConflict,
        ServerError,
        Throttled,
        TooLarge,
        Unauthorized,
        Unavailable,
    )
    from headwater.client.producers import Producer
    from headwater.client.queues import AsyncJob, AsyncQueue, Job, Queue
    from headwater.client.retries import NO_RETRIES, Retries
    from headwater.client.streams import AsyncStream, Stream
    from headwater.client.tls_files import TlsFiles
    from headwater.client.topics import AsyncRouters, AsyncTopic, Routers, Topic
    from headwater.client.values import (
        Appended,
        Chunk,
        Deleted,
        Diff,
        Draft,
        PeekedJob,
        QueueStats,
        Record,
        RouterInfo,
        StreamHead,
        Tombstone,
        TopicConfig,
        TopicInfo,
        TopicState,
        Written,
    )
    from headwater.client.worker import Reject, Retry, Worker

_PLACES = {
    "clients": ("AsyncHeadwater", "Headwater"),
    "failures": (
        "BadAnswer",
        "BadRequest",
        "Closed",
        "Conflict",
        "EpochChanged",
        "Fenced",
        "Forbidden",
        "Full",
        "Gone",
        "HeadwaterError",
        "LeaseLost",
        "NotAQueue",
        "NotFound",
        "SequenceConflict",
        "ServerError",
        "Throttled",
        "TooLarge",
        "Unauthorized",
        "Unavailable",
    ),
    "producers": ("Producer",),
    "queues": ("AsyncJob", "AsyncQueue", "Job", "Queue"),
    "retries": ("NO_RETRIES", "Retries"),
    "streams": ("AsyncStream", "Stream"),
    "tls_files": ("TlsFiles",),
    "topics": ("AsyncRouters", "AsyncTopic", "Routers", "Topic"),
    "values": (
        "Appended",
        "Chunk",
        "Deleted",
        "Diff",
        "Draft",
        "PeekedJob",
        "QueueStats",
        "Record",
        "RouterInfo",
        "StreamHead",
        "Tombstone",
        "TopicConfig",
        "TopicInfo",
        "TopicState",
        "Written",
    ),
    "worker": ("Reject", "Retry", "Worker"),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "NO_RETRIES",
    "Appended",
    "AsyncHeadwater",
    "AsyncJob",
    "AsyncQueue",
    "AsyncRouters",
    "AsyncStream",
    "AsyncTopic",
    "BadAnswer",
    "BadRequest",
    "Chunk",
    "Closed",
    "Conflict",
    "Deleted",
    "Diff",
    "Draft",
    "EpochChanged",
    "Fenced",
    "Forbidden",
    "Full",
    "Gone",
    "Headwater",
    "HeadwaterError",
    "Job",
    "LeaseLost",
    "NotAQueue",
    "NotFound",
    "PeekedJob",
    "Producer",
    "Queue",
    "QueueStats",
    "Record",
    "Reject",
    "Retries",
    "Retry",
    "RouterInfo",
    "Routers",
    "SequenceConflict",
    "ServerError",
    "Stream",
    "StreamHead",
    "Throttled",
    "TlsFiles",
    "Tombstone",
    "TooLarge",
    "Topic",
    "TopicConfig",
    "TopicInfo",
    "TopicState",
    "Unauthorized",
    "Unavailable",
    "Worker",
    "Written",
]


def __getattr__(name: str) -> Any:
    place = _PLACE_OF.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{place}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACE_OF})
