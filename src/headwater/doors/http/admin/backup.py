"""Backups over HTTP: a hold on one consistent cut of a group, and the two files that tell of it.

Owns `/__headwater/groups/{g}/backup` and what is below it. Never sends records or snapshots themselves: those are
objects of the lake, and whoever makes a backup copies them from there while the hold lasts.

    POST   .../backup                   {"hold_ms": 3600000} -> id, position, sizes, names of objects
    GET    .../backup/{id}              the same without the names; like every GET it renews the hold
    GET    .../backup/{id}/catalog?from=0&size=16777216       bytes of the catalog's copy
    GET    .../backup/{id}/log?from=0&size=16777216           bytes of the log after it
    DELETE .../backup/{id}              ends the hold
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from headwater.doors.http import headers as parse
from headwater.doors.http.exchange import Exchange
from headwater.engine.backup import Backups, Hold
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BadBody, BadQuery, MethodNotAllowed, NoSuchRoute
from headwater.model import json_mode

HOLD_MS_DEFAULT, HOLD_MS_MIN, HOLD_MS_MAX = 3_600_000, 100, 86_400_000
PART_BYTES_DEFAULT = 16 * 1024 * 1024
PART_BYTES_MAX = 64 * 1024 * 1024
_FAR = 1 << 59
_POST, _GET, _GET_DELETE = "POST, OPTIONS", "GET, OPTIONS", "GET, DELETE, OPTIONS"


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hold_ms: int = HOLD_MS_DEFAULT


_decode = msgspec.json.Decoder(Wish).decode


class BackupDoor:
    def __init__(self, groups_count: int, lake: dict[str, str | None], in_cluster: bool = False) -> None:
        self._groups_count = groups_count
        self._in_cluster = in_cluster
        self._lake = lake
        """Where the lake's objects are: url, endpoint, region."""

    def handle(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        backups = owned.backups
        if backups is None:
            raise BadQuery("backup", "this node keeps nothing that could be backed up")
        method = exchange.request.method
        if rest and not rest.startswith(b"/"):
            raise NoSuchRoute
        parts = [] if rest in (b"", b"/") else parse.path_text(rest[1:]).split("/")
        if not parts:
            _only(method, _POST)
            exchange.run(self._take(exchange, owned.number, backups, _wish(exchange.request.body)))
        elif len(parts) == 1:
            _only(method, _GET_DELETE)
            if method == b"DELETE":
                exchange.run(self._drop(exchange, backups, parts[0]))
            else:
                exchange.json(200, self._facts(owned.number, _held(backups, parts[0])))
        elif len(parts) == 2 and parts[1] in ("catalog", "log"):
            _only(method, _GET)
            wanted = parse.query(query, ("from", "size"))
            start = parse.whole(wanted, "from", 0, _FAR)
            size = min(parse.whole(wanted, "size", PART_BYTES_DEFAULT, _FAR), PART_BYTES_MAX)
            hold = _held(backups, parts[0])
            exchange.run(self._part(exchange, hold.catalog if parts[1] == "catalog" else hold.log, start, size))
        else:
            raise NoSuchRoute

    def _facts(self, group: int, hold: Hold) -> dict[str, object]:
        return {
            "id": hold.id,
            "group": group,
            "groups": self._groups_count,
            "position": hold.position,
            "hold_ms": hold.hold_ms,
            "catalog_bytes": hold.catalog_bytes,
            "log_bytes": hold.log_bytes,
            "log_files": [{"position": position, "bytes": size} for position, size in hold.log_pieces],
            "lake": self._lake,
            "in_cluster": self._in_cluster,
        }

    async def _take(self, exchange: Exchange, group: int, backups: Backups, wish: Wish) -> None:
        hold = await backups.take(wish.hold_ms)
        exchange.json(200, {**self._facts(group, hold), "files": hold.files, "blobs": hold.blobs})

    async def _drop(self, exchange: Exchange, backups: Backups, name: str) -> None:
        if not await backups.drop(name):
            raise NoSuchRoute
        exchange.empty(204, [])

    async def _part(self, exchange: Exchange, path: Path, start: int, size: int) -> None:
        try:
            body = await asyncio.to_thread(_read, path, start, size)
        except FileNotFoundError:
            raise NoSuchRoute from None  # the hold ended meanwhile
        headers = [("Content-Type", "application/octet-stream"), ("Cache-Control", "no-store")]
        exchange.reply(exchange.responder.full(200, headers, body, exchange.request.keep_alive))


def _held(backups: Backups, name: str) -> Hold:
    hold = backups.find(name)
    if hold is None:
        raise NoSuchRoute
    return hold


def _wish(body: bytes) -> Wish:
    try:
        wish = _decode(body) if body else Wish()
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadBody(f"expected an object with hold_ms ({json_mode.fault(error, body)})") from None
    if not HOLD_MS_MIN <= wish.hold_ms <= HOLD_MS_MAX:
        raise BadBody(f"hold_ms is from {HOLD_MS_MIN} to {HOLD_MS_MAX}")
    return wish


def _read(path: Path, start: int, size: int) -> bytes:
    """Up to `size` bytes from `start` on; none after the end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = []
        while size and (part := os.pread(descriptor, size, start)):
            found.append(part)
            start += len(part)
            size -= len(part)
        return found[0] if len(found) == 1 else b"".join(found)
    finally:
        os.close(descriptor)


def _only(method: bytes, allowed: str) -> None:
    if method.decode("latin-1") not in allowed.split(", "):
        raise MethodNotAllowed(allowed)
