"""Schemas of buckets as a log and a catalog keep them: the fold of their events, and of checkpoints in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.engine.schema_records import BucketSchema, Forgotten, Put, SchemaEvent, SchemaRecords, encode

buckets = st.sampled_from(["a", "b"])
schemas = st.builds(BucketSchema, st.sampled_from([b"{}", b""]), st.integers(1, 9), st.integers(0, 9))
events = st.builds(Put, buckets, schemas) | st.builds(Forgotten, buckets)
FAILED, KEPT = "a checkpoint failed", "a checkpoint was kept"


@given(st.lists(events | st.sampled_from([FAILED, KEPT]), max_size=30))
def test_a_checkpoint_and_the_events_after_it_are_what_the_events_made(steps: list[SchemaEvent | str]) -> None:
    live = SchemaRecords()
    rows: dict[str, bytes] = {}
    since: list[tuple[int, SchemaEvent]] = []
    for at_ms, step in enumerate(steps):
        if isinstance(step, str):
            changes = live.changes()
            if step == FAILED:
                live.retry(changes)
                continue
            since.clear()
            for name, row in changes.items():
                rows.pop(name, None)
                if row is not None:
                    rows[name] = row
        else:
            live.apply(encode(step), at_ms, at_ms)
            since.append((at_ms, step))
    restored = SchemaRecords()
    restored.restore(dict(rows))
    for at_ms, step in since:
        restored.apply(encode(step), at_ms, at_ms)
    assert restored.by_bucket == live.by_bucket
