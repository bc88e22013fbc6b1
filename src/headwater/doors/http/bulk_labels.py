"""What an entry of a bulk append says of its records beside their data.

Owns its form: the same fields and limits as those of a write to a topic. Never knows where the records go.
"""

from __future__ import annotations

import msgspec

from headwater.doors.http.bulk_entries import BulkEntry
from headwater.doors.http.topics.records import Labelled, labels_of
from headwater.errors import BadBody
from headwater.model.labels import Labels

_packed_text = msgspec.msgpack.Decoder(str | None).decode
_json_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def labels(entry: BulkEntry, count: int, packed: bool, now_ms: int) -> list[Labels | None] | None:
    """One for each of the entry's `count` records; None: no record has any. Raises BadBody."""
    given = entry.labels
    if given is None:
        return None
    if len(given) != count:
        raise BadBody(f"labels: one for each record, or null; there are {len(given)} for {count} records")
    found = [
        None if one is None else labels_of(index, _read(index, one, packed), None, now_ms)
        for index, one in enumerate(given)
    ]
    return found if any(one is not None for one in found) else None


def _read(index: int, given: Labelled, packed: bool) -> Labelled:
    """With `meta` as the text of a JSON object, which it is for sure then."""
    meta = bytes(given.meta)
    if not meta:
        return given
    try:
        text = _packed_text(meta) if packed else meta.decode()
        if text is not None and text != "null":
            _json_object(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        form = "the text of a JSON object" if packed else "an object"
        raise BadBody(f"records[{index}].meta: expected {form}") from None
    return msgspec.structs.replace(given, meta=msgspec.Raw(b"" if text is None else text.encode()))
