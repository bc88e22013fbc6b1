"""Labels of records as columns of the lake, and back.

Owns how labels are spelt there. Never decides which files have which columns: `layout` says what there is, writers say
when it is needed.

    Labels(tag, node, meta, key, deliver_at_ms)  <->  tag | node | meta | job: {"key": …, "deliver_at": …}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa

from headwater.lake.layout import LABELS
from headwater.model.labels import Labels


class _Job(msgspec.Struct, omit_defaults=True):
    key: str | None = None
    deliver_at: int | None = None


_job = msgspec.json.Decoder(_Job).decode
_text = msgspec.json.Encoder().encode


def need_wide(labels: Iterable[Labels | None] | None) -> bool:
    """Whether some of them need the columns that were added."""
    return labels is not None and any(one is not None and _beyond(one) for one in labels)


def _beyond(one: Labels) -> bool:
    return one.meta is not None or one.key is not None or one.deliver_at_ms is not None


def columns(labels: Sequence[Labels | None] | None, count: int, wide: bool) -> dict[str, pa.Array]:
    """The columns of `count` records, by name. None: no record has any labels."""
    names = LABELS if wide else LABELS[:2]
    if labels is None:
        return dict.fromkeys(names, pa.nulls(count, pa.string()))
    found: dict[str, list[str | bytes | None]] = {name: [] for name in names}
    for one in labels:
        known = one or _NONE
        found["tag"].append(known.tag)
        found["node"].append(known.node)
        if wide:
            found["meta"].append(known.meta)
            found["job"].append(_spelt(known))
    return {name: pa.array(values, pa.string()) for name, values in found.items()}


def _spelt(one: Labels) -> bytes | None:
    return None if one.key is None and one.deliver_at_ms is None else _text(_Job(one.key, one.deliver_at_ms))


def labels_of(rows: pa.Table) -> list[Labels | None] | None:
    """What `columns` was given; None when no row has any. Raises ValueError for rows that it did not make."""
    known = [rows[name] for name in LABELS if name in rows.column_names]
    if all(column.null_count == len(rows) for column in known):
        return None
    absent: list[str | None] = [None] * len(rows)
    lists = [rows[name].to_pylist() if name in rows.column_names else absent for name in LABELS]
    return [_labels(*values) for values in zip(*lists, strict=True)]


def _labels(tag: str | None, node: str | None, meta: str | None, job: str | None) -> Labels | None:
    if tag is None and node is None and meta is None and job is None:
        return None
    told = _Job() if job is None else _job(job)
    return Labels(tag, node, None if meta is None else meta.encode(), told.key, told.deliver_at)


_NONE = Labels()
