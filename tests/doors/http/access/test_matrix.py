"""Every route and method of the policy table, with every kind of credential, on one worker and on three.

Generated from the table that the routes state: a new route is in it by itself, and fails until it has a sample."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.doors.http.access import Access
from headwater.doors.http.routes import Routes
from headwater.security.policy import Policy, Rule
from tests.doors.http.access.matrix import check_matrix
from tests.doors.http.access.samples import policy_rows
from tests.support.guarded import Guarded, guarded

WITHIN_S = 30.0


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Rule]]:
    return policy_rows(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module", params=[1, 3], ids=["one worker", "three workers"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    flags = ("--workers", str(request.param))
    with guarded(tmp_path_factory.mktemp("node"), flags=flags) as made:
        made.call("PUT", "/v1/stream/shop/cart")
        made.call("PUT", "/shop")
        made.call("PUT", "/v0/topics/shop/wakes")
        yield made


def test_every_registration_has_a_rule(rows: list[tuple[str, Rule]]) -> None:
    assert len(rows) > 60
    assert all(isinstance(rule, Rule) and rule.actions for _, rule in rows)
    nothing = None
    routes = Routes(nothing, nothing, nothing, nothing, nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rule"):
        routes.call("/__headwater/new", lambda exchange, rest, query: None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no rule"):
        routes.call("/__headwater/new", lambda exchange, rest, query: None, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has no rule"):
        Policy().state("/new", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Access().by("anybody")  # type: ignore[arg-type]


def test_the_matrix(node: Guarded, rows: list[tuple[str, Rule]]) -> None:
    check_matrix(node, rows)
