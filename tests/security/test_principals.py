"""Scopes and principals: what they cover, compared with a slow and obvious model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.security.principals import (
    ADMIN_SCOPE,
    AUDIT_KEY,
    KEY,
    Action,
    BadScope,
    Need,
    Principal,
    Scope,
    parse_scope,
    parse_scopes,
)

keys = st.sampled_from(["a/x", "a/xy", "a/x/y", "a/", "ab/x", "b/x", "b/x*", "a/X"])
starts = st.sampled_from(["", "a/", "a/x", "a/x/", "ab/", "b/", "b/x", "b/x*"])
actions = st.integers(1, 15)
scopes = st.builds(Scope, actions, starts, st.booleans()).filter(lambda scope: not (scope.exact and scope.start == ""))


def covers(scope: Scope, key: str) -> bool:
    return key == scope.start if scope.exact else key[: len(scope.start)] == scope.start


@given(st.lists(scopes, max_size=5), actions, keys)
def test_a_principal_may_what_its_scopes_say_together(some: list[Scope], wanted: int, key: str) -> None:
    principal = Principal(KEY, "p", tuple(some))
    held = 0
    for scope in some:
        held |= scope.actions if covers(scope, key) else 0
    assert principal.may(wanted, key) == (held & wanted == wanted)


@given(st.lists(scopes, max_size=5), actions, starts, keys)
def test_what_it_may_do_below_a_prefix_it_may_do_with_each_stream_there(
    some: list[Scope], wanted: int, start: str, key: str
) -> None:
    principal = Principal(KEY, "p", tuple(some))
    if principal.may_all(wanted, start) and key.startswith(start):
        assert principal.may(wanted, key)
    assert principal.meets(Need(Action(wanted), start, True)) == principal.may_all(wanted, start)


@given(st.lists(scopes, max_size=5), starts, keys)
def test_a_listing_shows_what_may_be_read_and_nothing_else(some: list[Scope], start: str, key: str) -> None:
    principal = Principal(KEY, "p", tuple(some))
    parts = principal.within(Action.READ, start)
    if not key.startswith(start):
        return
    shown = parts is None or sum(covers(part, key) for part in parts) > 0
    assert shown == principal.may(Action.READ, key)
    assert parts is None or sum(covers(part, key) for part in parts) <= 1  # once


@given(st.builds(Scope, actions, st.sampled_from(["", "a/", "a/x", "a/x/"]), st.just(False)))
def test_a_scope_is_read_as_it_is_shown(scope: Scope) -> None:
    assert parse_scope(scope.shown()) == scope


@pytest.mark.parametrize(
    ("text", "start", "exact"),
    [
        ("read:orders", "orders/", False),
        ("read:orders/", "orders/", False),
        ("read:orders/*", "orders/", False),
        ("read:orders/eu-*", "orders/eu-", False),
        ("read:orders/eu/*", "orders/eu/", False),
        ("read:orders/7", "orders/7", True),
        ("read:*", "", False),
    ],
)
def test_scopes_are_written_as_the_guide_says(text: str, start: str, exact: bool) -> None:
    assert parse_scope(text) == Scope(int(Action.READ), start, exact)


@pytest.mark.parametrize(
    "text", ["", "read", "read:", "write:a", "read:*/x", "admin:orders", ":a", "read,:a", "read:a\0b"]
)
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(BadScope):
        parse_scope(text)


def test_an_admin_may_everything_and_nobody_nothing() -> None:
    admin = Principal(KEY, "root", parse_scopes(["admin"]))
    assert admin.everything and admin.may_all(Action.ADMIN, "") and admin.scopes == (ADMIN_SCOPE,)
    with pytest.raises(BadScope):
        parse_scopes([])
    with pytest.raises(AttributeError):
        admin.name = "other"


def test_a_bucket_is_no_prefix_of_another_and_case_counts() -> None:
    principal = Principal(KEY, "p", parse_scopes(["read:orders", "read:eu/Inv*"]))
    assert principal.may(Action.READ, "orders/7") and not principal.may(Action.READ, "orders2/7")
    assert principal.may(Action.READ, "eu/Invoices") and not principal.may(Action.READ, "eu/invoices")


def test_the_audit_log_is_read_by_whoever_may_and_changed_by_an_admin_alone() -> None:
    everything = Principal("key", "all", parse_scopes(["read,append,create,manage:*"]))
    ours = Principal("key", "ours", parse_scopes(["read,append,create,manage:_headwater", "manage:_headwater/audit"]))
    for principal in (everything, ours):
        assert principal.may(Action.READ, AUDIT_KEY) and principal.may_all(Action.READ, "_headwater/")
        for action in (Action.APPEND, Action.CREATE, Action.MANAGE, Action.READ | Action.APPEND):
            assert not principal.may(action, AUDIT_KEY)
            assert principal.may(action, "_headwater/audits") and principal.may(action, "_headwater/pipeline-runs")
        for start in ("_headwater/", "_headwater/au", AUDIT_KEY):
            assert not principal.may_all(Action.MANAGE, start)
        assert principal.may_all(Action.MANAGE, "_headwater/audit/")
    assert everything.may_all(Action.APPEND, "") and everything.may_all(Action.MANAGE, "shop/")
    admin = Principal("key", "admin", parse_scopes(["admin"]))
    assert admin.may(Action.MANAGE, AUDIT_KEY) and admin.may_all(Action.MANAGE, "_headwater/")
    assert not Principal("key", "few", parse_scopes(["read:shop"])).may(Action.READ, AUDIT_KEY)
