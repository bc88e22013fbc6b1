"""The rules of routers, and the places that destinations keep: beside a slow walk over the graph of all routers.
Places are held to what they promise whoever reads them again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadBody, BadName, RouterConflict, RouterCycle, TooManyRouters
from headwater.model import routers as rules
from headwater.model.labels import Labels
from headwater.model.routers import PassedOver, Place, RouterConfig, TagFilter

TOPICS = [f"_default/{letter}" for letter in "abcdef"]
topics = st.sampled_from(TOPICS)


def reaches(edges: set[tuple[str, str]], start: str, end: str) -> bool:
    """Whether records get from one topic to another, along routers."""
    seen, todo = {start}, [start]
    while todo:
        at = todo.pop()
        for source, dest in edges:
            if source == at and dest not in seen:
                seen.add(dest)
                todo.append(dest)
    return end in seen


@given(st.lists(st.tuples(topics, topics, st.booleans()), max_size=12))
def test_a_router_is_refused_exactly_when_it_closes_a_cycle_or_is_the_second_of_its_dest(
    wanted: list[tuple[str, str, bool]],
) -> None:
    defined: dict[str, RouterConfig] = {}
    for number, (source, dest, allow_cycle) in enumerate(wanted):
        config = RouterConfig(source, dest, allow_cycle=allow_cycle)
        edges = {(one.source, one.dest) for one in defined.values()}
        try:
            assert rules.judge(defined, f"r{number}", config)
        except BadBody:
            assert source == dest
        except RouterConflict as conflict:
            assert conflict.reason == "router_dest_fan_in"
            assert defined[conflict.other].dest == dest
        except RouterCycle as cycle:
            assert reaches(edges, dest, source) and not allow_cycle
            named = [f"_default/{topic}" for topic in cycle.cycle]
            assert named[0] == named[-1] == source and named[1] == dest
            assert set(pairwise(named)) <= edges | {(source, dest)}
        else:
            assert source != dest and dest not in {end for _, end in edges}
            assert allow_cycle or not reaches(edges, dest, source)
            defined[f"r{number}"] = config


def test_the_same_router_again_is_no_new_one_and_another_by_its_name_is_refused() -> None:
    config = RouterConfig("_default/a", "_default/b")
    assert not rules.judge({"r": config}, "r", config)
    with pytest.raises(RouterConflict) as refused:
        rules.judge({"r": config}, "r", RouterConfig("_default/a", "_default/c"))
    assert refused.value.details() == {"reason": "router_exists", "router": "r"}


def test_a_dest_takes_no_second_router_even_of_the_same_source() -> None:
    defined = {"r": RouterConfig("_default/a", "shop/b")}
    with pytest.raises(RouterConflict) as refused:
        rules.judge(defined, "s", RouterConfig("_default/a", "shop/b", TagFilter("x")))
    assert refused.value.details() == {"reason": "router_dest_fan_in", "router": "r"}
    assert "shop/b" in refused.value.message()


def test_there_are_so_many_routers_and_no_more() -> None:
    defined = {f"r{n}": RouterConfig("_default/a", f"_default/{n}") for n in range(rules.ROUTERS_MAX)}
    with pytest.raises(TooManyRouters):
        rules.judge(defined, "one-more", RouterConfig("_default/a", "_default/z"))
    assert not rules.judge(defined, "r5", defined["r5"])


@pytest.mark.parametrize("name", ["", ".", "-a", "a/b", "a b", "ä", "a" * 129, "a\n"])
def test_a_name_that_no_path_can_hold_without_doubt_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        rules.check_name(name)


@pytest.mark.parametrize("name", ["a", "orders-to-audit", "9.x_y", "a" * 128])
def test_plain_names_are_taken(name: str) -> None:
    assert rules.check_name(name) == name


# ---- filters and labels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given_filter",
    [[], "tag", ["tag"], ["node", "Eq", "x"], ["tag", "Ne", "x"], ["tag", "Eq", 1], ["tag", "Eq", "x", "y"],
     ["tag", "Glob", "x"], ["tag", "Glob", "x*y*"], ["tag", "Glob", "*x"], ["tag", "Eq", "x" * 1025], {}, 0, True],
)  # fmt: skip
def test_a_filter_of_another_shape_is_refused(given_filter: object) -> None:
    with pytest.raises(BadBody):
        rules.parse_filter(given_filter)


@pytest.mark.parametrize("given_filter", [None, ["tag", "Eq", "x*"], ["tag", "Glob", "*"], ["tag", "Glob", "red.*"]])
def test_a_filter_is_shown_as_it_was_given(given_filter: list[str] | None) -> None:
    assert rules.show_filter(rules.parse_filter(given_filter)) == given_filter


def test_filters_take_records_by_their_tags() -> None:
    every = RouterConfig("a", "b")
    exact = RouterConfig("a", "b", TagFilter("red"))
    prefix = RouterConfig("a", "b", TagFilter("red", True))
    tagged = RouterConfig("a", "b", TagFilter("", True))
    tags = [None, Labels(node="n"), Labels("red"), Labels("reddish"), Labels("blue"), Labels("")]
    assert [rules.takes(every, one) for one in tags] == [True] * 6
    assert [rules.takes(exact, one) for one in tags] == [False, False, True, False, False, False]
    assert [rules.takes(prefix, one) for one in tags] == [False, False, True, True, False, False]
    assert [rules.takes(tagged, one) for one in tags] == [False, False, True, True, True, True]


def test_a_copy_keeps_what_is_preserved_and_never_what_makes_a_job() -> None:
    labels = Labels("tag", "node", b"{}", "key", 5)
    assert rules.copied_labels(RouterConfig("a", "b"), labels) == Labels("tag", "node", b"{}")
    assert rules.copied_labels(RouterConfig("a", "b", preserve_tag=False), labels) == Labels(None, "node", b"{}")
    assert rules.copied_labels(RouterConfig("a", "b", preserve_node=False), labels) == Labels("tag", None, b"{}")
    assert rules.copied_labels(RouterConfig("a", "b", preserve_meta=False), labels) == Labels("tag", "node")
    assert rules.copied_labels(RouterConfig("a", "b", None, False, False, False), labels) is None
    assert rules.copied_labels(RouterConfig("a", "b"), None) is None


# ---- places -------------------------------------------------------------------------------------------------------

numbers = st.integers(0, (1 << 63) - 1)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=10))
def test_places_grow_whatever_sources_and_seqs_come_one_after_another(steps: list[tuple[int, int]]) -> None:
    current: str | None = None
    for epoch, seq in steps:
        place = rules.next_place(current, epoch, seq)
        assert place is not None and (current is None or place > current)
        found = rules.parse_place(place)
        assert found is not None and (found.epoch, found.seq) == (epoch, seq)
        assert rules.forwarded_seq(place, epoch) == seq
        assert rules.forwarded_seq(place, epoch + 1) == 0
        current = place


@pytest.mark.parametrize("foreign", ["", "0005", "zzz", "ZZZ", "~", "~router", "~router:1:2:3"])
def test_a_place_follows_what_a_client_wrote_before(foreign: str) -> None:
    assert rules.parse_place(foreign) is None
    assert rules.next_place(foreign, 7, 3) == (None if foreign == "~router:1:2:3" else rules.next_place(None, 7, 3))


def test_no_place_follows_one_that_sorts_after_all_of_them() -> None:
    assert rules.next_place("\u007f", 1, 1) is None
    assert rules.next_place("ä", 1, 1) is None
    last = "~router:9999999999:00000000000000000001:00000000000000000001"
    assert rules.parse_place(last) == Place(9_999_999_999, 1, 1)
    assert rules.next_place(last, 2, 1) is None


def test_what_was_passed_over_counts_only_with_the_place_it_was_noted_at() -> None:
    place = rules.next_place(None, 7, 1_000)
    noted = PassedOver(7, place or "", 1_500)
    assert rules.cursor_at(place, 7, noted) == 1_500
    assert rules.cursor_at(rules.next_place(place, 7, 1_200), 7, noted) == 1_200
    assert rules.cursor_at(rules.next_place(None, 7, 900), 7, noted) == 900, "the destination lost copies"
    assert rules.cursor_at(None, 7, noted) == 0, "the destination was made again"
    assert rules.cursor_at(place, 8, noted) == 0, "the source was made again"
    assert rules.cursor_at(None, 8, PassedOver(8, "", 40)) == 40
