"""Secrets that the nodes of a cluster share: the first one counts, and only who knows the cluster's secret reads it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headwater.log.medium import Unavailable, Unsure
from headwater.log.object_places import DirectoryPlace
from headwater.ports import SystemClock, SystemRng
from headwater.security.name_hash import BadReceiptKey, NameHash
from headwater.security.shared_secret import FOLDER, TRIES_MAX, BadSharedSecret, shared_secret

SECRET, OTHER = b"a secret of this cluster", b"a secret of another cluster"


class Clock(SystemClock):
    """Pauses end at once."""

    async def sleep(self, delay_s: float) -> None: ...


class Place(DirectoryPlace):
    """Fails as often as it is told."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.failing = 0
        self.losing = 0

    async def get(self, key: str) -> bytes | None:
        if self.failing:
            self.failing -= 1
            raise Unavailable("the store does not answer")
        return await super().get(key)

    async def create(self, key: str, data: bytes) -> bool:
        created = await super().create(key, data)
        if self.losing:
            self.losing -= 1
            raise Unsure("the answer was lost")
        return created


def take(place: DirectoryPlace, made: str, secret: bytes = SECRET, name: str = "one") -> str:
    return asyncio.run(shared_secret(place, name, made, secret, SystemRng(), Clock()))


def test_the_first_one_counts_for_all(tmp_path: Path) -> None:
    place = DirectoryPlace(tmp_path)

    async def all_at_once() -> list[str]:
        asked = (shared_secret(place, "one", f"text {n}", SECRET, SystemRng(), Clock()) for n in range(8))
        return await asyncio.gather(*asked)

    (text,) = set(asyncio.run(all_at_once()))
    assert take(DirectoryPlace(tmp_path), "late") == text


def test_the_object_does_not_show_the_text(tmp_path: Path) -> None:
    take(DirectoryPlace(tmp_path), "hidden text")
    data = (tmp_path / FOLDER / "one").read_bytes()
    assert b"hidden" not in data and data.startswith(b"headwater-secret 1\n")


def test_an_object_of_another_cluster_of_another_name_or_damaged_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    place = DirectoryPlace(tmp_path)
    take(place, "hidden text")
    path = tmp_path / FOLDER / "one"
    whole = path.read_bytes()
    path.with_name("two").write_bytes(whole)
    for name, secret, data in (
        ("one", OTHER, whole),
        ("two", SECRET, whole),
        ("one", SECRET, whole[:-1]),
        ("one", SECRET, b""),
        ("one", SECRET, whole.replace(b"secret 1", b"secret 2")),
    ):
        path.write_bytes(data)
        with pytest.raises(BadSharedSecret, match=f"{FOLDER}/{name}") as refused:
            take(place, "new", secret, name)
        assert "hidden" not in str(refused.value)
        assert path.read_bytes() == data


def test_a_store_that_does_not_answer_for_a_while_or_whose_answer_was_lost_is_asked_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.failing, place.losing = 3, 1
    assert take(place, "text") == "text"
    place.failing = TRIES_MAX
    with pytest.raises(Unavailable):
        take(place, "other")
    place.failing = TRIES_MAX - 1
    assert take(place, "other") == "text"


def test_all_nodes_hash_a_name_the_same_way(tmp_path: Path) -> None:
    async def hashed(secret: bytes = SECRET) -> str:
        return (await NameHash.shared(DirectoryPlace(tmp_path), secret, SystemRng())).of("bucket/stream")

    first = asyncio.run(hashed())
    assert asyncio.run(hashed()) == first and first.startswith("hmac-sha256:")
    with pytest.raises(BadReceiptKey):
        asyncio.run(hashed(OTHER))
    assert NameHash.kept(tmp_path, SystemRng()).of("bucket/stream") != first
