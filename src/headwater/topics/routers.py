"""The routers of this server: defined in the directory group, and at work where that group is served.

Owns what the door asks of routers, and the workers' start and end. Never answers before the log holds what the answer
rests on. All rules are judged in one step with the logging of what they allow, so no two definitions can pass them
side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headwater.engine.buckets import DIRECTORY
from headwater.engine.engine import Engine
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.owned_group import OwnedGroup
from headwater.engine.router_definitions import (
    Added,
    Passed,
    Removed,
    Router,
    RouterDefinitions,
    RouterEvent,
    encode,
)
from headwater.errors import Failure, GroupMoved, RouterCycle, RouterNotFound
from headwater.model import routers as model
from headwater.model.routers import PassedOver, RouterConfig
from headwater.model.subscriptions import path_of
from headwater.topics.access import TopicAccess
from headwater.topics.router_worker import RouterWorker

HEAD_S = 5.0
"""How long a client that asks for a router waits for the head of its source; then it is told the last known one."""


class Routers:
    """What the door calls, and a `Listener` of the engine."""

    def __init__(self, engine: Engine, access: TopicAccess) -> None:
        self._engine = engine
        self._access = access
        self._at_work: dict[str, tuple[RouterWorker, asyncio.Task[None]]] = {}
        self._copied_before, self._lost_before = 0, 0
        """By workers that have ended."""
        self._ended: set[asyncio.Task[None]] = set()
        engine.questions.register("routers_named_by", self._answer_named_by)
        engine.questions.register("routers_all", self._answer_all)

    # ---- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Called once, when the groups of this process are recovered and their logs are open."""
        self._engine.listeners.append(self)
        if DIRECTORY in self._engine.owned:
            self.entered(self._engine.owned[DIRECTORY])

    def entered(self, owned: OwnedGroup) -> None:
        if owned.number == DIRECTORY:
            for router in self._definitions().by_name.values():
                self._begin(router)

    def left(self, owned: OwnedGroup) -> None:
        if owned.number == DIRECTORY:
            self._end_all()

    async def stop(self) -> None:
        """Ends the workers; what they passed over is noted if it can be. Called while the groups are open."""
        workers = [worker for worker, _ in self._at_work.values()]
        self._end_all()
        await asyncio.gather(*self._ended, return_exceptions=True)
        for worker in workers:
            await worker.finish()
            try:
                worker.note_rest()
            except Failure:
                break  # the group has left, or its log has failed: a restart filters again

    def _begin(self, router: Router) -> None:
        worker = RouterWorker(router, self._access, self._engine.clock, self._noting(router))
        self._at_work[router.name] = worker, asyncio.get_running_loop().create_task(worker.run())

    def _noting(self, router: Router) -> Callable[[PassedOver], None]:
        def note(passed: PassedOver) -> None:
            if self._definitions().by_name.get(router.name) is router:
                self._log(Passed(router.name, passed), None)

        return note

    def _end_all(self) -> None:
        for name in list(self._at_work):
            self._end(name)

    def _end(self, name: str) -> None:
        found = self._at_work.pop(name, None)
        if found is not None:
            worker, task = found
            self._copied_before += worker.copied_count
            self._lost_before += worker.lost_here_count
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)
            task.cancel()

    # ---- what the door asks -------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Routers at work in this process."""
        return len(self._at_work)

    @property
    def copied_count(self) -> int:
        """Records that were forwarded here since the start."""
        return self._copied_before + sum(worker.copied_count for worker, _ in self._at_work.values())

    @property
    def lost_count(self) -> int:
        """Records that retention took before they were forwarded, as seen here since the start."""
        return self._lost_before + sum(worker.lost_here_count for worker, _ in self._at_work.values())

    def lags(self) -> list[int]:
        """Of each router at work here: records of its source that it has not come to, as far as it knows."""
        return [max(0, worker.source_head - worker.cursor) for worker, _ in self._at_work.values()]

    @property
    def stuck_count(self) -> int:
        """Routers at work here that cannot forward just now."""
        return sum(worker.trouble is not None for worker, _ in self._at_work.values())

    async def put(self, name: str, config: RouterConfig) -> tuple[dict[str, Any], bool]:
        """The router as it is shown, and whether it is new. On return it is durable. Raises why it cannot be."""
        definitions = self._definitions()
        new = model.judge(definitions.configs(), model.check_name(name), config)
        if new:
            logged = OutcomeFuture()
            self._log(Added(name, config), logged)
            router = definitions.by_name[name]
            await logged.success()
            # Not before it is durable: nothing is copied for a router that a crash undoes.
            if self._definitions().by_name.get(name) is router and name not in self._at_work:
                self._begin(router)
        else:
            await self.durable()
        return await self.show(name), new

    async def show(self, name: str) -> dict[str, Any]:
        """Raises RouterNotFound."""
        self._router(name)
        await self.durable()
        router = self._router(name)
        head_seq: int | None
        try:
            async with asyncio.timeout(HEAD_S):
                head_seq = await self._access.head_seq(router.config.source)
        except (Failure, TimeoutError):
            head_seq = None
        return self._shown(self._router(name), head_seq)

    async def all(self) -> list[dict[str, Any]]:
        """All of them by name, with the heads of their sources as they are known here."""
        await self.durable()
        return [self._shown(router, None) for _, router in sorted(self._definitions().by_name.items())]

    async def remove(self, name: str) -> None:
        """On return it is durably gone, and nothing more is forwarded. Raises RouterNotFound."""
        self._router(name)
        at_work = self._at_work.get(name)
        logged = OutcomeFuture()
        self._log(Removed(name), logged)
        self._end(name)
        if at_work is not None:
            await at_work[0].finish()
        await logged.success()

    async def named_by(self, key: str) -> list[str]:
        """Names of the routers that read or write a topic, whether or not it is there. Asked in any process."""
        found: list[str] = await self._engine.questions.ask_owner(DIRECTORY, "routers_named_by", key, into=list[str])
        return found

    def about(self, name: str) -> tuple[str, str] | None:
        """Source and destination of a router, by their keys. Asked where the directory group is served."""
        router = self._definitions().by_name.get(name)
        return None if router is None else (router.config.source, router.config.dest)

    def cycle(self, name: str, source: str, dest: str) -> list[str]:
        """Topics of the cycle for which a router would be refused; empty when it would not be, or for something else.
        Asked where the directory group is served."""
        try:
            model.judge(self._definitions().configs(), name, RouterConfig(source, dest))
        except RouterCycle as closed:
            return [path for path in closed.cycle if path is not None]
        except Failure:
            pass
        return []

    async def _answer_all(self) -> list[dict[str, Any]]:
        return await self.all()

    async def everywhere(self) -> list[dict[str, Any]]:
        """`all`, asked in any process."""
        found: list[dict[str, Any]] = await self._engine.questions.ask_owner(DIRECTORY, "routers_all")
        return found

    async def _answer_named_by(self, key: str) -> list[str]:
        configs = self._definitions().configs()
        return sorted(name for name, config in configs.items() if key in (config.source, config.dest))

    async def durable(self) -> None:
        """Returns once all that was decided about routers is durable: answers that rest on it may leave."""
        future = OutcomeFuture()
        self._directory().group.after_pending(future)
        await future.success()

    # ---- inside -------------------------------------------------------------------------------------------------

    def _directory(self) -> OwnedGroup:
        owned = self._engine.owned.get(DIRECTORY)
        if owned is None:
            raise GroupMoved(DIRECTORY)
        return owned

    def _definitions(self) -> RouterDefinitions:
        found = self._directory().group.domains[RouterDefinitions.name]
        if not isinstance(found, RouterDefinitions):
            raise TypeError(f"the domain {RouterDefinitions.name} is another one's")
        return found

    def _router(self, name: str) -> Router:
        router = self._definitions().by_name.get(name)
        if router is None:
            raise RouterNotFound
        return router

    def _log(self, event: RouterEvent, waiter: OutcomeFuture | None) -> None:
        self._directory().group.note(RouterDefinitions.name, encode(event), waiter)

    def _shown(self, router: Router, head_seq: int | None) -> dict[str, Any]:
        """`head_seq` is the source's; None: the worker knows it."""
        config, passed = router.config, router.passed
        at_work = self._at_work.get(router.name)
        cursor, lost_count, trouble, epoch = passed.cursor, passed.lost_count, None, passed.epoch
        if at_work is not None:
            worker = at_work[0]
            cursor, lost_count, trouble, epoch = worker.cursor, worker.lost_count, worker.trouble, worker.epoch
            head_seq = worker.source_head if head_seq is None else head_seq
        head_seq = cursor if head_seq is None else head_seq
        return {
            "router": router.name,
            "config": {
                "source": path_of(config.source),
                "dest": path_of(config.dest),
                "filter": model.show_filter(config.filter),
                "preserve_tag": config.preserve_tag,
                "preserve_node": config.preserve_node,
                "preserve_meta": config.preserve_meta,
                "allow_cycle": config.allow_cycle,
            },
            "state": {
                "cursor": cursor,
                "source_head": head_seq,
                "lag": max(0, head_seq - cursor),
                "lost": lost_count,
                "source_epoch": epoch,
                "trouble": trouble,
            },
        }
