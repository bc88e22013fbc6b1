"""Who should own a group: the same for everybody, spread over nodes and zones, and no move without need."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headwater.cluster.rendezvous import in_line, lines, score

ZONES = st.dictionaries(
    st.text("abcdef0123456789", min_size=1, max_size=8), st.sampled_from(["", "a", "b", "c"]), max_size=7
)
GROUPS = st.integers(0, 1 << 20)


@given(GROUPS, ZONES)
def test_everybody_is_in_line_once_whatever_the_order_they_are_known_in(group: int, zones: dict[str, str]) -> None:
    line = in_line(group, zones)
    assert sorted(line) == sorted(zones)
    assert in_line(group, dict(reversed(zones.items()))) == line


@given(GROUPS, ZONES, st.sampled_from(["", "a", "d"]))
def test_a_node_that_joins_takes_groups_and_moves_no_other(group: int, zones: dict[str, str], zone: str) -> None:
    before = in_line(group, zones)[:1]
    after = in_line(group, {**zones, "joined": zone})[0]
    assert after == "joined" or [after] == before


@given(GROUPS, ZONES)
def test_a_node_that_leaves_moves_its_own_groups_alone(group: int, zones: dict[str, str]) -> None:
    line = in_line(group, zones)
    for gone in line[1:]:
        assert in_line(group, {node: zone for node, zone in zones.items() if node != gone})[0] == line[0]


@given(GROUPS, ZONES)
def test_without_zones_the_standby_is_who_comes_first_when_the_first_is_gone(group: int, zones: dict[str, str]) -> None:
    nodes = dict.fromkeys(zones, "")
    line = in_line(group, nodes)
    assert line == sorted(nodes, key=lambda node: -score(node, group))
    for _ in zones:
        nodes.pop(line.pop(0))
        assert in_line(group, nodes) == line


@given(GROUPS, ZONES)
def test_nobody_stands_behind_a_node_of_its_zone_while_another_zone_has_none_in_line(
    group: int, zones: dict[str, str]
) -> None:
    line = in_line(group, zones)
    named = [zones[node] for node in line if zones[node]]
    distinct = len(set(named))
    assert len(set(named[:distinct])) == distinct


def test_groups_are_spread_over_the_nodes() -> None:
    zones = {f"{n:016x}": "" for n in range(5)}
    owned = Counter(in_line(group, zones)[0] for group in range(10_000))
    second = Counter(in_line(group, zones)[1] for group in range(10_000))
    for counted in (owned, second):
        assert len(counted) == 5
        assert max(counted.values()) < 2_200 and min(counted.values()) > 1_800


@given(st.integers(0, 64), ZONES)
def test_everybody_is_first_for_its_share_and_shares_differ_by_one(groups_count: int, zones: dict[str, str]) -> None:
    found = lines(groups_count, zones)
    assert len(found) == groups_count
    firsts = Counter(line[0] for line in found if line)
    if zones:
        assert sum(firsts.values()) == groups_count
        assert {firsts[node] - groups_count // len(zones) for node in zones} <= {0, 1}
    for group, line in enumerate(found):
        # Who is first may have been pushed there; the others keep their order.
        assert line[1:] == [node for node in in_line(group, zones) if node not in line[:1]]


@given(ZONES)
def test_lines_are_the_same_whatever_the_order_nodes_are_known_in(zones: dict[str, str]) -> None:
    assert lines(16, zones) == lines(16, dict(reversed(zones.items())))
