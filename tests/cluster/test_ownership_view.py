"""The view as owners see it: by ids, and silent until it is settled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headwater.cluster.ownership_view import OwnershipView
from headwater.cluster.view import View
from headwater.errors import MemberUnavailable
from tests.cluster.test_view import GROUPS, node, state


def test_nodes_are_named_by_their_ids_and_nobody_is_in_line_before_all_were_heard() -> None:
    view = View(node(0), GROUPS)
    by_id = OwnershipView(view, lambda group: 4)
    view.registered([node(0), node(1), node(2)])
    view.heard(state(node(1), g3=5), answered=True)
    assert by_id.me == "id0" and by_id.alive() == ["id0", "id1"]
    assert by_id.in_line(3) == [] and by_id.successor(3) is None
    assert by_id.claimed(3) == ("id1", 5) and by_id.claimed(4) is None
    view.heard(state(node(2), ready=(3,)), answered=True)
    assert by_id.in_line(3) == [f"id{member}" for member in view.in_line(3)]
    assert by_id.successor(3) == "id2"
    assert by_id.number_of("id1") == 1
    with pytest.raises(MemberUnavailable):
        by_id.number_of("id9")


def test_what_this_node_serves_is_told_and_is_no_claim_of_another() -> None:
    view = View(node(0), GROUPS)
    by_id = OwnershipView(view, lambda group: 40 + group)
    view.registered([node(0)])
    owned: Any = SimpleNamespace(number=2)
    by_id.entered(owned)
    assert view.claim_of(2) == (0, 42) and view.state.claims == {2: 42}
    assert by_id.claimed(2) is None
    by_id.left(owned)
    assert view.claim_of(2) is None
