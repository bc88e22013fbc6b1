"""What a user asks a write for, and where the parts of a row are found: the sink's options and columns.

Owns their names and their checks. Never writes anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.spark.chunks import KIND, LABELS, PAYLOAD, STREAM, BadRows
from headwater.spark.options import parse
from headwater.spark.selection import Selection
from headwater.spark.sending import PATIENCE_S, SinkFailed

EPOCH_MAX = (1 << 53) - 1
RETRY_S_MAX = 86_400.0

OPTIONS = ("url", "token", "producerId", "epochBase", "contentType", "createStreams", "orderBy", "retrySeconds")
OPTIONS_OF_JOBS = ("presorted", "reportFile", "notInto", "states", "ofQuery")
OPTIONS_OF_SPARK = ("path", "checkpointLocation", "queryName")
"""What Spark hands on of its own."""
_TEXTS = ("string", "varchar", "char")
_UNORDERED = ("array", "map", "struct", "variant")
SOURCE_ORDER = ("group", "position", "seq")
"""What orders rows that come from this product's source, when nothing else is said."""


class Options(NamedTuple):
    url: str
    token: str | None
    producer_id: str | None
    epoch_base: int
    content_type: str | None
    create_streams: bool
    order_by: tuple[str, ...]
    presorted: bool
    """Rows come sorted by stream and in order already: nothing is gathered in memory. `to_streams` sorts like that."""
    report_file: str | None
    """A file on the driver's machine that a line of JSON is added to with every commit."""
    not_into: Selection | None
    """What the rows were read from: writing there would go round in circles."""
    retry_s: float
    """How long a write waits for a node that is away or busy."""
    states: bool
    """Each row is all that its stream comes to: it becomes the stream's snapshot, too."""
    of_query: bool
    """A batch write, and of a micro-batch: it goes under that one's name and number."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Raises SinkFailed."""
        found = {name.lower(): value for name, value in given.items()}
        known = {name.lower() for name in (*OPTIONS, *OPTIONS_OF_JOBS, *OPTIONS_OF_SPARK)}
        if unknown := sorted(name for name in given if name.lower() not in known):
            raise SinkFailed(f"there is no option {', '.join(unknown)} for writing: there are {', '.join(OPTIONS)}")
        url = found.get("url")
        if not url:
            raise SinkFailed("the option url is missing: name the node, such as http://127.0.0.1:4437")
        epoch = found.get("epochbase", "0")
        if not (epoch.isascii() and epoch.isdigit() and int(epoch) <= EPOCH_MAX):
            raise SinkFailed(f"epochBase is a whole number from 0, not {epoch!r}")
        return cls(
            url,
            found.get("token"),
            found.get("producerid") or None,
            int(epoch),
            found.get("contenttype") or None,
            _flag(found, "createstreams", True),
            tuple(name.strip() for name in found.get("orderby", "").split(",") if name.strip()),
            _flag(found, "presorted", False),
            found.get("reportfile"),
            parse({"url": url, **json.loads(found["notinto"])}).selection if "notinto" in found else None,
            _retry_s(found.get("retryseconds")),
            _flag(found, "states", False),
            _flag(found, "ofquery", False),
        )


class Columns(NamedTuple):
    """Where the parts of a row are found in the frame."""

    bucket: str | None
    stream: str
    payload: str
    content_type: str | None
    content_type_default: str
    order: tuple[str, ...]
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, schema: Any, options: Options) -> Columns:
        """`schema`: the frame's. Raises SinkFailed when it cannot be written."""
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        has = f"the frame has {', '.join(types) or 'no columns'}"
        if "stream" not in types:
            raise SinkFailed(f"a column `stream` is missing: it names the stream as bucket/name; {has}")
        payload = next((name for name in ("payload", "value") if name in types), None)
        if payload is None:
            raise SinkFailed(f"a column `payload` (or `value`) is missing: it holds the record; {has}")
        bucket = "bucket" if "bucket" in types else None
        kind = KIND if options.content_type is None and KIND in types else None
        for name in (bucket, "stream", kind):
            if name is not None and not types[name].startswith(_TEXTS):
                raise SinkFailed(f"the column `{name}` is a string, not {types[name]}")
        labels = tuple(name for name in LABELS if name in types)
        for name in labels:
            if not types[name].startswith(_TEXTS):
                raise SinkFailed(
                    f"the column `{name}` is a string, not {types[name]}: it becomes the record's {name}; "
                    + ("make it text first, with to_json(…)" if name == "meta" else "drop or rename it if not")
                )
        if types[payload] != "binary" and not types[payload].startswith(_TEXTS):
            raise SinkFailed(
                f"the column `{payload}` is binary or string, not {types[payload]}: "
                "make it text first, with to_json(…) or cast(… as string)"
            )
        order = options.order_by
        if not order and "position" in types and "seq" in types:
            order = tuple(name for name in SOURCE_ORDER if name in types)
        for name in order:
            if name not in types:
                raise SinkFailed(f"orderBy names the column `{name}`, and there is none; {has}")
            if types[name].startswith(_UNORDERED):
                raise SinkFailed(f"orderBy names the column `{name}`, and a value of type {types[name]} has no order")
        is_text = types[payload] != "binary"
        default = options.content_type or ("text/plain" if is_text else "application/octet-stream")
        return cls(bucket, "stream", payload, kind, default, order, labels)

    def pick(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Stream, content type, payload, labels, what orders rows. Raises BadRows for one that cannot be written."""
        streams = batch.column(self.stream).cast(pa.string())
        _no_null(streams, self.stream)
        if self.bucket is not None:
            buckets = batch.column(self.bucket).cast(pa.string())
            _no_null(buckets, self.bucket)
            streams = pc.binary_join_element_wise(buckets, streams, "/")
        payload = batch.column(self.payload).cast(pa.binary())
        _no_null(payload, self.payload, streams)
        empty = pc.index(pc.binary_length(payload), 0).as_py()
        if empty >= 0:
            raise BadRows(f"`{self.payload}` is empty in a row for {streams[empty].as_py()!r}: leave such rows out")
        if self.content_type is None:
            kinds = pa.repeat(pa.scalar(self.content_type_default), batch.num_rows)
        else:
            kinds = batch.column(self.content_type).cast(pa.string()).fill_null(self.content_type_default)
        order = [batch.column(name) for name in self.order]
        labels = [batch.column(name).cast(pa.string()) for name in self.labels]
        names = [STREAM, KIND, PAYLOAD, *self.labels, *(f"order{index}" for index in range(len(order)))]
        return pa.RecordBatch.from_arrays([streams, kinds, payload, *labels, *order], names)


def _retry_s(given: str | None) -> float:
    try:
        found = PATIENCE_S if given is None else float(given)
    except ValueError:
        found = -1.0
    if not 0 < found <= RETRY_S_MAX:
        raise SinkFailed(f"retrySeconds is a number above 0, at most {RETRY_S_MAX:.0f}, not {given!r}")
    return found


def _flag(found: Mapping[str, str], name: str, default: bool) -> bool:
    value = found.get(name, str(default)).lower()
    if value not in ("true", "false"):
        known = {option.lower(): option for option in (*OPTIONS, *OPTIONS_OF_JOBS)}
        raise SinkFailed(f"{known[name]} is true or false, not {value!r}")
    return value == "true"


def _no_null(column: pa.Array, name: str, streams: pa.Array | None = None) -> None:
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        where = "a row" if streams is None else f"a row for {streams[row].as_py()!r}"
        raise BadRows(f"`{name}` is null in {where}: leave such rows out")
