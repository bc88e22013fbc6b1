"""Nodes for the tests of subscriptions: one that keeps everything and one that keeps nothing, shared by a module.
It owns no rule; tests use names of their own so that they do not meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.subscriptions.support import Api, a_node

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["durable", "memory"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with a_node(tmp_path_factory.mktemp("node"), memory=request.param == "memory") as (_, api):
        yield api


@pytest.fixture
def room() -> str:
    """A first path segment that no other test uses."""
    return f"room{next(_numbers)}"


@pytest.fixture(params=[2, 4])
def groups_count(request: pytest.FixtureRequest) -> int:
    """Of two processes in one loop."""
    return request.param
