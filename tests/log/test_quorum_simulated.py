"""Owners that race in a simulated world, over a network that delays, reorders, loses and repeats: whatever happens, an
acknowledged event is there exactly once in every later owner's view, and in order. And faults that were planted in the
log on purpose are found, each one: a judge that finds nothing proves nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.log import objects, quorum
from headwater.log.medium import Taken, Unsure
from headwater.log.objects import ObjectEntries
from headwater.log.quorum import QuorumLog
from headwater.log.quorum_entries import Claim
from headwater.ports import FENCED, UNKNOWN
from tests.log.simulation import Violation, simulate

SEEDS = 60
PLANTED_SEEDS_MAX = 100


@pytest.mark.parametrize("batch", range(4))
def test_whatever_happens_what_was_acknowledged_is_there_once_and_in_order(batch: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(batch * SEEDS // 4, (batch + 1) * SEEDS // 4):
        history = simulate(random.Random(seed).randrange)
        seen["acknowledged"] += sum(len(life.acked) for life in history.lives)
        seen["snapshots"] += history.snapshot[0].number > 1
        seen["barriers"] += len(history.barriers)
        seen.update(life.failure.kind for life in history.lives if life.failure is not None)
    # Worlds in which nothing happens would prove nothing.
    assert seen["acknowledged"] > 100
    assert all(seen[what] for what in (FENCED, "snapshots", "barriers")), seen
    assert seen[UNKNOWN], seen


@settings(max_examples=30)
@given(st.lists(st.integers(0, 255), max_size=400), st.integers(0, 1 << 30))
def test_no_choice_of_what_happens_next_breaks_a_promise(choices: list[int], seed: int) -> None:
    left = iter(choices)
    rest = random.Random(seed)

    def choose(bound: int) -> int:
        choice = next(left, None)
        return rest.randrange(bound) if choice is None else choice % bound

    simulate(choose)


# ---- planted faults -------------------------------------------------------------------------------------------------


def _acknowledge_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """An entry counts as acknowledged although the one before it is still on its way."""
    real = QuorumLog._advance

    def advance(log: QuorumLog) -> None:
        if any(sent.outcome is True for sent in log._sent):
            for sent in log._sent:
                sent.outcome = True
        real(log)

    patch.setattr(QuorumLog, "_advance", advance)


def _answer_unknown_as_success(patch: pytest.MonkeyPatch) -> None:
    real = ObjectEntries.put

    async def put(medium: ObjectEntries, number: int, data: bytes) -> None:
        try:
            await real(medium, number, data)
        except Unsure:
            pass

    patch.setattr(ObjectEntries, "put", put)


def _answer_unknown_as_failure(patch: pytest.MonkeyPatch) -> None:
    """What may have been stored is told to be without effect."""
    real = ObjectEntries.put

    async def put(medium: ObjectEntries, number: int, data: bytes) -> None:
        try:
            await real(medium, number, data)
        except Unsure as error:
            raise Taken(error.reason) from error

    patch.setattr(ObjectEntries, "put", put)


def _skip_the_seal(patch: pytest.MonkeyPatch) -> None:
    """A new owner begins its epoch without ending the one before."""
    real = ObjectEntries._create

    async def create(medium: ObjectEntries, epoch: Any, number: int, head: bytes, data: bytes) -> None:
        if head[4] == objects._SEAL and epoch.epoch:
            return
        await real(medium, epoch, number, head, data)

    patch.setattr(ObjectEntries, "_create", create)


def _go_on_when_fenced(patch: pytest.MonkeyPatch) -> None:
    real = ObjectEntries.put

    async def put(medium: ObjectEntries, number: int, data: bytes) -> None:
        try:
            await real(medium, number, data)
        except Taken:
            pass

    patch.setattr(ObjectEntries, "put", put)


def _purge_seals(patch: pytest.MonkeyPatch) -> None:
    async def purge(medium: ObjectEntries, below: int) -> None:
        below = min(below, medium._vouched)
        keys = await medium._place.keys(medium._group)
        await medium._place.delete([key for key in keys if objects._number_of(key) < below])

    patch.setattr(ObjectEntries, "purge", purge)


def _believe_every_seal(patch: pytest.MonkeyPatch) -> None:
    """A follower that slept seals a number that was purged, and takes itself for the owner."""

    async def was_purged(medium: ObjectEntries, epoch: Any, number: int) -> bool:
        return False

    patch.setattr(ObjectEntries, "_was_purged", was_purged)


def _read_behind_seals(patch: pytest.MonkeyPatch) -> None:
    """What a former owner stored behind the seal is read like the rest."""
    real = ObjectEntries.read

    async def read(medium: ObjectEntries, first: int, bytes_max: int) -> list[tuple[int, bytes]]:
        found = await real(medium, first, bytes_max)
        for epoch in medium._epochs:
            stored = None if found else await medium._get(epoch, first)
            if stored is not None:
                return [(first, stored.data)]
        return found

    patch.setattr(ObjectEntries, "read", read)


def _claim_without_following(patch: pytest.MonkeyPatch) -> None:
    """Whoever is behind claims at the log's end all the same."""
    real = QuorumLog.claim

    async def claim(log: QuorumLog, claim: Claim) -> Claim:
        while True:
            try:
                return await real(log, claim)
            except quorum.Behind:
                while await log.more():
                    pass

    patch.setattr(QuorumLog, "claim", claim)


def _hold_every_barrier(patch: pytest.MonkeyPatch) -> None:
    async def barrier(log: QuorumLog) -> None: ...

    patch.setattr(QuorumLog, "barrier", barrier)


PLANTED = [
    _acknowledge_out_of_order,
    _answer_unknown_as_success,
    _answer_unknown_as_failure,
    _skip_the_seal,
    _go_on_when_fenced,
    _purge_seals,
    _believe_every_seal,
    _read_behind_seals,
    _claim_without_following,
    _hold_every_barrier,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_fault_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(PLANTED_SEEDS_MAX):
        try:
            simulate(random.Random(seed).randrange)
        except Violation:
            return
    pytest.fail("the fault was not found")
