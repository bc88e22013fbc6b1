"""Several views in seeded histories of cuts, pauses, deaths and claims: while anything goes wrong nobody is sent to an
owner that it knows to be fenced, and when nothing does, all agree."""

from __future__ import annotations

import random

import msgspec
import pytest

from headwater.cluster.view import MISSED_MAX, State, View
from tests.cluster.test_view import node

NODES, GROUPS, STEPS = 5, 6, 400


class World:
    """Nodes that ping each other. The logs are a number per group: the epoch of the last claim."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.views = {number: self.started(number, 1) for number in range(NODES)}
        self.turns = dict.fromkeys(range(NODES), 1)
        self.cut: set[tuple[int, int]] = set()
        """(from, to): what one node asks another does not arrive."""
        self.paused: set[int] = set()
        self.epochs = dict.fromkeys(range(GROUPS), 0)
        self.late: list[tuple[int, bytes]] = []
        """States on their way, for a node, that may arrive at any time."""

    def started(self, number: int, turn: int) -> View:
        view = View(node(number, f"run{turn}", turn), GROUPS)
        view.registered([view.node])
        return view

    def registered(self) -> list[View]:
        return list(self.views.values())

    def round(self, member: int) -> None:
        view = self.views[member]
        view.round()
        for other in view.others:
            if (member, other) in self.cut or other in self.paused:
                continue
            there = self.views[other]
            there.heard(self.sent(view, other), answered=False)
            if (other, member) not in self.cut:
                view.heard(self.sent(there, member), answered=True)

    def sent(self, view: View, to: int) -> State:
        data = msgspec.msgpack.encode(view.state)
        if self.rng.random() < 0.2:
            self.late.append((to, data))
        return msgspec.msgpack.decode(data, type=State)

    def claim(self, member: int, group: int) -> None:
        """Whoever claims is the owner, as far as the log goes; the one before hears of it when it writes."""
        self.epochs[group] += 1
        self.views[member].claimed(group, self.epochs[group])

    def step(self) -> None:
        rng = self.rng
        member, other = rng.sample(range(NODES), 2)
        act = rng.randrange(12)
        if act == 0:
            self.cut ^= {(member, other)}
        elif act == 1:
            self.cut ^= {(member, other), (other, member)}
        elif act == 2:
            self.paused ^= {member}
        elif act == 3:
            self.turns[member] += 1
            self.views[member] = self.started(member, self.turns[member])
            self.paused.discard(member)
        elif act == 4 and member not in self.paused:
            self.claim(member, rng.randrange(GROUPS))
        elif act == 5 and self.late:
            to, data = self.late.pop(rng.randrange(len(self.late)))
            self.views[to].heard(msgspec.msgpack.decode(data, type=State), answered=False)
        elif member not in self.paused:
            if rng.random() < 0.3:
                self.views[member].registered([view.node for view in self.registered()])
            for group, epoch in list(self.views[member].state.claims.items()):
                if epoch < self.epochs[group] and rng.random() < 0.5:
                    self.views[member].gave_up(group)  # it wrote, and was fenced
            self.round(member)

    def check(self) -> None:
        for member, view in self.views.items():
            assert member in view.alive
            for group in range(GROUPS):
                claim = view.claim_of(group)
                assert claim is None or (claim.member in view.alive and claim.epoch == view.epoch_of(group))
                assert view.epoch_of(group) <= self.epochs[group]
                assert set(view.in_line(group)) == set(view.alive)

    def heal(self) -> None:
        self.cut.clear()
        self.paused.clear()
        for _ in range(MISSED_MAX + 2):
            for member, view in self.views.items():
                view.registered([one.node for one in self.registered()])
                for group, epoch in list(view.state.claims.items()):
                    if epoch < self.epochs[group]:
                        view.gave_up(group)
                self.round(member)


@pytest.mark.parametrize("seed", range(30))
def test_views_never_name_a_fenced_owner_they_know_of_and_agree_when_all_is_well(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
        world.check()
    world.heal()
    first = world.views[0]
    for view in world.views.values():
        assert view.alive == list(range(NODES)) and view.settled
        for group in range(GROUPS):
            assert view.claim_of(group) == first.claim_of(group)
            assert view.in_line(group) == first.in_line(group)
            claim = view.claim_of(group)
            # The last owner may have died since; then nobody owns the group, and exactly one may claim it.
            assert claim is None or claim.epoch == world.epochs[group]
    for group in range(GROUPS):
        claiming = [view.me for view in world.views.values() if view.may_claim(group)]
        assert len(claiming) == (first.claim_of(group) is None)
