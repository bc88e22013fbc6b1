"""Whatever a client sends as a body is taken or refused: no value of any field is a fault of the server."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headwater.config import Settings
from headwater.doors.http.topics.config import Configs
from headwater.doors.http.topics.records import Writes
from headwater.errors import Failure
from headwater.model.commands import Append, Create
from tests.engine import HandClock

engine: Any = SimpleNamespace(clock=HandClock())
writes = Writes(engine, Settings())
configs = Configs(False, 256, 1_024)

texts = st.text(max_size=8) | st.sampled_from(["", "\0", "\ud800", "é", "a\n", "x" * 1_025, "AP8=", "..", "text/plain"])
numbers = st.integers() | st.floats() | st.sampled_from([0, 1, -1, 1 << 53, 1 << 64, -(1 << 63)])
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
LABELS = ["data", "data_base64", "tag", "node", "meta", "key", "deliver_at", "delay_ms", "more"]
records = st.dictionaries(st.sampled_from(LABELS), values, max_size=5)
producers = st.dictionaries(st.sampled_from(["id", "epoch", "seq", "more"]), scalars)
whole_writes = st.fixed_dictionaries(
    {"records": st.lists(records, max_size=3) | values},
    optional={"node": values, "producer": producers | values, "disable_backpressure": values, "more": values},
)
FIELDS = ["content_type", "ttl_ms", "cap_records", "cap_bytes", "discard", "durability", "durable", "priority"]
QUEUE = ["lease_ms", "claim_jitter_ms", "max_deliveries", "dead_letter", "leases_durable", "backoff_ms", "more"]
queues = st.dictionaries(st.sampled_from(QUEUE), scalars, max_size=4)
whole_configs = st.dictionaries(st.sampled_from([*FIELDS, "auto_priority", "more"]), scalars, max_size=4).flatmap(
    lambda some: st.fixed_dictionaries({**{name: st.just(value) for name, value in some.items()}, "queue": queues})
)


def sent(value: Any, ascii: bool) -> bytes:
    return json.dumps(value, ensure_ascii=ascii).encode("utf-8", "surrogatepass")


def judged(body: bytes, is_json: bool) -> None:
    stream: Any = SimpleNamespace(is_json=is_json, media="application/json" if is_json else "text/plain")
    try:
        command = writes.command(stream, writes.decode(body))
    except Failure as failure:
        assert failure.message()
    else:
        assert isinstance(command, Append) and all(command.records)
    try:
        *_, last = writes.in_slices(body)
    except Failure as failure:
        assert failure.message()
    else:
        assert last is not None


def configured(body: bytes) -> None:
    try:
        command = configs.create("_default/t", body)
    except Failure as failure:
        assert failure.message()
    else:
        assert isinstance(command, Create)


@given(whole_writes, st.booleans(), st.booleans())
def test_any_write_is_taken_or_refused(write: Any, is_json: bool, ascii: bool) -> None:
    judged(sent(write, ascii), is_json)


@given(whole_configs | values, st.booleans())
def test_any_configuration_is_taken_or_refused(config: Any, ascii: bool) -> None:
    configured(sent(config, ascii))


@given(st.binary(max_size=60) | st.text('{}[]":,recods \\u\n0', max_size=40).map(str.encode), st.booleans())
def test_any_bytes_are_taken_or_refused(body: bytes, is_json: bool) -> None:
    judged(body, is_json)
    configured(body)
    judged(b'{"records":[' + body, is_json)
    judged(b'{"records":[{"data":' + body + b"}]}", is_json)
