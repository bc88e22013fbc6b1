"""What an operator asks of a node: its settings, a checkpoint now, a shorter log, and who owns a group.

Owns `/__headwater/config` and `/__headwater/groups/{g}/snapshot`, `/purge` and, of a node by itself, `/owner`. Never
changes a setting, and never moves a group.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater import config
from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http.admin.groups import GroupCalls
from headwater.doors.http.exchange import Exchange
from headwater.engine.checkpoint import checkpoint
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import LogUnavailable, MethodNotAllowed, NoSuchNode, NoSuchRoute, Overloaded
from headwater.security import policy
from headwater.setting_values import without_credentials


class Administration:
    def __init__(self, engine: Engine, settings: Settings, address: Callable[[], str]) -> None:
        self._questions = engine.questions
        self._settings = settings
        self._address = address
        """Where this node is reached: the name it has as an owner."""

    def register(self, groups: GroupCalls) -> None:
        groups.call("snapshot", self.snapshot, policy.ADMIN_DO)
        groups.call("purge", self.purge, policy.ADMIN_DO)
        groups.call("owner", self.owner, policy.ADMIN_ALL)

    def config(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        """`GET /__headwater/config`: every setting in force, sizes in bytes."""
        exchange.only(b"GET", rest)
        exchange.json(200, {"settings": in_force(self._settings)})

    def snapshot(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        """`POST .../snapshot`: the catalog catches up with the log."""
        exchange.only(b"POST", rest)
        exchange.run(self._snapshot(exchange, owned.group))

    async def _snapshot(self, exchange: Exchange, group: Group) -> None:
        rows_count = await self._checkpoint(group)
        exchange.json(200, {"group": group.number, "position": group.catalog.position, "rows": rows_count})

    def purge(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        """`POST .../purge`: log files that a checkpoint covers go."""
        exchange.only(b"POST", rest)
        exchange.run(self._purge(exchange, owned.group))

    async def _purge(self, exchange: Exchange, group: Group) -> None:
        head = group.log.head
        await self._checkpoint(group)
        # A checkpoint that finds nothing to write trims nothing either; what was held before may be free by now.
        group.log.trim(group.catalog.log_floor)
        position = group.catalog.position
        facts = {"position": position, "log_head": group.log.head, "log_head_before": head}
        exchange.json(200, {"group": group.number, **facts})

    async def _checkpoint(self, group: Group) -> int:
        if group.log.failure is not None:
            raise LogUnavailable(group.log.failure.reason)
        try:
            return await checkpoint(group)
        except Exception as error:
            # As in the upkeep: the log still holds everything, and the next one tries again.
            raise Overloaded(f"the checkpoint failed ({error})") from error

    def owner(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        """`GET .../owner` tells the owner; `POST .../owner/{node}` hands the group to a node."""
        method = exchange.request.method
        address = self._address()
        if rest in (b"", b"/"):
            if method not in (b"GET", b"HEAD"):
                raise MethodNotAllowed("GET, HEAD, OPTIONS")
        else:
            node = parse.path_text(rest)
            if not node.startswith("/") or "/" in node[1:]:
                raise NoSuchRoute
            if method != b"POST":
                raise MethodNotAllowed("POST, OPTIONS")
            if node[1:] != address:
                raise NoSuchNode(node[1:], address)
        worker = self._questions.owner(owned.number)
        exchange.json(200, {"group": owned.number, "owner": address, "worker": worker, "nodes": [address]})


def in_force(settings: Settings) -> dict[str, config.Value]:
    """Settings by name, without what is secret in them."""
    values: dict[str, config.Value] = {setting.name: getattr(settings, setting.name) for setting in config.TABLE}
    texts = {name: without_credentials(value) for name, value in values.items() if isinstance(value, str)}
    return values | texts
