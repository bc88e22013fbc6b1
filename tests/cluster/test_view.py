"""Who is alive and who owns what, as one node sees it from what it hears."""

from __future__ import annotations

import random

import msgspec
import pytest

from headwater.cluster.nodes import Node
from headwater.cluster.rendezvous import lines
from headwater.cluster.view import Claim, State, View
from headwater.errors import MemberUnavailable, NoOwner

GROUPS = 16
MISSED_MAX = 4


def node(number: int, run: str = "first", turn: int = 1, zone: str = "", reads_format: int = 1) -> Node:
    name = f"id{number}"
    return Node(number, name, f"{name}-{run}", f"127.0.0.1:{number + 1}", "", "1.0", zone, 0, reads_format, turn)


def state(of: Node, count: int = 1, ready: tuple[int, ...] = (), draining: bool = False, **claims: int) -> State:
    owned = {int(name[1:]): epoch for name, epoch in claims.items()}
    return State(of, count, owned, list(ready), draining, False)


def seeing(count: int = 3) -> View:
    """Node 0's view, to which all others have answered."""
    view = View(node(0), GROUPS, MISSED_MAX)
    nodes = [node(number) for number in range(count)]
    view.registered(nodes)
    for other in nodes[1:]:
        view.heard(state(other), answered=True)
    return view


def rounds(view: View, count: int, *answering: State) -> None:
    for _ in range(count):
        view.round()
        for answer in answering:
            view.heard(answer, answered=True)


def test_a_node_is_alive_while_it_answers_one_of_the_last_rounds() -> None:
    view = seeing()
    assert view.alive == [0, 1, 2]
    rounds(view, MISSED_MAX, state(node(2)))
    assert view.alive == [0, 1, 2]
    rounds(view, 1, state(node(2)))
    assert view.alive == [0, 2]
    view.heard(state(node(1)), answered=True)
    assert view.alive == [0, 1, 2]


def test_a_node_that_is_heard_but_does_not_answer_is_not_alive() -> None:
    view = seeing()
    for count in range(MISSED_MAX + 1):
        view.round()
        view.heard(state(node(2), 2 + count), answered=True)
        view.heard(state(node(1), 2 + count), answered=False)
    assert view.alive == [0, 2]


def test_of_several_claims_the_highest_epoch_counts_and_a_lower_one_never_again() -> None:
    view = seeing()
    view.heard(state(node(1), 2, g3=5), answered=True)
    assert view.claim_of(3) == Claim(1, 5) and view.owner(3) == 1
    view.heard(state(node(2), 2, g3=6), answered=True)
    assert view.claim_of(3) == Claim(2, 6) and view.groups_of(2) == [3] and view.groups_of(1) == []
    rounds(view, MISSED_MAX + 1, state(node(1), 2, g3=5))
    assert view.alive == [0, 1]
    assert view.claim_of(3) is None and view.epoch_of(3) == 6
    with pytest.raises(MemberUnavailable) as refused:
        view.owner(3)
    assert isinstance(refused.value, NoOwner) and refused.value.group == 3
    view.claimed(3, 7)
    assert view.owner(3) == 0
    view.gave_up(3)
    assert view.claim_of(3) is None


def test_a_claim_that_is_only_heard_of_ends_a_lower_one() -> None:
    view = seeing()
    view.heard(state(node(1), 2, g3=5), answered=True)
    rounds(view, MISSED_MAX + 1, state(node(1), 2, g3=5))
    view.heard(state(node(2), 2, g3=6), answered=False)
    assert view.alive == [0, 1] and view.claim_of(3) is None


def test_the_version_changes_with_owners_and_with_nothing_else() -> None:
    view = seeing()
    before = view.version
    rounds(view, MISSED_MAX, state(node(1)), state(node(2)))
    view.set_ready(2, True)
    view.drain(True)
    assert view.version == before
    view.claimed(1, 1)
    assert view.version == before + 1
    view.heard(state(node(2), 2, g3=6), answered=True)
    assert view.version == before + 2
    rounds(view, MISSED_MAX + 1, state(node(1)))
    assert view.version == before + 3


def test_a_state_that_arrives_late_does_not_bring_back_what_was_before() -> None:
    view = seeing()
    view.heard(state(node(1), 3), answered=True)
    view.heard(state(node(1), 2, g3=5), answered=False)
    assert view.claim_of(3) is None
    view.heard(state(node(1, "second", turn=2), 1, g3=6), answered=True)
    assert view.owner(3) == 1  # a new run counts from the beginning
    view.heard(state(node(1), 9), answered=True)
    assert view.owner(3) == 1  # an earlier run does not


def test_nobody_claims_before_all_who_were_there_before_had_the_time_to_answer() -> None:
    view = View(node(0), GROUPS, MISSED_MAX)
    assert not view.settled
    view.registered([node(0), node(1), node(2)])
    view.heard(state(node(1), g3=5), answered=True)
    assert not view.settled and not any(map(view.may_claim, range(GROUPS)))
    rounds(view, MISSED_MAX, state(node(1), g3=5))
    assert not view.settled
    rounds(view, 1, state(node(1), g3=5))
    assert view.settled and view.alive == [0, 1]
    claims = [group for group in range(GROUPS) if view.may_claim(group)]
    assert claims == [group for group in range(GROUPS) if view.in_line(group)[0] == 0 and group != 3]


