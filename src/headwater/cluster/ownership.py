"""Who serves a group: this node follows its log, takes it over when it should, and lets go of it when it must.

Owns when a claim is tried and what follows from losing the group. Never makes anything safe: the log does. Whatever
this module believes of other nodes, a claim succeeds only at the log's end, and fences whoever wrote before.

    away -> standby (follows the log) -> owner -> fenced, handed over or stopped -> away

A group is claimed by the first in line that is ready, when nobody alive says that it owns it and the log was silent
for a while; or at once when its owner hands it over. An owner writes at least a barrier in every third of its lease, so
a silent log has no owner that serves. What an owner that was fenced holds in memory is thrown away: it may hold events
that the log never took.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from headwater.catalog.catalog_copy import copy_catalog
from headwater.catalog.catalog_files import remove_catalog
from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.catalog_snapshots import Snapshot
from headwater.cluster.log_watch import LogGrowth, LogLease
from headwater.cluster.ownership_wiring import Timing, View, Wiring
from headwater.cluster.restore import take_restored
from headwater.cluster.snapshot_upkeep import SnapshotUpkeep
from headwater.engine.checkpoint import checkpoint
from headwater.engine.engine import Engine
from headwater.engine.follower import Follower
from headwater.engine.owned_group import OwnedGroup
from headwater.engine.recovery import INCARNATION_BYTES, LogContradiction, log_of
from headwater.errors import GroupMoved
from headwater.log.medium import Gone, Unavailable, Unsure
from headwater.log.quorum import Behind, LogFailed, QuorumLog
from headwater.log.quorum_entries import Claim
from headwater.ports import CatalogCopy, Clock, Rng

AWAY, STANDBY, OWNER, SUSPENDED = "away", "standby", "owner", "suspended"
STANDBYS = 1
"""Nodes behind the first in line that follow as well."""
_BUILDS_MAX = 3


class GroupOwnership:
    """Of one group. `run` goes on until it is cancelled or `stop` was called."""

    def __init__(
        self, number: int, engine: Engine, view: View, wiring: Wiring, timing: Timing, clock: Clock, rng: Rng
    ) -> None:
        self.number = number
        self.state = AWAY
        self.epoch = 0
        """Of this node's own claim, while it is the owner."""
        self.claims_count = self.hand_overs_count = self.suspensions_count = 0
        self._engine = engine
        self._view = view
        self._wiring = wiring
        self._timing = timing
        self._clock = clock
        self._rng = rng
        self._nudged = asyncio.Event()
        self._leaving = False
        """No claim is made any more: the node drains or stops."""
        self._leaving_s = 0.0
        self._log: QuorumLog | None = None
        self._upkeep: SnapshotUpkeep | None = None
        self._take_epoch = -1
        """The owner of this epoch has handed the group over to this node."""
        self._entry_s = 0.0
        """When the last entry of the log was seen."""
        self._outranked_s: float | None = None
        """Since when another node is first in line."""
        self._unwanted_s: float | None = None
        """Since when this node has no part in the group."""
        self._suspect = False
        """Another node says that it owns the group: a barrier tells."""

    def nudge(self) -> None:
        """Something changed: the group is looked at now."""
        self._nudged.set()

    def asked(self, epoch: int, take: bool) -> bool:
        """The owner of an epoch asks whether this node could take the group over, or tells it to `take` it."""
        log = self._log
        ready = self.state == STANDBY and not self._leaving and log is not None and log.cursor.epoch <= epoch
        if ready and take:
            self._take_epoch = epoch
            self.nudge()
        return ready

    async def run(self) -> None:
        while True:
            self.state, self._log, self._upkeep = AWAY, None, None
            if not self._is_wanted():
                if self._leaving:
                    return
                await self._let_go()
                await self._pause(self._timing.look_s)
                continue
            self._unwanted_s = None
            try:
                await self._take_part()
            except Gone:
                await self._pause(self._timing.look_s)  # purged: a catalog snapshot goes further
            except (Unavailable, Unsure) as error:
                self._wiring.report("group", f"the log of group {self.number} gives no answer: {error.reason}")
                await self._pause(self._timing.retry_s)
            except Exception as error:
                # What it is (a damaged log, an entry of a later version, a disk that is full) stands in the message.
                # This node stays out of the group's way: another one may be able to serve it.
                self._wiring.report("group", f"group {self.number} cannot be followed: {error}")
                await self._pause(self._timing.retry_s)

    def leave(self) -> None:
        """No more claims: an owner hands the group over, a standby lets go of it. `run` returns."""
        self._leaving = True
        self._leaving_s = self._clock.monotonic_s()
        self.nudge()

    async def _let_go(self) -> None:
        """This node has no part in the group: after a while its catalog goes, which nobody clears of what is erased."""
        now_s = self._clock.monotonic_s()
        self._unwanted_s = now_s if self._unwanted_s is None else self._unwanted_s
        if now_s - self._unwanted_s >= self._timing.rebalance_after_s:
            await asyncio.to_thread(remove_catalog, self._wiring.catalog_path(self.number))

    # ---- following ----------------------------------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        return not self._leaving and self._view.me in list(self._view.in_line(self.number))[: 1 + STANDBYS]

    async def _take_part(self) -> None:
        follower, log = await self._build()
        upkeep = SnapshotUpkeep(
            self._wiring.snapshots(self.number),
            log,
            follower.owned.group.catalog,
            self._wiring.snapshot_bytes,
            self._clock,
        )
        if follower.owned.lake_gc is not None:
            follower.owned.lake_gc.covered = lambda: -1 if upkeep.newest is None else upkeep.newest.position
        try:
            self._log, self._upkeep = log, upkeep
            self.state = STANDBY
            self._view.set_ready(self.number, True)
            self._seen()
            if await self._stand_by(follower, log, upkeep):
                self._view.set_ready(self.number, False)
                await self._own(follower.take_over(self.epoch), log, upkeep)
        finally:
            self._engine.leave(self.number)
            self._view.set_ready(self.number, False)
            self.state = AWAY
            await upkeep.stop()
            await follower.stop()
            await log.closed()

    async def _build(self) -> tuple[Follower, QuorumLog]:
        """A group that is true for the log's end as it was. Raises what reading the log raises, LogContradiction."""
        path = self._wiring.catalog_path(self.number)
        snapshots = self._wiring.snapshots(self.number)
        from_snapshot = not path.exists()
        for _ in range(_BUILDS_MAX):
            if from_snapshot:
                found = await asyncio.to_thread(snapshots.found)
                if found:
                    await asyncio.to_thread(snapshots.fetch, max(found), path)
            # After the snapshot: then the log holds everything up to it.
            log = await self._wiring.log(self.number)
            try:
                await log.load()
                catalog = SqliteCatalog(path)
            except BaseException:
                await log.closed()
                raise
            if not (log.identity or log_of(catalog) or from_snapshot):
                # Neither says that anything ever happened: a snapshot says when the log is lost, and not new.
                from_snapshot = True
                catalog.close()
                await log.closed()
                continue
            if log.identity and log_of(catalog) not in ("", log.identity):
                # This catalog is of a log that was lost, and a snapshot says how the group goes on: see decision 0018.
                catalog.close()
                await asyncio.to_thread(take_restored, snapshots, path, log.identity)
                catalog = SqliteCatalog(path)
            if log.head <= catalog.log_floor:
                return await self._begin(log, catalog), log
            # The log was purged beyond what this catalog has: a snapshot has more, or will have.
            from_snapshot = True
            catalog.close()
            await log.closed()
        raise LogContradiction(
            f"the log of group {self.number} begins at position {log.head}, and no catalog snapshot goes as far"
        )

    async def _begin(self, log: QuorumLog, catalog: SqliteCatalog) -> Follower:
        owned = self._wiring.build(self.number, log, catalog)
        follower = Follower(owned, log, self._wiring.streams_loaded_max, Unavailable)
        try:
            await follower.begin()
        except BaseException:
            await follower.stop()
            await log.closed()
            raise
        return follower

    async def _stand_by(self, follower: Follower, log: QuorumLog, upkeep: SnapshotUpkeep) -> bool:
        """Follows until the group is claimed, True, or this node has no part in it any more, False."""
        growth = LogGrowth(log)
        try:
            rested_s = confirmed_s = self._clock.monotonic_s()
            while True:
                try:
                    if not self._is_wanted():
                        return False
                    if growth.is_due or self._may_claim(log):
                        await growth.stop()
                        number = log.cursor.number
                        while await follower.advance():
                            pass
                        if log.cursor.number != number:
                            self._seen()
                        if self._may_claim(log) and await self._claim(log):
                            return True
                        growth.watch()
                except (Unavailable, Unsure):
                    pass  # the log is not reached: what is held stays true, and it is tried again
                now_s = self._clock.monotonic_s()
                if now_s - rested_s >= self._timing.checkpoint_interval_s:
                    rested_s = now_s
                    await follower.rest()
                if now_s - confirmed_s >= self._timing.snapshot_interval_s:
                    confirmed_s = now_s
                    if follower.owned.erasure_marks.due:
                        await follower.rest()  # who is told that an erasure is done counts on it
                    if not follower.owned.erasure_marks.due:
                        upkeep.confirm(log.synced)
                await self._pause(self._timing.look_s, growth.noticed)
                if growth.is_due and not self._may_claim(log):
                    await self._pause(self._timing.gather_s)
        finally:
            await growth.stop()

    def _seen(self) -> None:
        self._entry_s = self._clock.monotonic_s()

    def _may_claim(self, log: QuorumLog) -> bool:
        view, epoch = self._view, log.cursor.epoch
        if self._take_epoch >= epoch:
            return True  # handed over
        if view.successor(self.number) != view.me:
            return False
        if epoch == 0:
            return True  # nobody ever owned it
        claimed = view.claimed(self.number)
        if claimed is not None and claimed[1] >= epoch:
            return False
        if log.owner is not None and log.owner.epoch == epoch and log.owner.owner == view.me:
            return True  # an earlier life of this node
        return self._clock.monotonic_s() - self._entry_s >= self._timing.claim_after_s

    async def _claim(self, log: QuorumLog) -> bool:
        """False: somebody wrote meanwhile, or what was read was not the log's end. It is followed to its end before
        this is tried again; a group that was handed over is still this node's to take."""
        incarnation = self._rng.token(INCARNATION_BYTES).hex()
        claim = Claim(self._view.me, self._wiring.address, self._wiring.cluster_format, 0, incarnation)
        try:
            self.epoch = (await log.claim(claim)).epoch
        except Behind:
            return False
        self._take_epoch = -1
        self.claims_count += 1
        self._wiring.note("claimed", {"group": self.number, "epoch": self.epoch})
        return True

    # ---- owning -------------------------------------------------------------------------------------------------

    async def _own(self, owned: OwnedGroup, log: QuorumLog, upkeep: SnapshotUpkeep) -> None:
        """Serves until the log fails, or the group is handed over. On return nothing more is acknowledged here."""
        log.kept_after = -1  # nothing goes until it is known what a snapshot covers
        owned.on_log_failed = self.nudge
        owned.start()
        self._enter(owned, log)
        self._outranked_s = None
        renewed_s = snapshot_s = self._clock.monotonic_s()
        number = log.cursor.number
        while log.failure is None:
            if (self._leaving or self._is_outranked()) and await self._hand_over(owned, log):
                return
            await self._pause(min(self._timing.look_s, self._timing.lease_s / 3))
            now_s = self._clock.monotonic_s()
            self._suspect = self._suspect or self._is_contested()
            if log.cursor.number != number and not self._suspect:
                renewed_s, number = now_s, log.cursor.number
            elif self._suspect or now_s - renewed_s >= self._timing.lease_s / 3:
                await self._renew(owned, log, renewed_s)
                renewed_s, number, self._suspect = self._clock.monotonic_s(), log.cursor.number, False
            if now_s - snapshot_s >= self._timing.snapshot_interval_s and self.state == OWNER:
                snapshot_s = now_s
                upkeep.write(self._copy, self.epoch, self._loaders_needed())

    def _copy(self, to: Path) -> CatalogCopy:
        return copy_catalog(self._wiring.catalog_path(self.number), to)

    def _loaders_needed(self) -> int:
        """How many nodes have to be able to load a catalog snapshot before the log is purged by it."""
        return min(2, len(self._view.alive()))

    async def snapshot(self) -> Snapshot:
        """Writes a catalog snapshot now. Raises GroupMoved, StoreError, sqlite3.Error, OSError, SnapshotDamaged."""
        owned = self._engine.serving(self.number)
        if self._upkeep is None:
            raise GroupMoved(self.number)
        await checkpoint(owned.group)
        return await self._upkeep.now(self._copy, self.epoch, self._loaders_needed())

    async def forget(self, below: int) -> None:
        """What the log held up to the position goes, which the catalog covers, and so do older catalog snapshots.
        Raises GroupMoved, OSError."""
        if self.state != OWNER or self._upkeep is None:
            raise GroupMoved(self.number)
        await self._upkeep.forget(below, self._copy, self.epoch, self._loaders_needed)

    @property
    def standby_lag_s(self) -> float:
        """Of a standby: since it saw the last entry of the log."""
        return self._clock.monotonic_s() - self._entry_s if self.state == STANDBY else 0.0

    @property
    def snapshot_age_s(self) -> float:
        """Of an owner. See `SnapshotUpkeep`."""
        return self._upkeep.age_s if self.state == OWNER and self._upkeep is not None else 0.0

    @property
    def snapshot_lag_bytes(self) -> int:
        return self._upkeep.lag_bytes if self.state == OWNER and self._upkeep is not None else 0

    def told(self) -> dict[str, Any]:
        """For operators."""
        log, upkeep = self._log, self._upkeep
        newest = None if upkeep is None else upkeep.newest
        return {
            "group": self.number,
            "state": self.state,
            "epoch": self.epoch if self.state == OWNER else 0,
            "position": None if log is None else log.synced,
            "log_head": None if log is None else log.head,
            "snapshot": None if newest is None else newest.told(),
            "snapshot_failure": None if upkeep is None else upkeep.failure,
        }

    def _enter(self, owned: OwnedGroup, log: QuorumLog) -> None:
        """Others claim after a lease without an entry: within one, a read here misses nothing that they acknowledge."""
        self._engine.enter(owned, LogLease(self.number, log, self._timing.lease_s))
        self.state = OWNER

    def _is_contested(self) -> bool:
        claimed = self._view.claimed(self.number)
        return claimed is not None and claimed[1] > self.epoch

    async def _renew(self, owned: OwnedGroup, log: QuorumLog, renewed_s: float) -> None:
        """Returns when the log has taken a barrier, or has failed. While it takes longer than the lease, nothing is
        served: another node may own the group by now."""
        barrier = asyncio.ensure_future(log.barrier())
        left_s = max(0.0, self._timing.lease_s - (self._clock.monotonic_s() - renewed_s))
        lease = asyncio.ensure_future(self._clock.sleep(left_s))
        try:
            await asyncio.wait((barrier, lease), return_when=asyncio.FIRST_COMPLETED)
            if not barrier.done():
                self.state = SUSPENDED
                self.suspensions_count += 1
                self._engine.leave(self.number)
            await barrier
            if self.state == SUSPENDED:
                self._enter(owned, log)
        except LogFailed:
            pass  # `run` sees it
        finally:
            lease.cancel()
            barrier.cancel()

    def _is_outranked(self) -> bool:
        line = self._view.in_line(self.number)
        now_s = self._clock.monotonic_s()
        if not line or line[0] == self._view.me:
            self._outranked_s = None
            return False
        if self._view.is_urgent(self.number):
            return True
        if self._outranked_s is None:
            self._outranked_s = now_s
        return now_s - self._outranked_s >= self._timing.rebalance_after_s

    async def _hand_over(self, owned: OwnedGroup, log: QuorumLog) -> bool:
        """Lets the next in line take the group. False when it cannot just now: then nothing has changed, except that
        a node that leaves lets go of it all the same."""
        target = await self._ready_target()
        if target is None:
            self._outranked_s = None
            if not self._leaving or self._may_wait():
                return False
        # Whatever takes long comes first: requests are served meanwhile.
        await owned.rest()
        self._engine.leave(self.number)
        self.state = AWAY
        self.hand_overs_count += 1
        await log.closed()
        if target is not None and log.failure is None:
            # Whoever does not take the group now takes it when the log has been silent for a while.
            try:
                taken = await self._wiring.tell(target, self.number, self.epoch, True)
                self._wiring.note("handed over", {"group": self.number, "to": target, "taken": taken})
            except Exception as error:
                self._wiring.report("group", f"group {self.number} could not be handed over to {target}: {error}")
        return True

    def _may_wait(self) -> bool:
        """Somebody else may soon be able to take the group: those in line begin to follow when this node drains."""
        others = any(member != self._view.me for member in self._view.in_line(self.number))
        return others and self._clock.monotonic_s() - self._leaving_s < self._timing.leave_s

    async def _ready_target(self) -> str | None:
        for member in self._view.in_line(self.number)[: 1 + STANDBYS + 1]:
            if member == self._view.me:
                if self._leaving:
                    continue
                return None
            try:
                if await self._wiring.tell(member, self.number, self.epoch, False):
                    return member
            except Exception:
                continue  # it is not there: the next one may be
        return None

    async def _pause(self, delay_s: float, other: asyncio.Future[None] | None = None) -> None:
        """Until something happens, `delay_s` at most. `other` goes on."""
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._nudged.wait()),
            asyncio.ensure_future(self._clock.sleep(delay_s)),
        ]
        try:
            await asyncio.wait([*waits, *([] if other is None else [other])], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            self._nudged.clear()


class Ownership:
    """Of all groups of a node."""

    def __init__(self, engine: Engine, view: View, wiring: Wiring, timing: Timing, clock: Clock, rng: Rng) -> None:
        self.groups = [
            GroupOwnership(number, engine, view, wiring, timing, clock, rng) for number in range(engine.groups_count)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.get_running_loop().create_task(group.run()) for group in self.groups]

    def claims(self) -> dict[int, int]:
        """Groups that this node serves, and their epochs: what it tells the others."""
        return {group.number: group.epoch for group in self.groups if group.state == OWNER}

    def changed(self) -> None:
        """What is believed of other nodes has changed."""
        for group in self.groups:
            group.nudge()

    async def asked(self, number: int, epoch: int, take: bool) -> bool:
        """See `GroupOwnership.asked`."""
        return self.groups[number].asked(epoch, take)

    async def drain(self) -> None:
        """Hands every group over to whoever is next in line, and takes none. Returns when this node has none."""
        for group in self.groups:
            group.leave()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Ends everything now: what was not handed over is let go of."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
