"""The checker of chaos runs finds every kind of broken promise in a record made by hand, and none in a good one.
It owns those records; no process is started here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.chaos.checker import check
from tests.cluster.chaos.history import ACKNOWLEDGED, REFUSED, UNKNOWN, Append, History, Read, Strange

S = "town/s"
A = Append(S, b"a\n", 1.0, 2.0, ACKNOWLEDGED, next_offset=2)
B = Append(S, b"b\n", 3.0, 4.0, ACKNOWLEDGED, next_offset=4)
C = Append(S, b"c\n", 3.5, 5.0, ACKNOWLEDGED, next_offset=6)
P0 = Append(S, b"p0\n", 1.0, 2.0, ACKNOWLEDGED, producer="p", seq=0)
P1 = Append(S, b"p1\n", 1.0, 2.0, UNKNOWN, producer="p", seq=1)
P2 = Append(S, b"p2\n", 1.0, 2.0, UNKNOWN, producer="p", seq=2)
R = Read(S, "r", 6.0, 7.0, 0, b"a\nb\nc\n", up_to_date=True)


def kinds(*records: Any, final: bytes = b"a\nb\nc\n", lease_s: float = 0.0, **more: Any) -> set[str]:
    history = History(**more)
    for record in records:
        history.add(record)
    return {violation.kind for violation in check(history, {S: final}, lease_s)}


def test_a_record_that_holds_all_promises_has_no_complaint() -> None:
    unknown = replace(B, outcome=UNKNOWN, next_offset=None)
    refused = Append(S, b"x\n", 1.0, 2.0, REFUSED)
    assert kinds(A, unknown, C, refused, R, told={("w", S): 6}, subscribed={"w": [S]}, tails={("t", S): 6}) == set()
    assert kinds(A, replace(unknown, payload=b"never\n"), C, final=b"a\nc\n") == {"elsewhere"}
    assert kinds(A, replace(unknown, payload=b"never\n"), replace(C, next_offset=4), final=b"a\nc\n") == set()


@pytest.mark.parametrize(
    ("found", "records", "final"),
    [
        ("lost", (A, B, C), b"a\nb\n"),
        ("repeated", (A, B), b"a\nb\nb\n"),
        ("repeated", (A, replace(B, outcome=UNKNOWN)), b"a\nb\nb\n"),
        ("refused_but_there", (A, replace(B, outcome=REFUSED)), b"a\nb\n"),
        ("elsewhere", (A, replace(B, next_offset=9)), b"a\nb\n"),
        ("foreign", (A,), b"a\nnobody\n"),
        ("foreign", (A,), b"a\ntorn"),
        ("order", (replace(A, next_offset=4), replace(B, next_offset=2)), b"b\na\n"),
        # B's outcome is not known: it may come late, but not before what had ended when it began.
        ("order", (replace(A, next_offset=4), replace(B, outcome=UNKNOWN, next_offset=None)), b"b\na\n"),
        ("producer_order", (P0, P1), b"p1\np0\n"),
        ("producer_gap", (P0, P1, P2), b"p0\np2\n"),
        ("vanished", (A, replace(R, data=b"a\nb\n")), b"a\n"),
        ("vanished", (A, B, replace(R, data=b"b\n")), b"a\nb\n"),
        ("bad_offset", (A, replace(R, data=b"a\n", next_offset=3)), b"a\n"),
        ("stale", (A, B, replace(R, data=b"a\n")), b"a\nb\n"),
        ("strange", (A, Strange(S, "c", 1.0, "404")), b"a\n"),
    ],
)
def test_a_broken_promise_is_found(found: str, records: tuple[Any, ...], final: bytes) -> None:
    assert found in kinds(*records, final=final)


def test_appends_at_the_same_time_may_stand_in_either_order() -> None:
    assert kinds(A, replace(B, next_offset=6), replace(C, next_offset=4), final=b"a\nc\nb\n") == set()
    # One of unknown outcome may have happened at any time after it began.
    late = replace(A, outcome=UNKNOWN, next_offset=None)
    assert kinds(late, replace(B, next_offset=2), final=b"b\na\n") == set()


def test_a_read_may_miss_what_was_acknowledged_within_the_lease_unless_it_is_linearizable() -> None:
    missing = replace(R, data=b"a\n", start_s=4.5)
    assert kinds(A, B, missing, final=b"a\nb\n") == {"stale"}
    assert kinds(A, B, missing, final=b"a\nb\n", lease_s=1.0) == set()
    assert kinds(A, B, missing, final=b"a\nb\n", lease_s=0.4) == {"stale"}
    assert kinds(A, B, replace(missing, linearizable=True), final=b"a\nb\n", lease_s=1.0) == {"stale"}
    assert kinds(A, B, replace(missing, start_s=3.9), final=b"a\nb\n") == set(), "it began before the acknowledgement"
    assert kinds(A, B, replace(missing, up_to_date=False), final=b"a\nb\n") == set()
    assert kinds(A, B, replace(missing, fresh=False), final=b"a\nb\n") == set()


def test_what_a_reader_saw_is_compared_as_a_whole_though_only_its_beginning_is_kept() -> None:
    line = b"x" * 200 + b"\n"
    long = Append(S, line, 1.0, 2.0, ACKNOWLEDGED)
    assert kinds(long, replace(R, data=line, next_offset=201), final=line) == set()
    assert kinds(long, replace(R, data=line[:-1] + b"y", next_offset=201), final=line) == {"vanished"}
    assert kinds(long, replace(R, data=line + b"y"), final=line) == {"vanished"}


def test_a_stream_that_is_gone_is_lost() -> None:
    history = History()
    history.add(A)
    assert [violation.kind for violation in check(history, {})] == ["lost"]


def test_a_follower_that_stays_behind_and_a_subscriber_that_is_not_told_are_found() -> None:
    assert kinds(A, B, final=b"a\nb\n", tails={("t", S): 2}) == {"stuck"}
    assert kinds(A, B, final=b"a\nb\n", told={("w", S): 2}, subscribed={"w": [S]}) == {"untold"}
    assert kinds(A, B, final=b"a\nb\n", subscribed={"w": [S]}) == {"untold"}


def test_the_message_says_what_was_acknowledged_and_by_whom() -> None:
    history = History()
    history.add(replace(A, client="writer-1"))
    (violation,) = check(history, {S: b""})
    assert str(violation) == (
        "lost: town/s: b'a\\n' of writer-1 (acknowledged, 1.000 to 2.000 s) was acknowledged and is not there"
    )
