"""Keys and public buckets as a log and a catalog keep them: the fold of their events, and of checkpoints in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.engine import access_records as module
from headwater.engine.access_records import (
    AccessEvent,
    AccessKey,
    AccessRecords,
    BucketClosed,
    BucketOpened,
    KeyExpires,
    KeyMade,
    KeyRevoked,
    encode,
)
from headwater.security.principals import parse_scopes

ids = st.sampled_from(["a", "b", "c"])
keys = st.builds(
    AccessKey,
    st.sampled_from(["n", "m"]),
    st.binary(min_size=32, max_size=32),
    st.sampled_from([parse_scopes(["admin"]), parse_scopes(["read:a", "append:b/x*"])]),
    st.integers(0, 9),
    st.just("t"),
    st.none() | st.integers(0, 99),
)
events = (
    st.builds(KeyMade, ids, keys)
    | st.builds(KeyRevoked, ids)
    | st.builds(KeyExpires, ids, st.integers(0, 99))
    | st.builds(BucketOpened, ids, st.integers(0, 9))
    | st.builds(BucketClosed, ids)
)
FAILED, KEPT = "a checkpoint failed", "a checkpoint was kept"


@given(st.lists(events | st.sampled_from([FAILED, KEPT]), max_size=30))
def test_checkpoints_hold_what_the_events_made(steps: list[AccessEvent | str]) -> None:
    live = AccessRecords()
    rows: dict[str, bytes] = {}
    since: list[tuple[int, AccessEvent]] = []
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
        again = AccessRecords()
        again.restore(rows)
        for then_ms, event in since:
            again.apply(encode(event), then_ms, then_ms)
        assert (again.keys, again.public) == (live.keys, live.public)


def test_only_so_many_revoked_keys_are_told_of() -> None:
    live = AccessRecords()
    before, module.ENDED_MAX = module.ENDED_MAX, 2
    try:
        for at, name in enumerate("abcd"):
            live.apply(encode(KeyMade(name, AccessKey("n", b"h" * 32, (), 0, "t"))), at, at)
            live.apply(encode(KeyRevoked(name)), at, at)
    finally:
        module.ENDED_MAX = before
    assert list(live.keys) == ["c", "d"]
    assert live.changes()["key/a"] is None
