"""Choices of streams, against the pipeline's own idea of them: both have to take in the same streams.
Bad ones are refused with a reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import BadName
from headwater.model.choices import DEPTH_MAX, EXCEPTIONS_MAX, STREAMS_MAX, BadChoice, Choice, Chosen
from headwater.spark.selection import Selection

KEYS = [
    "orders/1",
    "orders/1/events",
    "orders/a",
    "other/1",
    "_default/plain",
    "_default/a/b",
    "_headwater/runs",
    "b/x",
]
names = st.sampled_from([tuple(key.split("/", 1)) for key in KEYS])
selections = st.one_of(
    st.builds(Selection),
    st.builds(Selection, streams=st.frozensets(names, min_size=1)),
    st.builds(
        Selection, pattern=st.sampled_from(["*", "**", "orders/**", "orders/*", "*/1", "_headwater/**", "plain"])
    ),
    st.builds(Selection, bucket=st.sampled_from(["orders", "_default", "_headwater", "none"])),
)


@settings(max_examples=60)
@given(selections, st.none() | selections)
def test_a_choice_takes_in_what_the_pipelines_selection_takes_in(one: Selection, minus: Selection | None) -> None:
    selection = Selection(one.streams, one.pattern, one.bucket, minus)
    told = selection.choice()
    assert told is not None
    chosen = Chosen(msgspec.convert(told, Choice))
    for key in KEYS:
        bucket, _, stream = key.partition("/")
        assert chosen.takes(key) == selection.takes(bucket, stream), (key, told)
        if chosen.keys is not None:
            assert (key in chosen.keys) == chosen.takes(key)


def test_a_list_of_names_that_is_too_long_is_no_choice() -> None:
    streams = frozenset(("many", str(number)) for number in range(STREAMS_MAX + 1))
    assert Selection(streams=streams).choice() is None
    assert Selection(bucket="many", minus=Selection(streams=streams)).choice() is None


def test_a_choice_of_buckets_alone_says_which() -> None:
    def buckets(**given: Any) -> Any:
        return Chosen(msgspec.convert(given, Choice)).buckets

    assert buckets() == (None, ()) and buckets(bucket="a") == ("a", ())
    assert buckets(**{"except": [{"bucket": "b"}, {"bucket": "b"}]}) == (None, ("b",))
    assert buckets(pattern="a/**") is None is buckets(streams=["a/b"]) is buckets(**{"except": [{"pattern": "a/**"}]})


def nested(depth: int) -> dict[str, Any]:
    return {"except": [nested(depth - 1)]} if depth else {}


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"bucket": "a", "pattern": "b"}, "one of streams"),
        ({"bucket": "a/b"}, "no slash"),
        ({"pattern": "**/a/**/b/**/c/**/d/**"}, "at most 4 times"),
        ({"pattern": "x" * 1_025}, "1024 bytes"),
        ({"streams": ["a"] * (STREAMS_MAX + 1)}, "at most 10000 streams"),
        (nested(DEPTH_MAX), "within each other"),
        ({"except": [{}] * (EXCEPTIONS_MAX + 1)}, "exceptions"),
    ],
)
def test_what_is_no_choice_is_refused_with_a_reason(told: dict[str, Any], why: str) -> None:
    with pytest.raises(BadChoice, match=why):
        Chosen(msgspec.convert(told, Choice))


def test_a_name_that_no_stream_has_is_refused() -> None:
    with pytest.raises(BadName):
        Chosen(Choice(streams=["a/../b"]))
