"""The routers that are defined, as the directory group's log and catalog keep them.

Owns the fold of their events and the rows of a checkpoint. Never decides (`model.routers` does) and never forwards.

Rows in the catalog, msgpack arrays, by the router's name: config, created ms, passed over.
"""

from __future__ import annotations

import msgspec

from headwater.engine.row_changes import RowChanges
from headwater.model.routers import PassedOver, RouterConfig


class Added(msgspec.Struct, frozen=True, array_like=True, tag=1):
    name: str
    config: RouterConfig


class Removed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    name: str


class Passed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    name: str
    passed: PassedOver


RouterEvent = Added | Removed | Passed

_Row = tuple[RouterConfig, int, PassedOver]
_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(RouterEvent).decode
_decode_row = msgspec.msgpack.Decoder(_Row).decode


def encode(event: RouterEvent) -> bytes:
    return _encode(event)


class Router:
    __slots__ = ("config", "created_ms", "name", "passed")

    def __init__(self, name: str, config: RouterConfig, created_ms: int, passed: PassedOver) -> None:
        self.name = name
        self.config = config
        self.created_ms = created_ms
        self.passed = passed


class RouterDefinitions(RowChanges):
    """The `Domain` of routers, of one group. Only that of the directory group ever has any."""

    name = "routers"
    in_memory = True

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[str, Router] = {}

    def configs(self) -> dict[str, RouterConfig]:
        return {name: router.config for name, router in self.by_name.items()}

    # ---- the Domain ---------------------------------------------------------------------------------------------

    def apply(self, body: bytes, at_ms: int, position: int) -> None:
        event = _decode_event(body)
        name = event.name
        if isinstance(event, Added):
            self.by_name[name] = Router(name, event.config, at_ms, PassedOver())
        elif isinstance(event, Removed):
            self.by_name.pop(name, None)
        elif name in self.by_name:
            self.by_name[name].passed = event.passed
        router = self.by_name.get(name)
        self._changes[name] = None if router is None else _encode((router.config, router.created_ms, router.passed))

    def restore(self, things: dict[str, bytes]) -> None:
        for name, row in things.items():
            self.by_name[name] = Router(name, *_decode_row(row))
