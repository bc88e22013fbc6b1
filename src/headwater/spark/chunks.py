"""Rows into the chunks that a sink appends: sorted, cut the same way every time, a chunk belongs to one stream.

Owns the order of rows and the cuts, which a replayed batch must repeat to the byte. Never sends anything.

    rows of a partition --by stream, then order, then payload--> runs of one stream --cut--> Chunk 0, 1, 2… per stream
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# What a chunk holds at most. Never change these: a batch that was half written before an upgrade is cut again after
# it, and the node would take other chunks with the same numbers for duplicates.
CHUNK_ROWS_MAX = 1_000
CHUNK_BYTES_MAX = 1024 * 1024

PARTITION_BYTES_MAX = 1_500_000_000
"""What is sorted in one worker's memory. Arrow counts a column's bytes with 31 bits."""

STREAM, KIND, PAYLOAD = "stream", "content_type", "payload"
LABELS = ("tag", "node", "meta", "key")
"""Columns that say something of a record beside its payload; a frame may have some of them."""


class Label(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a record carries, as the node takes it. Cuts do not depend on it."""

    tag: str | None = None
    node: str | None = None
    meta: str | None = None
    key: str | None = None


class BadRows(Exception):
    """Rows that no sink can write; the message says which, and what to do."""


class Chunk(NamedTuple):
    """What one append brings to one stream."""

    stream: str
    content_type: str
    seq: int
    """0, 1, 2… within its stream and batch."""
    records: list[bytes]
    bytes_count: int
    labels: list[Label | None] | None = None
    """One for each record; None: the frame has no such columns."""


class Cutter:
    """Cuts runs of one stream's records into chunks. Where batches of rows end makes no difference to the cuts."""

    def __init__(self) -> None:
        self._stream: str | None = None
        self._content_type = ""
        self._seq = 0
        self._records: list[bytes] = []
        self._labels: list[Label | None] = []
        self._bytes = 0

    def feed(
        self,
        stream: str,
        content_type: str,
        data: bytes,
        offsets: np.ndarray,
        start: int,
        end: int,
        labels: pa.RecordBatch | None = None,
    ) -> Iterator[Chunk]:
        """The chunks that are complete with rows `start` to `end`; records lie in `data` at `offsets`."""
        if stream != self._stream:
            yield from self.finish()
            self._stream, self._content_type = stream, content_type
        elif content_type != self._content_type:
            raise BadRows(
                f"{stream!r} cannot hold both {self._content_type!r} and {content_type!r}: name one content type"
            )
        at = start
        while at < end:
            byte_limit = offsets[at] + CHUNK_BYTES_MAX - self._bytes
            fits = int(np.searchsorted(offsets, byte_limit, side="right")) - 1
            until = min(end, at + CHUNK_ROWS_MAX - len(self._records), fits)
            if until <= at:
                if self._records:
                    yield self._cut()
                    continue
                until = at + 1  # longer than a chunk: it stands alone
            marks = offsets[at : until + 1].tolist()
            self._records += [data[a:b] for a, b in pairwise(marks)]
            self._bytes += marks[-1] - marks[0]
            if labels is not None:
                self._labels += _labels_of(labels, at, until)
            at = until
            if len(self._records) == CHUNK_ROWS_MAX or self._bytes >= CHUNK_BYTES_MAX:
                yield self._cut()

    def finish(self) -> Iterator[Chunk]:
        """The last chunk of the stream, if anything is left of it; the next one begins with chunk 0."""
        if self._records:
            yield self._cut()
        self._stream, self._seq = None, 0

    def _cut(self) -> Chunk:
        labels = self._labels or None
        chunk = Chunk(self._stream or "", self._content_type, self._seq, self._records, self._bytes, labels)
        self._seq += 1
        self._records, self._labels, self._bytes = [], [], 0
        return chunk


