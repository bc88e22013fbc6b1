"""Where a read of single streams begins and ends, as Kafka's users say it: at an offset, at a moment, at the latest.

Owns the options' documents, what they come to on a node, and the test of rows. Never looks at positions but those of
the groups when the read began: ranges of the log say what is looked through, this says what of it is wanted.

    {"orders/1": 5120, "orders/2": "00000000000000005120", "orders/3": "earliest", "orders/4": "latest"}
    {"orders/1": 1767225600000, "orders/2": "2026-01-01T00:00:00Z"}        for the options by timestamp

An offset is the one that HTTP has: a read from it has the record that `GET …?offset=` shows first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadName
from headwater.model.names import flat_key
from headwater.spark.node import DataLoss, Node, NodeRefused
from headwater.spark.ranges import Positions

STREAMS_MAX = 1_000
"""Named in one document: each takes a request, and a look at every row."""
OFFSET_MAX = (1 << 63) - 1
KAFKAS = {-2: "earliest", -1: "latest"}
NAME_BYTES_MAX = 1_024
log = logging.getLogger("headwater.spark")


class Edge(NamedTuple):
    """Where one stream begins or ends."""

    kind: str
    """`earliest`, `latest`, `offset` or `ms`."""
    value: int = 0
    incarnation: int = 0
    """Of an offset, once a node was asked."""


Edges = Mapping[str, Edge]
"""By key."""
_NONE: Edges = {}
_NOWHERE: Positions = {}


class BadDocument(ValueError):
    """The message says what is wrong with it."""


class Bounds(NamedTuple):
    """Which rows of the ranges are wanted. Pickles."""

    starts: Edges = _NONE
    others: Edge | None = None
    """Of streams that are not named; None: all of theirs."""
    ends: Edges = _NONE
    others_end: Edge | None = None
    heads: Positions = _NOWHERE
    """Where the groups were when the read began. Of what came later everything is wanted that does not lie behind an
    end: also of streams that came later."""

    @property
    def columns(self) -> set[str]:
        return {"bucket", "stream", "incarnation", "offset", "ts_ms", "group", "position"}

    def mask(self, rows: pa.Table) -> Any:
        keys = pc.binary_join_element_wise(rows["bucket"], rows["stream"], "/")
        begun = self._either(rows, keys, self.starts, self.others, _begun)
        late = np.zeros(len(rows), dtype=bool)
        group, position = rows["group"].to_numpy(), rows["position"].to_numpy()
        for number, head in self.heads.items():
            late |= (group == number) & (position > head)
        ended = self._either(rows, keys, self.ends, self.others_end, _not_ended)
        return pa.array((begun | late) & ended)

    def _either(self, rows: pa.Table, keys: Any, edges: Edges, others: Edge | None, test: Any) -> Any:
        found = np.ones(len(rows), dtype=bool) if others is None else test(others, rows)
        for key, edge in edges.items():
            of = pc.equal(keys, key).to_numpy()
            if of.any():
                found = np.where(of, test(edge, rows), found)
        return found

    def json(self) -> dict[str, Any]:
        """The beginnings, for a checkpoint."""
        return {
            "starts": {key: list(edge) for key, edge in self.starts.items()},
            "others": None if self.others is None else list(self.others),
            "heads": {str(group): position for group, position in self.heads.items()},
        }


def bounds_of(document: Any) -> Bounds:
    """What `Bounds.json` made. Raises ValueError."""
    try:
        starts = {str(key): _edge(edge) for key, edge in document["starts"].items()}
        others = None if document["others"] is None else _edge(document["others"])
        return Bounds(starts, others, heads={int(group): int(head) for group, head in document["heads"].items()})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"bounds ({error})") from None


def _edge(told: Any) -> Edge:
    kind, value, incarnation = told
    if kind not in ("earliest", "latest", "offset", "ms"):
        raise ValueError("bounds")
    return Edge(kind, int(value), int(incarnation))


def _begun(edge: Edge, rows: pa.Table) -> Any:
    if edge.kind == "offset":
        incarnation = rows["incarnation"].to_numpy()
        mine = (incarnation == edge.incarnation) & (rows["offset"].to_numpy() >= edge.value)
        return mine | (incarnation > edge.incarnation)  # created anew since
    if edge.kind == "ms":
        return rows["ts_ms"].to_numpy() >= edge.value
    return np.full(len(rows), edge.kind == "earliest")


def _not_ended(edge: Edge, rows: pa.Table) -> Any:
    if edge.kind == "offset":
        return (rows["incarnation"].to_numpy() == edge.incarnation) & (rows["offset"].to_numpy() < edge.value)
    if edge.kind == "ms":
        return rows["ts_ms"].to_numpy() < edge.value
    return np.full(len(rows), edge.kind == "latest")


# ---- documents -----------------------------------------------------------------------------------------------------


def names_streams(text: str, beside: set[str]) -> bool:
    """Whether a document is about streams, and not about groups, which are numbers."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and any(not name.isdigit() and name not in beside for name in found)


