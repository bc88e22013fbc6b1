"""What an operator sees of a cluster, and asks of it: `/__headwater/cluster` and what is below.

Owns these calls and the questions between nodes behind them. Never moves a group itself: nodes hand groups over when
what they believe of each other says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from headwater.cluster.catalog_snapshots import SnapshotDamaged
from headwater.cluster.description import Description
from headwater.cluster.nodes import Registry
from headwater.cluster.ownership import Ownership
from headwater.cluster.view import View
from headwater.doors.http import headers as parse
from headwater.doors.http.admin.groups import GroupCalls
from headwater.doors.http.exchange import Exchange
from headwater.engine.owned_group import OwnedGroup
from headwater.engine.questions import Questions
from headwater.errors import (
    BadBody,
    MemberUnavailable,
    NodeIsAlive,
    NoSuchGroup,
    NoSuchNode,
    NoSuchRoute,
    NotACluster,
    Overloaded,
)
from headwater.lake.store import StoreError
from headwater.log.medium import MediumError
from headwater.security import policy

PREFIX = "/__headwater/cluster"
ABOUT_BYTES_MAX = 200
"""Of a body, which says which node or group is meant."""


class _Drain(msgspec.Struct, forbid_unknown_fields=True):
    node: int | None = None
    draining: bool = True


class _Move(msgspec.Struct, forbid_unknown_fields=True):
    group: int
    node: int | None


class _Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    group: int | None = None


class _Forget(msgspec.Struct, forbid_unknown_fields=True):
    node: int


class ClusterCalls:
    def __init__(
        self,
        view: View,
        ownership: Ownership,
        registry: Registry,
        description: Description,
        log_kind: str,
        questions: Questions,
    ) -> None:
        self._view = view
        self._ownership = ownership
        self._registry = registry
        self._description = description
        self._log_kind = log_kind
        self._questions = questions
        self._calls: dict[bytes, Callable[[Exchange], Awaitable[Any]]] = {
            b"/drain": self._drain,
            b"/move": self._move,
            b"/snapshot": self._snapshot,
            b"/forget": self._forget,
        }
        questions.register("cluster_drain", self._answer_drain)
        questions.register("cluster_prefer", self._answer_prefer)
        questions.register("cluster_snapshot", self._answer_snapshot)

    def register(self, groups: GroupCalls) -> None:
        groups.call("ownership", self._of_group, policy.ADMIN_ALL)
        groups.call("owner", self._owner, policy.ADMIN_ALL)  # instead of what a node by itself answers

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        if rest in (b"", b"/"):
            exchange.only(b"GET")
            exchange.json(200, self.told())
            return
        call = self._calls.get(rest)
        if call is None:
            raise NoSuchRoute
        exchange.only(b"POST")
        exchange.is_about(exchange.request.body[:ABOUT_BYTES_MAX].decode("utf-8", "replace"))
        exchange.run(self._answered(exchange, call))

    async def _answered(self, exchange: Exchange, call: Callable[[Exchange], Awaitable[Any]]) -> None:
        exchange.json(200, await call(exchange))

    def told(self) -> dict[str, Any]:
        """The cluster as this node sees it. Costs grow with nodes times groups."""
        view, alive = self._view, set(self._view.alive)
        nodes: list[dict[str, Any]] = []
        for member in sorted({view.me, *view.others}):
            node, state = view.node_of(member), view.state_of(member)
            if node is None or state is None:
                continue
            nodes.append(
                {
                    "node": member,
                    "id": node.id,
                    "run": node.run,
                    "address": node.address,
                    "public_address": node.public_address,
                    "version": node.version,
                    "zone": node.zone,
                    "started_ms": node.started_ms,
                    "reads_format": node.reads_format,
                    "alive": member in alive,
                    "draining": state.draining,
                    "groups": view.groups_of(member),
                    "ready": list(state.ready) if member in alive else [],
                }
            )
        groups = []
        for group in range(view.groups_count):
            claim = view.claim_of(group)
            ready = [one["node"] for one in nodes if group in one["ready"]]
            owner = None if claim is None else claim.member
            line = view.in_line(group)
            groups.append(
                {"group": group, "owner": owner, "epoch": view.epoch_of(group), "in_line": line, "ready": ready}
            )
        return {
            "name": self._description.id,
            "log": self._log_kind,
            "format": self._description.format,
            "groups_count": view.groups_count,
            "node": view.me,
            "settled": view.settled,
            "nodes": nodes,
            "groups": groups,
        }

    def _of_group(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        """`GET /__headwater/groups/{g}/ownership`, at the owner."""
        exchange.only(b"GET", rest)
        exchange.json(200, {"node": self._view.me, **self._ownership.groups[owned.number].told()})

    def _owner(self, exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
        """`GET .../owner` tells the owner; `POST .../owner/{node}` moves the group to a node, by number or address."""
        if rest in (b"", b"/"):
            exchange.only(b"GET")
            nodes = self._addresses()
            owner = nodes[self._view.me]
            told = {"group": owned.number, "owner": owner, "node": self._view.me, "nodes": list(nodes.values())}
            exchange.json(200, told)
            return
        exchange.only(b"POST")
        wanted = parse.path_text(rest)[1:]
        nodes = self._addresses()
        member = next((one for one, address in nodes.items() if wanted in (str(one), address)), None)
        if member is None:
            raise NoSuchNode(wanted, self._names())

        async def moved(exchange: Exchange) -> Any:
            return await self._prefer(owned.number, member)

        exchange.run(self._answered(exchange, moved))

    def _addresses(self) -> dict[int, str]:
        """Where clients reach the nodes that are alive."""
        found = ((member, self._view.node_of(member)) for member in self._view.alive)
        return {member: node.public_address for member, node in found if node is not None}

    def _names(self) -> str:
        return ", ".join(f"{member} ({address})" for member, address in self._addresses().items())

    # ---- what is asked for ----------------------------------------------------------------------------------------

    async def _drain(self, exchange: Exchange) -> Any:
        asked = _body(exchange, _Drain)
        member = self._view.me if asked.node is None else self._alive(asked.node)
        await self._questions.ask(member, "cluster_drain", asked.draining)
        return {"node": member, "draining": asked.draining}

    async def _answer_drain(self, draining: bool) -> None:
        self._view.drain(draining)

    async def _move(self, exchange: Exchange) -> Any:
        asked = _body(exchange, _Move)
        self._check_group(asked.group)
        if asked.node is not None:
            self._alive(asked.node)
        return await self._prefer(asked.group, asked.node)

    async def _prefer(self, group: int, wanted: int | None) -> dict[str, int | None]:
        # The one that is preferred comes last: until then nobody is, and the group stays where it is.
        for member in sorted(self._view.alive, key=lambda member: member == wanted):
            await self._questions.ask(member, "cluster_prefer", group, member == wanted)
        return {"group": group, "node": wanted}

    async def _answer_prefer(self, group: int, preferred: bool) -> None:
        self._view.prefer(group, preferred)

    async def _snapshot(self, exchange: Exchange) -> Any:
        asked = _body(exchange, _Snapshot)
        if asked.group is not None:
            self._check_group(asked.group)
        numbers = range(self._view.groups_count) if asked.group is None else [asked.group]
        written = [await self._questions.ask_owner(number, "cluster_snapshot", number) for number in numbers]
        return {"groups": written}

    async def _answer_snapshot(self, group: int) -> dict[str, int]:
        try:
            snapshot = await self._ownership.groups[group].snapshot()
        except (OSError, StoreError, SnapshotDamaged) as error:
            raise Overloaded(f"the catalog snapshot of group {group} failed ({error})") from error
        return {"group": group, **snapshot.told()}

    async def _forget(self, exchange: Exchange) -> Any:
        asked = _body(exchange, _Forget)
        node = self._view.node_of(asked.node)
        if node is None:
            raise NoSuchNode(str(asked.node), self._names())
        if asked.node in self._view.alive:
            raise NodeIsAlive(asked.node)
        try:
            forgotten = await self._registry.forget(node)
        except MediumError as error:
            raise Overloaded(f"the object store does not answer ({error.reason})") from error
        return {"node": asked.node, "forgotten": forgotten}

    def _check_group(self, group: int) -> None:
        if not 0 <= group < self._view.groups_count:
            raise NoSuchGroup(group, self._view.groups_count)

    def _alive(self, member: int) -> int:
        """Raises NoSuchNode, MemberUnavailable."""
        if self._view.node_of(member) is None:
            raise NoSuchNode(str(member), self._names())
        if member not in self._view.alive:
            raise MemberUnavailable(member)
        return member


def no_cluster(exchange: Exchange, rest: bytes, query: bytes) -> None:
    """Of a node by itself."""
    raise NotACluster


def _body(exchange: Exchange, kind: Any) -> Any:
    """Raises BadBody."""
    try:
        return msgspec.json.decode(exchange.request.body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadBody(str(error)) from None