def test_a_node_that_starts_again_and_again_does_not_keep_the_others_from_claiming() -> None:
    view = seeing()
    assert view.settled
    for turn in range(2, 5):
        view.registered([node(0), node(1), node(2, f"run{turn}", turn)])
        assert view.settled and view.alive == [0, 1]


def test_the_line_is_that_of_the_nodes_that_are_alive_and_do_not_drain() -> None:
    view = seeing(4)
    expected = lines(GROUPS, {f"id{n}": "" for n in range(4)})
    assert [view.in_line(group) for group in range(GROUPS)] == [[int(name[2:]) for name in line] for line in expected]
    view.heard(state(node(3), 2, draining=True), answered=True)
    assert all(sorted(view.in_line(group)) == [0, 1, 2] for group in range(GROUPS))
    rounds(view, MISSED_MAX + 1, state(node(2)), state(node(3), 2, draining=True))
    assert all(sorted(view.in_line(group)) == [0, 2] for group in range(GROUPS))
    view.drain(True)
    assert all(view.in_line(group) == [2] for group in range(GROUPS))
    view.drain(False)
    assert all(sorted(view.in_line(group)) == [0, 2] for group in range(GROUPS))


def test_the_standby_of_another_zone_is_next() -> None:
    view = View(node(0, zone="a"), GROUPS)
    others = [node(1, zone="a"), node(2, zone="b")]
    view.registered(others)
    for other in others:
        view.heard(state(other), answered=True)
    for group in range(GROUPS):
        first, second, _ = view.in_line(group)
        assert view.zone(first) != view.zone(second)


def test_a_node_that_a_group_was_moved_to_is_first_in_its_line_until_it_does_not_want_it() -> None:
    view = seeing(3)
    group = next(group for group in range(GROUPS) if view.in_line(group)[0] != 0)
    before = view.in_line(group)
    view.prefer(group, True)
    assert view.in_line(group) == [0, *(member for member in before if member != 0)]
    assert view.is_preferred(0, group)
    view.prefer(group, False)
    assert view.in_line(group) == before


def test_who_is_ready_takes_over_before_who_is_only_first_in_line() -> None:
    view = seeing()
    for group in range(GROUPS):
        assert view.successor(group) == view.in_line(group)[0]
    group = next(group for group in range(GROUPS) if view.in_line(group)[0] == 1)
    view.heard(state(node(2), 2, ready=(group,)), answered=True)
    assert view.successor(group) == 2
    view.set_ready(group, True)
    assert view.successor(group) == next(member for member in view.in_line(group) if member in (0, 2))


def test_who_leaves_is_gone_at_once_and_who_is_not_registered_when_it_stops_answering() -> None:
    view = seeing()
    view.heard(msgspec.structs.replace(state(node(1), 2, g3=5), leaving=True), answered=False)
    assert view.alive == [0, 2] and view.others == [2]
    view.registered([node(0)])
    assert view.others == [2]  # the listing may be older than what was heard
    rounds(view, MISSED_MAX + 1)
    view.registered([node(0)])
    assert view.others == [] and view.alive == [0]


def test_of_two_nodes_with_one_number_the_later_registration_has_it() -> None:
    view = seeing()
    other = Node(1, "else", "else-first", "127.0.0.1:99", "", "1.0", "", 0, 1, turn=2)
    view.registered([node(0), other, node(2)])
    assert view.alive == [0, 2] and view.node_of(1) == other
    view.heard(state(node(1), 5, g1=1), answered=True)
    assert view.node_of(1) == other and view.claim_of(1) is None
    view.heard(state(other), answered=True)
    assert view.alive == [0, 1, 2]


def test_the_format_that_all_can_read_counts_those_that_are_away() -> None:
    view = seeing()
    view.registered([node(0), node(1), node(2), node(3, reads_format=0)])
    assert view.reads_format() == 0


def test_changes_are_told_once_and_own_ones_to_the_others() -> None:
    view = seeing()
    changes: list[int] = []
    told: list[State] = []
    view.on_change.append(lambda: changes.append(view.version))
    view.on_told.append(lambda: told.append(view.state))
    rounds(view, 2, state(node(1)), state(node(2)))
    assert not changes and not told
    view.claimed(3, 4)
    view.claimed(3, 4)
    assert len(changes) == 1 and [one.claims for one in told] == [{3: 4}]
    view.heard(state(node(1), 2, g4=1), answered=False)
    assert len(changes) == 2 and len(told) == 1


@pytest.mark.parametrize("seed", range(20))
def test_views_that_heard_the_same_agree_in_whatever_order_they_heard_it(seed: int) -> None:
    rng = random.Random(seed)
    histories = {
        number: [
            state(node(number), count, **{f"g{rng.randrange(4)}": rng.randrange(1, 9) * 3 + number})
            for count in range(1, 6)
        ]
        for number in (1, 2)
    }
    found = []
    for _ in range(5):
        heard = [one for history in histories.values() for one in history]
        rng.shuffle(heard)
        view = View(node(0), 4)
        view.registered([node(0), node(1), node(2)])
        for one in heard:
            view.heard(one, answered=True)
        last = {number: history[-1] for number, history in histories.items()}
        for group in range(4):
            claim = view.claim_of(group)
            assert claim is None or last[claim.member].claims[group] == claim.epoch
        found.append([view.in_line(group) for group in range(4)])
    assert all(one == found[0] for one in found)