def chunks_of_sorted(batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
    """Chunks of rows that come sorted by stream already. Holds one batch at a time. Raises BadRows when they do not."""
    cutter = Cutter()
    last: str | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        names, codes = _encoded(batch.column(STREAM))
        kind_names, kind_codes = _encoded(batch.column(KIND))
        payload = batch.column(PAYLOAD)
        data, offsets = _bytes_of(payload)
        found = [name for name in LABELS if name in batch.schema.names]
        labels = batch.select(found) if found else None
        changes = codes[1:] != codes[:-1]
        if len(kind_names) > 1:
            changes |= kind_codes[1:] != kind_codes[:-1]
        marks = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
        for start, end in pairwise(marks):
            stream = names[codes[start]]
            if last is not None and stream < last:
                raise BadRows(f"rows are not sorted by stream: {stream!r} comes after {last!r}")
            last = stream
            yield from cutter.feed(stream, kind_names[kind_codes[start]], data, offsets, start, end, labels)
    yield from cutter.finish()


def sorted_rows(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """All rows, by stream, then by the columns that order them, then by payload and labels. Raises BadRows.

    Equal in everything is equal for every reader: the result does not depend on how rows arrived.
    """
    held: list[pa.RecordBatch] = []
    bytes_count = 0
    for batch in batches:
        bytes_count += batch.nbytes
        if bytes_count > PARTITION_BYTES_MAX:
            raise BadRows(
                f"a partition of a batch has more than {PARTITION_BYTES_MAX} bytes: make batches smaller "
                "(maxBytesPerTrigger, maxOffsetsPerTrigger) or partitions more"
            )
        if batch.num_rows:
            held.append(batch)
    if not held:
        return []
    table = pa.Table.from_batches(held).combine_chunks()
    carried = [STREAM, KIND, PAYLOAD, *(name for name in LABELS if name in table.column_names)]
    keys = [_ranks(table.column(index)) for index in range(len(carried), table.num_columns)]
    streams = _ranks(table.column(STREAM))
    order = np.lexsort([*reversed(keys), streams])
    same = np.ones(len(order) - 1, dtype=bool)
    for key in [streams, *keys]:
        same &= key[order[1:]] == key[order[:-1]]
    if same.any():
        tied = np.zeros(len(order), dtype=bool)
        tied[1:] |= same
        tied[:-1] |= same
        rows = order[tied]
        last = []
        for name in carried[2:]:
            ranks = np.zeros(len(order), dtype=np.int64)
            ranks[rows] = _ranks(table.column(name).take(pa.array(rows)))
            last.append(ranks)
        order = np.lexsort([*reversed(last), *reversed(keys), streams])
    return table.select(carried).take(pa.array(order)).combine_chunks().to_batches()


def _ranks(column: pa.ChunkedArray) -> np.ndarray:
    """Numbers that sort like the values, equal ones equal; null first."""
    if pa.types.is_integer(column.type) and not column.null_count and column.type != pa.uint64():
        return column.to_numpy().astype(np.int64, copy=False)
    if pa.types.is_string(column.type) and not column.null_count:
        # Streams repeat: ranking the few names is several times quicker than ranking every row.
        encoded = column.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        ranks = pc.rank(encoded.dictionary, tiebreaker="dense").to_numpy().astype(np.int64)
        return ranks[encoded.indices.to_numpy(zero_copy_only=False)]
    ranks = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    if column.null_count:
        ranks[column.is_null().to_numpy()] = 0
    return ranks


def _encoded(column: pa.Array) -> tuple[list[str], np.ndarray]:
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)


def _labels_of(columns: pa.RecordBatch, start: int, end: int) -> list[Label | None]:
    rows = columns.slice(start, end - start).to_pylist()
    return [Label(**row) if any(value is not None for value in row.values()) else None for row in rows]


def _bytes_of(payload: pa.Array) -> tuple[bytes, np.ndarray]:
    """The records' bytes in one piece and where each begins; a record i lies between offsets i and i + 1."""
    _, marks, data = payload.buffers()
    offsets = np.frombuffer(marks, dtype=np.int32)[payload.offset : payload.offset + len(payload) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    found = b"" if data is None else data.slice(first, last - first).to_pybytes()
    return found, offsets.astype(np.int64) - first
