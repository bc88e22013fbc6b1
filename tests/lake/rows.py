"""Rows for tests of the lake: runs of streams, and what every reader must return for them.
The expected rows are built the slow, obvious way; nothing here uses the writer."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st

from headwater.model.extents import Run
from headwater.model.labels import Labels

LABELS = st.none() | st.builds(
    Labels,
    st.none() | st.sampled_from(["", "red", "größe/\U0001f40e"]),
    st.none() | st.sampled_from(["n1", "n2"]),
    st.none() | st.sampled_from([b"{}", '{"a":["é"]}'.encode()]),
    st.none() | st.sampled_from(["", 'k"1']),
    st.none() | st.integers(0, 1 << 62),
)

MS = 1_794_700_000_000


def run(
    key: str,
    sid: int,
    payloads: Sequence[bytes],
    *,
    start: int = 0,
    seq: int = 0,
    position: int = 1_000,
    content_type: str = "application/json",
    labels: list[Labels | None] | None = None,
) -> Run:
    """A run whose ids and positions follow from where it starts, so that any two records differ."""
    ends = array("Q", list(accumulate(map(len, payloads), initial=start))[1:])
    count = len(payloads)
    return Run(
        key,
        sid,
        content_type,
        seq,
        start,
        list(payloads),
        ends,
        array("Q", [MS + (seq + index) // 3 for index in range(count)]),
        array("Q", [(seq + index) % 3 for index in range(count)]),
        array("Q", [position + 40 * index for index in range(count)]),
        labels,
    )


def label_cells(one: Labels | None) -> dict[str, Any]:
    """What a row says of a record's labels."""
    known = one or Labels()
    job = {
        name: value for name, value in (("key", known.key), ("deliver_at", known.deliver_at_ms)) if value is not None
    }
    return {
        "tag": known.tag,
        "node": known.node,
        "meta": None if known.meta is None else known.meta.decode(),
        "job": json.dumps(job, separators=(",", ":"), ensure_ascii=False) if job else None,
    }


def rows_of(runs: Sequence[Run], group: int) -> list[dict[str, Any]]:
    """The rows that a lake with exactly these runs holds, in the order of a file."""
    rows = []
    for one in runs:
        bucket, stream = one.key.split("/", 1)
        for index, payload in enumerate(one.payloads):
            rows.append(
                {
                    "bucket": bucket,
                    "stream": stream,
                    "incarnation": one.sid,
                    "seq": one.seq_start + index,
                    "offset": one.ends[index] - len(payload),
                    "ts_ms": one.ms[index],
                    "n": one.n[index],
                    "group": group,
                    "position": one.positions[index],
                    "tag": None,
                    "node": None,
                    "content_type": one.content_type,
                    "payload": payload,
                }
                | label_cells(None if one.labels is None else one.labels[index])
            )
    if all(row["meta"] is None and row["job"] is None for row in rows):
        rows = [{name: value for name, value in row.items() if name not in ("meta", "job")} for row in rows]
    return in_order(rows)


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["bucket"], row["stream"], row["incarnation"], row["seq"]))


def some_runs(streams: int = 5, records: int = 20, position: int = 1_000, first: int = 0) -> list[Run]:
    """Short runs of `streams` streams, numbered from `first`."""
    return [
        run(
            f"bucket-{number % 2}/stream/{number}",
            number + 1,
            [f'{{"s":{number},"i":{index}}}'.encode() for index in range(records)],
            position=position + number,
        )
        for number in range(first, first + streams)
    ]


def random_runs(count: int = 40, records: int = 100) -> list[Run]:
    rng = random.Random(7)
    contents = [[rng.randbytes(200) for _ in range(records)] for _ in range(count)]
    return [run(f"bucket/{number:02d}", number, content) for number, content in enumerate(contents)]
