"""Definitions of routers as a log and a catalog keep them: the fold of their events, and of checkpoints in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.engine.router_definitions import Added, Passed, Removed, RouterDefinitions, RouterEvent, encode
from headwater.model.routers import PassedOver, RouterConfig, TagFilter

names = st.sampled_from(["a", "b", "c"])
configs = st.builds(
    RouterConfig,
    st.sampled_from(["x/1", "x/2"]),
    st.sampled_from(["y/1", "y/2"]),
    st.none() | st.builds(TagFilter, st.text(max_size=3), st.booleans()),
    st.booleans(),
)
noted = st.builds(PassedOver, st.integers(0, 9), st.text(max_size=3), st.integers(0, 99), st.integers(0, 9))
events = st.builds(Added, names, configs) | st.builds(Removed, names) | st.builds(Passed, names, noted)
FAILED, KEPT = "a checkpoint failed", "a checkpoint was kept"


def state(definitions: RouterDefinitions) -> dict[str, object]:
    return {name: (one.config, one.created_ms, one.passed) for name, one in definitions.by_name.items()}


@given(st.lists(events | st.sampled_from([FAILED, KEPT]), max_size=30))
def test_checkpoints_hold_what_the_events_made(steps: list[RouterEvent | str]) -> None:
    live = RouterDefinitions()
    rows: dict[str, bytes] = {}
    since: list[tuple[int, RouterEvent]] = []
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
        again = RouterDefinitions()
        again.restore(rows)
        for then_ms, event in since:
            again.apply(encode(event), then_ms, then_ms)
        assert state(again) == state(live)


def test_a_router_that_is_added_again_has_passed_nothing_over() -> None:
    live = RouterDefinitions()
    config = RouterConfig("x/1", "y/1")
    live.apply(encode(Added("a", config)), 1, 1)
    live.apply(encode(Passed("a", PassedOver(5, "p", 7, 1))), 2, 2)
    assert live.by_name["a"].passed == PassedOver(5, "p", 7, 1)
    live.apply(encode(Removed("a")), 3, 3)
    live.apply(encode(Passed("a", PassedOver(5, "p", 8, 1))), 4, 4)
    assert not live.by_name
    live.apply(encode(Added("a", config)), 5, 5)
    assert live.by_name["a"].passed == PassedOver() and live.by_name["a"].created_ms == 5
