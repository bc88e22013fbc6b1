"""The nodes of a cluster as `membership.Membership`: owners as the view sees them, connections over TCP.

Owns connections to other nodes until they are introduced, and their end when a node stops answering. Never decides who
is alive: the view does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import structlog

from headwater.cluster.gate import keep_alive
from headwater.cluster.introduction import Introducing, introduction
from headwater.cluster.membership import HTTP
from headwater.cluster.nodes import Node
from headwater.cluster.view import View

CONNECT_S_MAX = 2.0
OWNER_S_MAX = 3.0
"""A group that changes hands has an owner again in less than a second; one whose owner was killed in less than this."""
HELD_MIN = 64
WAITING_MAX = 10_000
"""Who waits for an owner. Overflow: they are refused, and try again."""

log = structlog.get_logger("headwater.cluster")


Tls = Callable[[], ssl.SSLContext]
"""What a connection to another node begins with now."""


async def answers(node: Node, secret: bytes, tls: Tls | None = None) -> bool:
    """Whether the node with that id is at its address: it alone knows a connection that is meant for it."""
    host, _, port = node.address.rpartition(":")
    introducing = Introducing(introduction(secret, node.id, HTTP), asyncio.Protocol())
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            loop = asyncio.get_running_loop()
            secure = None if tls is None else tls()
            transport, _ = await loop.create_connection(lambda: introducing, host.strip("[]"), int(port), ssl=secure)
            await introducing.done
    except (OSError, TimeoutError):
        return False
    finally:
        introducing.done.cancel()
        if transport is not None:
            transport.abort()
    return True


class _Transports:
    """Connections to a node that may be open: those that are over are let go of when there are twice as many. A
    transport with TLS cannot be referred to weakly."""

    def __init__(self) -> None:
        self._held: set[asyncio.Transport] = set()
        self._look_at = HELD_MIN

    def add(self, transport: asyncio.Transport) -> None:
        if len(self._held) >= self._look_at:
            self._held = {one for one in self._held if not one.is_closing()}
            self._look_at = max(HELD_MIN, 2 * len(self._held))
        self._held.add(transport)

    def abort(self) -> None:
        for transport in self._held:
            transport.abort()


class Peers:
    alone = False

    def __init__(self, view: View, secret: bytes, tls: Tls | None = None) -> None:
        """`tls`: None connects without."""
        self._tls = tls
        self.view = view
        self.me = view.me
        self.groups_count = view.groups_count
        self.on_change = view.on_change
        self.owner = view.owner
        self.groups_of = view.groups_of
        self._secret = secret
        self._connections: dict[int, tuple[str, _Transports]] = {}
        """By member: the run that it was in, and the connections to it."""
        self._reported: set[str] = set()
        """Runs of nodes that refused this one, which was logged."""
        self._alive = set(view.alive)
        self._waiting: set[tuple[int, asyncio.Future[None]]] = set()
        """Who waits for the owner of which group."""
        view.on_change.append(self._cut_off)
        view.on_change.append(self._wake_waiting)

    @property
    def everyone(self) -> list[int]:
        return self.view.alive

    @property
    def version(self) -> int:
        return self.view.version

    async def wait_for_owner(self, group: int) -> int:
        """Who waits is told as soon as somebody owns the group. Raises NoOwner: nobody does for too long, or too many
        wait."""
        if self.view.claim_of(group) is None and len(self._waiting) < WAITING_MAX:
            waiting = group, asyncio.get_running_loop().create_future()
            self._waiting.add(waiting)
            try:
                async with asyncio.timeout(OWNER_S_MAX):
                    await waiting[1]
            except TimeoutError:
                pass
            finally:
                self._waiting.discard(waiting)
        return self.owner(group)

    def _wake_waiting(self) -> None:
        """Costs grow with who waits."""
        for group, found in self._waiting:
            if not found.done() and self.view.claim_of(group) is not None:
                found.set_result(None)

    def public_address(self, member: int) -> str | None:
        node = self.view.node_of(member)
        return None if node is None else node.public_address or None

    async def connect(self, member: int, door: str, protocol: asyncio.Protocol) -> asyncio.Transport:
        """See `Membership`."""
        node = self.view.node_of(member)
        if node is None:
            raise ConnectionRefusedError(f"there is no node {member}")
        host, _, port = node.address.rpartition(":")
        introducing = Introducing(introduction(self._secret, node.id, door), protocol)
        loop = asyncio.get_running_loop()
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                secure = None if self._tls is None else self._tls()
                transport, _ = await loop.create_connection(
                    lambda: introducing, host.strip("[]"), int(port), ssl=secure
                )
                keep_alive(transport)
                await introducing.done
            # Out of reach of the time limit: it may pass in the very turn in which the other node's answer comes.
            introducing.hand_over()
        except BaseException as error:
            introducing.done.cancel()
            if transport is not None:
                transport.abort()
            if isinstance(error, ssl.SSLError) and node.run not in self._reported:
                self._reported.add(node.run)
                reason = f"{error.reason}: {getattr(error, 'verify_message', '')}"
                log.error("no TLS with a node", node=member, address=node.address, reason=reason)
            if introducing.was_refused and node.run not in self._reported:
                self._reported.add(node.run)
                log.error("a node does not let this one in", node=member, address=node.address, reason=str(error))
            raise
        run, connections = self._connections.get(member, ("", _Transports()))
        if run != node.run:
            connections = _Transports()
            self._connections[member] = (node.run, connections)
        connections.add(transport)
        return transport

    def _cut_off(self) -> None:
        """Ends the connections to nodes that do not answer any more: who waits for them is told now, not when the
        network gives up."""
        before, self._alive = self._alive, set(self.view.alive)
        gone = before - self._alive  # not who has yet to answer: that would cut off the question
        for member, (run, connections) in list(self._connections.items()):
            node = self.view.node_of(member)
            if member in gone or node is None or node.run != run:
                del self._connections[member]
                connections.abort()
