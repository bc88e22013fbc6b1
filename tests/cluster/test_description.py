"""What a cluster is: written by its first node, agreed with by every other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headwater.cluster.description import KEY, Description, Disagreement, agreed
from headwater.log.object_places import DirectoryPlace
from headwater.ports import SystemRng


def agree(root: Path, groups: int | None = None, log: str = "nats headwater") -> Description:
    return asyncio.run(agreed(DirectoryPlace(root), groups, 16, log, SystemRng()))


def test_the_first_node_writes_it_and_others_take_it_over(tmp_path: Path) -> None:
    first = agree(tmp_path)
    assert first.groups == 16 and first.log == "nats headwater" and len(first.id) == 16
    assert agree(tmp_path) == first
    assert agree(tmp_path, groups=16) == first


def test_a_cluster_is_made_with_as_many_groups_as_are_wanted(tmp_path: Path) -> None:
    assert agree(tmp_path, groups=4).groups == 4
    assert agree(tmp_path).groups == 4


def test_of_nodes_that_start_together_one_writes_it(tmp_path: Path) -> None:
    async def together() -> list[Description]:
        starts = (agreed(DirectoryPlace(tmp_path), None, 16, "s3://logs", SystemRng()) for _ in range(8))
        return await asyncio.gather(*starts)

    assert len({one.id for one in asyncio.run(together())}) == 1


@pytest.mark.parametrize(
    ("groups", "log", "said"),
    [
        (8, "nats headwater", "made with 16 groups, not 8"),
        (None, "s3://other/logs", "has its logs in 'nats headwater'"),
    ],
)
def test_a_node_that_was_told_something_else_is_refused(
    tmp_path: Path, groups: int | None, log: str, said: str
) -> None:
    agree(tmp_path)
    with pytest.raises(Disagreement, match=said):
        agree(tmp_path, groups, log)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"format": 2, "id": "x", "groups": 1, "log": ""}', "format 2"),
        (b"{", "cannot be read"),
        (b'{"format": 1}', "cannot be read"),
    ],
)
def test_what_cannot_be_understood_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / KEY).write_bytes(data)
    with pytest.raises(Disagreement, match=said):
        agree(tmp_path)
