"""Every request that needs `manage` or `admin` is told in the audit log, or stands here as one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.doors.http.audited import ACTIONS, action_of
from headwater.security.policy import Concern
from headwater.security.principals import Action
from tests.doors.http.access.samples import policy_rows, samples

NOT_TOLD = {
    # What programs do with the records of a stream.
    ("DELETE", "/{bucket}/{stream}/snapshot/{offset}"),
    ("DELETE", "/ds/{bucket}/{stream}/snapshot/{offset}"),
    # Changes nothing of the node.
    ("POST", "/__headwater/cluster"),
}
NOT_SERVED = {
    ("PUT", "PATCH", "DELETE", "POST"): ("/__headwater/cluster", "/__headwater/groups/{g}/ownership"),
    ("PUT", "PATCH", "DELETE"): ("/__headwater/groups/{g}/owner",),
    ("PUT", "PATCH"): ("/__headwater/groups/{g}/backup",),
}
"""Methods that a rule covers and nothing answers."""
PATHS = {
    ("POST", "/__headwater/groups/{g}/owner"): "/__headwater/groups/0/owner/1",
    ("DELETE", "/__headwater/groups/{g}/backup"): "/__headwater/groups/0/backup/b1",
}
"""What is below a route that ends before it."""


def test_every_route_that_changes_or_ends_something_is_told(tmp_path: Path) -> None:
    left: list[tuple[str, str]] = []
    seen: set[str] = set()
    for sample in samples(policy_rows(tmp_path), "abc"):
        method, route = sample.method, sample.route
        path = PATHS.get((method, route), sample.path).partition("?")[0].encode()
        found = action_of(method.encode(), path)
        seen |= set() if found is None else {found[0]}
        needs = sample.rule.actions[method]
        told = needs & (Action.MANAGE | Action.ADMIN) and method not in ("GET", "HEAD")
        served = not any(method in methods and route in routes for methods, routes in NOT_SERVED.items())
        if sample.rule.concern is Concern.MEMBERS or (method, route) in NOT_TOLD:
            continue
        if told and served and found is None:
            left.append((method, route))
        if found is not None and method in ("GET", "HEAD"):
            left.append((method, route))
    assert left == []
    of_clusters_and_lakes = {"cluster.drain", "cluster.move", "cluster.snapshot", "cluster.forget", "lake.swap"}
    assert ACTIONS - seen == of_clusters_and_lakes


@pytest.mark.parametrize("action", ["drain", "move", "snapshot", "forget"])
def test_what_is_asked_of_a_cluster_is_told(action: str) -> None:
    assert action_of(b"POST", f"/__headwater/cluster/{action}".encode()) == (f"cluster.{action}", "")


@pytest.mark.parametrize(
    ("method", "path", "action", "about"),
    [
        (b"DELETE", b"/v1/stream/shop/eu/7", "stream.delete", "shop/eu/7"),
        (b"DELETE", b"/v1/stream/shop%2Feu%2F7", "stream.delete", "shop/eu/7"),
        (b"DELETE", b"/v1/stream/alone", "stream.delete", "_default/alone"),
        (b"DELETE", b"/ds/shop/7", "stream.delete", "shop/7"),
        (b"DELETE", b"/shop/7", "stream.delete", "shop/7"),
        (b"DELETE", b"/shop", "bucket.delete", "shop"),
        (b"DELETE", b"/v0/topics/shop%2F7", "topic.delete", "shop/7"),
        (b"POST", b"/v0/topics/shop/7/purge", "topic.purge", "shop/7"),
        (b"DELETE", b"/v1/stream/__ds/subscriptions/a", "subscription.delete", "a"),
        (b"DELETE", b"/__headwater/tokens/abc", "key.revoke", "abc"),
        (b"PUT", b"/__headwater/buckets/shop/public", "bucket.public", "shop"),
        (b"POST", b"/__headwater/groups/3/owner/node-1", "group.move", "3/owner/node-1"),
        (b"POST", b"/__headwater/groups/3/lake/swap", "lake.swap", "3"),
        (b"DELETE", b"/v1/stream/%ff%1b", "stream.delete", "_default/\ufffd\x1b"),
    ],
)
def test_a_path_says_what_a_request_is_about(method: bytes, path: bytes, action: str, about: str) -> None:
    assert action_of(method, path) == (action, about)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        (b"POST", b"/v1/stream/shop/7"),
        (b"PUT", b"/v1/stream/shop/7"),
        (b"PUT", b"/shop/7"),
        (b"POST", b"/v0/topics/shop/7/records"),
        (b"POST", b"/v0/topics/shop/7/claim"),
        (b"POST", b"/v1/stream/__ds/subscriptions/a/ack"),
        (b"GET", b"/__headwater/tokens"),
        (b"DELETE", b"/shop/7/snapshot/00000000000000000000"),
        (b"POST", b"/__headwater/erase/known"),
    ],
)
def test_data_and_reading_are_not_told(method: bytes, path: bytes) -> None:
    assert action_of(method, path) is None
