"""The nodes of a cluster as the object store knows them: who they are, and the numbers that they have taken.

Owns the registrations. Never says who is alive: `view` does. Nothing about safety depends on them: logs alone decide
who owns a group.

    nodes/<number, 6 digits>/<turn, 12 digits>      JSON: {"format": 1, "node": {...}} or {"format": 1, "node": null}

The highest turn of a number is what counts: it names the node that has the number, or nobody. A turn is created only if
it is absent, by whoever saw the turn before it, so of two nodes that want a number one gets it. Older turns are deleted
by the writer of a newer one. A turn that was deleted can be created again by somebody who was slow: so whoever created
a turn looks whether it is the highest before it relies on it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from headwater.log.medium import Unavailable, Unsure
from headwater.log.object_places import ObjectPlace
from headwater.ports import SYSTEM_CLOCK, Clock, Rng
from headwater.security.secret_file import read_secret, write_secret

FOLDER = "nodes"
FORMAT = 1
ID_BYTES = 8
ID_FILE_NAME = "node-id"
TRIES_MAX = 20
AGAIN_S = 0.1


class Node(msgspec.Struct, frozen=True):
    """A node as it registers itself."""

    number: int
    id: str
    """Stays the same as long as its data directory does: placement goes by it."""
    run: str
    """Another one at each start."""
    address: str
    """HOST:PORT where other nodes reach it."""
    public_address: str
    """HOST:PORT of its HTTP door for clients."""
    version: str
    zone: str
    started_ms: int
    reads_format: int
    """The highest format of log entries that it can read."""
    turn: int = 0
    """Of its number: of two nodes with the same number, the one with the higher turn has it."""


class _Registration(msgspec.Struct, frozen=True):
    format: int
    node: Node | None


class _Slot(msgspec.Struct, frozen=True):
    turn: int
    node: Node | None
    is_free: bool


class CannotRegister(Exception):
    """Something outside has to change first; the message says what."""


def kept_id(directory: Path, rng: Rng) -> str:
    """The node's id in its data directory, made when there is none yet. Raises CannotRegister."""
    path = directory / ID_FILE_NAME
    try:
        if not path.exists():
            write_secret(path, rng.token(ID_BYTES).hex() + "\n")
        found = read_secret(path).strip()
    except (OSError, ValueError) as error:
        raise CannotRegister(f"cannot read or make {path}: {error}") from None
    if len(found) != 2 * ID_BYTES or not found.isalnum():
        raise CannotRegister(f"{path} holds no node's id; restore it, or remove it so that the node gets a new one")
    return found


class Registry:
    """This node's registration, and a way to see the others'."""

    def __init__(self, place: ObjectPlace, clock: Clock = SYSTEM_CLOCK) -> None:
        self._place = place
        self._clock = clock
        self._known: dict[str, _Slot] = {}
        """What was read, by key: a key's content never changes."""
        self.mine: Node | None = None

    async def register(self, node: Node) -> Node:
        """Takes a number: the one that this node's id has, or the lowest that is free. Returns the node with it.

        Raises Unavailable, Unsure, CannotRegister.
        """
        for _ in range(TRIES_MAX):
            slots = await self._slots()
            number, turn = _choose(slots, node.id)
            made = msgspec.structs.replace(node, number=number, turn=turn)
            if await self._write(number, turn, made):
                self.mine = made
                return made
            await self._clock.sleep(AGAIN_S)
        raise CannotRegister("other nodes took every number that this one tried to take; start it again")

    async def nodes(self) -> list[Node]:
        """All that are registered, in the order of their numbers. Raises Unavailable."""
        slots = await self._slots()
        return [slot.node for _, slot in sorted(slots.items()) if slot.node is not None]

    async def release(self) -> None:
        """Gives this node's number back. Raises Unavailable, Unsure."""
        mine, self.mine = self.mine, None
        if mine is not None:
            await self.forget(mine)

    async def forget(self, node: Node) -> bool:
        """Frees a node's number, if it still is that very registration. Raises Unavailable, Unsure."""
        slot = (await self._slots()).get(node.number)
        if slot is None or slot.node is None or slot.node.run != node.run:
            return False
        return await self._write(node.number, slot.turn + 1, None)

    async def _slots(self) -> dict[int, _Slot]:
        """By number, the highest turn. Raises Unavailable."""
        while True:
            newest: dict[int, tuple[int, str]] = {}
            for key in await self._place.keys(FOLDER):
                number, turn = _numbers(key)
                newest[number] = max(newest.get(number, (0, "")), (turn, key))
            found = await asyncio.gather(*(self._read(turn, key) for turn, key in newest.values()))
            slots = {number: slot for number, slot in zip(newest, found, strict=True) if slot is not None}
            if len(slots) == len(newest):
                self._known = {key: slots[number] for number, (_, key) in newest.items()}
                return slots
            # One was deleted since it was listed, so a newer one is there.

    async def _read(self, turn: int, key: str) -> _Slot | None:
        slot = self._known.get(key)
        if slot is not None:
            return slot
        data = await self._place.get(key)
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=_Registration)
        except msgspec.ValidationError:
            return _Slot(turn, None, is_free=False)  # of a later format: the number is not ours to take
        return _Slot(turn, found.node, is_free=found.node is None)

    async def _write(self, number: int, turn: int, node: Node | None) -> bool:
        """True when the number's state is this one now."""
        key = _key(number, turn)
        data = msgspec.json.encode(_Registration(FORMAT, node))
        if not await self._create(key, data):
            return False
        turns = sorted(await self._place.keys(f"{FOLDER}/{number:06}"))
        if turns[-1] != key:
            await self._place.delete([key])
            return False
        await self._place.delete([older for older in turns if older < key])
        return True

    async def _create(self, key: str, data: bytes) -> bool:
        """True when the object holds `data` now. Raises Unavailable, Unsure."""
        for left in reversed(range(TRIES_MAX)):
            try:
                return await self._place.create(key, data) or await self._place.get(key) == data
            except (Unsure, Unavailable):
                if not left:
                    raise
            await self._clock.sleep(AGAIN_S)
        raise AssertionError("the last try returns or raises")


def _choose(slots: dict[int, _Slot], node_id: str) -> tuple[int, int]:
    """The number to take, and the turn to take it with."""
    for number, slot in sorted(slots.items()):
        if slot.node is not None and slot.node.id == node_id:
            return number, slot.turn + 1
    for number in range(len(slots) + 1):
        if number not in slots:
            return number, 1
        if slots[number].is_free:
            return number, slots[number].turn + 1
    raise AssertionError("one of so many numbers is not taken")


def _key(number: int, turn: int) -> str:
    return f"{FOLDER}/{number:06}/{turn:012}"


def _numbers(key: str) -> tuple[int, int]:
    _, number, turn = key.rsplit("/", 2)
    return int(number), int(turn)