def edges_of(text: str, moment: Callable[[str], int] | None = None) -> dict[str, Edge]:
    """Where streams begin or end, by key. `moment` reads a date, of a document of moments. Raises BadDocument."""
    example = '{"orders/1": 1767225600000}' if moment is not None else '{"orders/1": 5120, "orders/2": "latest"}'
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not document:
        raise BadDocument(f"expected {example}")
    if len(document) > STREAMS_MAX:
        raise BadDocument(f"at most {STREAMS_MAX} streams can be named")
    groups = [name for name in document if name.isdigit()]
    if groups:
        raise BadDocument(
            f"{groups[0]} is a group, and the others are streams: a stream of that name is _default/{groups[0]}"
        )
    found: dict[str, Edge] = {}
    for name, value in document.items():
        try:
            key = flat_key(name, NAME_BYTES_MAX)
        except BadName as error:
            raise BadDocument(f"it names {name!r}, and {error.message()}") from None
        if isinstance(value, dict):
            raise BadDocument(f"a stream is one sequence without partitions: write {example}")
        found[key] = _moment_edge(value, moment) if moment is not None else _offset_edge(name, value)
    return found


def _offset_edge(name: str, value: Any) -> Edge:
    if isinstance(value, str) and value.lower() in KAFKAS.values():
        return Edge(value.lower())
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value in KAFKAS:
        return Edge(KAFKAS[value])
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= OFFSET_MAX:
        raise BadDocument(f"of {name} it says {value!r}: expected an offset, earliest or latest")
    return Edge("offset", value)


def _moment_edge(value: Any, moment: Callable[[str], int]) -> Edge:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= OFFSET_MAX:
        return Edge("ms", value)
    if isinstance(value, str):
        return Edge("ms", moment(value))
    raise BadDocument(f"expected milliseconds since 1970 or a date, not {value!r}")


# ---- what they come to ---------------------------------------------------------------------------------------------


def located(node: Node, edges: Edges, what: str, fail: bool) -> dict[str, Edge]:
    """The same edges, held against the streams as they are. Raises BadDocument for an offset that a stream has not
    reached, and DataLoss for one whose records are gone."""
    return {
        key: _located(node, key, edge, what, fail) if edge.kind == "offset" else edge for key, edge in edges.items()
    }


def _located(node: Node, key: str, edge: Edge, what: str, fail: bool) -> Edge:
    try:
        head = node.call("HEAD", node.stream_path(key)).headers
    except NodeRefused as refused:
        if refused.status in (404, 410):
            raise BadDocument(f"{what} names offset {edge.value} of {key}, and there is no such stream") from None
        raise
    tail, earliest = int(head["stream-next-offset"]), int(head["stream-earliest-offset"])
    if edge.value > tail:
        raise BadDocument(f"{what} names offset {edge.value} of {key}, and its tail is {tail:020d}")
    if edge.value < earliest and what.startswith("starting"):
        text = f"{what} names offset {edge.value} of {key}, and its earliest offset left is {earliest:020d}"
        if fail:
            raise DataLoss(f"{text}. To begin there set failOnDataLoss to false")
        log.warning("%s: it begins there", text)
    return edge._replace(incarnation=int(head["etag"].strip('"').partition(":")[0]))


def unnamed(edges: Edges, takes: Callable[[str, str], bool]) -> Sequence[str]:
    """Those of the streams that a read does not have."""
    parts = ((key, *key.split("/", 1)) for key in edges)
    return [key for key, bucket, stream in parts if not takes(bucket, stream)]
