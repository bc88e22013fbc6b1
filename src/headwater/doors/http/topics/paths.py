"""Paths of topics: which topic a request is about, and what it wants of it.

Owns the way from a path to a stream's key and back. Never looks a topic up.

    /v0/topics/{topic}              the topic
    /v0/topics/{topic}/{verb}       something of it

A topic is one segment or more; each is percent-decoded, and they are joined by slashes. The last raw segment is a verb
when it is one of `VERBS` and is not the only one: a topic that ends in such a word has that slash encoded
(`a%2Frecords`).
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from headwater.doors.http import headers as parse
from headwater.doors.http.failures import TOPICS as PREFIX
from headwater.errors import BadName
from headwater.model import names
from headwater.model.subscriptions import path_of

TOPICS = PREFIX + b"topics"
BELOW = TOPICS + b"/"
VERBS = frozenset(
    (
        *(b"records", b"diff", b"sse", b"ws", b"delete", b"claim", b"ack"),
        *(b"nack", b"extend", b"work", b"queue", b"peek", b"purge"),
    )
)


WEBSOCKET = "ws"
"""The verb that is served where the connection arrived: it may be about any number of topics."""


class TopicPath(NamedTuple):
    key: str
    verb: str
    """Empty: the topic itself."""


def topic_path(rest: bytes, bytes_max: int) -> TopicPath:
    """What a path means, of which `rest` is what follows /v0/topics/. Raises BadName."""
    topic, slash, last = rest.rpartition(b"/")
    if slash and last in VERBS:
        return TopicPath(topic_key(parse.path_text(topic), bytes_max), last.decode())
    return TopicPath(topic_key(parse.path_text(rest), bytes_max), "")


def topic_key(name: str, bytes_max: int) -> str:
    """The key of the stream that a topic is. Raises BadName."""
    try:
        return names.flat_key(name, bytes_max)
    except BadName as bad:
        raise BadName(bad.reason.replace("stream path", "topic's name")) from None


def topic_name(key: str) -> str:
    """The name of the topic that a stream is, by which `topic_key` finds it again."""
    name = path_of(key)
    return key if name == names.SUBSCRIPTIONS else name


def in_cursor(name: str) -> str:
    """A topic's name where several stand together, each with a number: neither commas nor colons are left in it."""
    return quote(name, safe="/")
