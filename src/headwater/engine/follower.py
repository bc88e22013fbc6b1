"""A group whose log another process writes: its events are made true here as they come.

Owns the group until it is taken over. Never decides anything and never writes to the log: the local catalog and the
memory of the group follow, so that whoever takes over has nothing to replay.

    load -> begin -> advance, advance, ... (checkpoints between) -> claim -> take_over -> the group is served

A swap of the lake's files is in the catalog before the group can be taken over: the owner may have deleted the old
files by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice

from headwater.engine.checkpoint import checkpoint
from headwater.engine.owned_group import OwnedGroup
from headwater.engine.recovery import Fold, LogContradiction, log_of
from headwater.model.events import Event
from headwater.ports import SharedLog

EVICT_SLICE = 5_000
FEED_SLICE = 500
"""Events made true without a pause: some milliseconds of the event loop."""


class Follower:
    def __init__(self, owned: OwnedGroup, log: SharedLog, streams_loaded_max: int, unanswered: type[Exception]) -> None:
        """`log` is the group's own, and has been loaded. All domains of the group are there. `unanswered` is what
        `SharedLog.more` raises when it could not read."""
        self.owned = owned
        self._group = owned.group
        self._log = log
        self._streams_loaded_max = streams_loaded_max
        self._fold = Fold(owned.group)
        self._kept = owned.group.lineage
        self._of_log = log_of(owned.group.catalog)
        self._unanswered = unanswered
        self._whole = False
        """The group is true for the log's position. Otherwise nothing of it may be kept."""
        self._owns = False

    async def begin(self) -> None:
        """Makes true what was loaded. Raises LogContradiction."""
        self._check_identity()
        await self._feed(self._log.replay(self._fold.checkpoint))

    async def advance(self) -> bool:
        """Makes true what came since; False when that was the log's end for now. Raises what `SharedLog.more` raises,
        and LogContradiction."""
        self._whole = False
        try:
            events = await self._log.more()
        except Exception as error:
            # Without an answer nothing was taken. Otherwise the log may stand behind events that it never handed out.
            self._whole = isinstance(error, self._unanswered)
            raise
        await self._feed(iter(events))
        return bool(events)

    async def _feed(self, events: Iterator[tuple[int, Event]]) -> None:
        """In slices: other groups of this process are being served."""
        self._whole = False
        self._begin_incarnations()
        while some := list(islice(events, FEED_SLICE)):
            self._fold.feed(some)
            await asyncio.sleep(0)
        self._fold.check()
        self._whole = True
        if self._group.loaded.new_swaps:
            await self._checkpoint()

    async def rest(self) -> None:
        """What a group that is not served needs now and then: a checkpoint, and room."""
        if await self._checkpoint():
            await self.owned.clear_traces()
        self._group.loaded.evict(self._streams_loaded_max, EVICT_SLICE)
        self._group.loaded.tidy()
        self._fold.tidy()

    async def _checkpoint(self) -> bool:
        """False: not now."""
        if self._is_amid_swap():
            return False
        self._keep_incarnations()
        await checkpoint(self._group)
        return True

    def _is_amid_swap(self) -> bool:
        """A swap that was begun before the last claim never ends."""
        return self._fold.ends_amid_swap(self._group.lineage.newest.position if self._group.lineage.incarnations else 0)

    def take_over(self, epoch: int) -> OwnedGroup:
        """The log is claimed, and was followed up to the claim: the group can be served from now on."""
        if not self._whole:
            raise RuntimeError("a group is taken over that was not followed to its log's end")
        self._check_identity()
        self._begin_incarnations()
        self._fold.finish()
        self._keep_incarnations()
        self._group.epoch, self._group.identity = epoch, self._log.identity
        self._owns = True
        self.owned.open()
        return self.owned

    async def stop(self) -> None:
        """Ends everything, served or not. What the catalog lacks is kept, as far as it is known to stay."""
        if not self._whole or (not self._owns and self._is_amid_swap()):
            self._log.give_up("it was not followed to its end, or to that of a swap of files")
        if self._log.failure is None:
            self._keep_incarnations()
        await self.owned.stop()

    def _check_identity(self) -> None:
        known, identity = self._of_log, self._log.identity
        if known and known != identity:
            found = f"this is log {identity}: the log was deleted and made again" if identity else "this log is empty"
            raise LogContradiction(
                f"the catalog is of log {known}, and {found}. Bring that log back, or stop the nodes and see: "
                "headwater ctl restore"
            )

    def _begin_incarnations(self) -> None:
        group = self._group
        for id, position in self._log.incarnations():
            if not group.lineage.incarnations:
                group.lineage = group.lineage.begun(self._log.identity, 0)
            if all(one.id != id for one in group.lineage.incarnations):
                group.lineage = group.lineage.begun(id, position)

    def _keep_incarnations(self) -> None:
        """Before a checkpoint: the log need not hold them any more afterwards."""
        if self._group.lineage is not self._kept:
            self._group.catalog.keep_incarnations(self._group.lineage.incarnations)
            self._kept = self._group.lineage
