"""All that a program needs to plan a read over every group, in one call: `POST /__headwater/plan`.

Owns the gathering: the process that was asked asks those that serve the groups. Never counts or lists by itself: what
it tells is what `cut`, `lake/files` and `losses` of a group would.

    {"groups": {"0": {"from": 812, "expected": "5b0c…/9d1e…/812", "max_rows": 1000, "max_bytes": null, "files": true}}}
    {"groups": [{"group": 0, "log": …, "position": 9020, "lake_position": 870, "cut": {…}, "files": […], …}]}

Without groups in it, every group tells how far it is, and nothing else. The parts of a group's answer fit together:
`cut` is taken first, then the files, and then the position, which is not below either.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec

from headwater.doors.http.admin.groups import GroupCalls, check_log
from headwater.doors.http.admin.lake import LOSSES_DEFAULT, LakeCalls
from headwater.doors.http.admin.pipeline import FAR, cut
from headwater.doors.http.exchange import Exchange
from headwater.engine.engine import Engine
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BadBody, BadHeader, NoSuchGroup
from headwater.model import json_mode

Count = Annotated[int, msgspec.Meta(ge=0, le=FAR)]


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is wanted of a group."""

    after: Count | None = msgspec.field(default=None, name="from")
    expected: str | None = None
    max_rows: Count | None = None
    max_bytes: Count | None = None
    files: bool = False


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    groups: dict[int, Wish] = {}


_decode = msgspec.json.Decoder(Wanted).decode


class Plans:
    def __init__(self, engine: Engine, groups: GroupCalls, lake: LakeCalls | None) -> None:
        self._engine = engine
        self._groups = groups
        self._lake = lake
        engine.questions.register("plan", self._answer)

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        exchange.only(b"POST", rest)
        body = exchange.request.body
        try:
            wanted = _decode(body or b"{}").groups
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadBody(f'expected {{"groups": {{"0": {{"from": …}}}}}} ({json_mode.fault(error, body)})') from None
        count = self._engine.groups_count
        for number in wanted:
            if not 0 <= number < count:
                raise NoSuchGroup(number, count)
        exchange.run(self._gather(exchange, wanted or {number: Wish() for number in range(count)}))

    async def _gather(self, exchange: Exchange, wanted: dict[int, Wish]) -> None:
        questions = self._engine.questions
        of_member: dict[int, dict[int, Wish]] = {}
        for number, wish in wanted.items():
            of_member.setdefault(questions.owner(number), {})[number] = wish
        asked = (
            questions.ask(member, "plan", msgspec.json.encode(Wanted(some)), into=list[tuple[int, bytes]])
            for member, some in of_member.items()
        )
        found = dict(one for answer in await asyncio.gather(*asked) for one in answer)
        exchange.json(200, {"groups": [msgspec.Raw(found[number]) for number in sorted(found)]})

    async def _answer(self, body: bytes) -> list[tuple[int, bytes]]:
        """For each group its part, as JSON: a list of files is encoded once, and not on the event loop."""
        found = []
        for number, wish in _decode(body).groups.items():
            facts = await self._plan(self._groups.owned(number), wish)
            found.append((number, await asyncio.to_thread(msgspec.json.encode, facts)))
        return found

    async def _plan(self, owned: OwnedGroup, wish: Wish) -> dict[str, Any]:
        group, lake = owned.group, self._lake
        if wish.expected is not None:
            try:
                check_log(group, wish.expected.encode())
            except BadHeader as bad:
                raise BadBody(f"`expected`: {bad.reason}") from None
        facts: dict[str, Any] = {}
        if wish.after is not None and (wish.max_rows is not None or wish.max_bytes is not None):
            start = max(wish.after, group.lake_position())
            rows_max = FAR if wish.max_rows is None else wish.max_rows
            bytes_max = FAR if wish.max_bytes is None else wish.max_bytes
            facts["cut"] = {"from": start, **await cut(group, start, FAR, rows_max, bytes_max)}
        # A list of files takes a checkpoint: it is made when there are some with records that are asked about.
        if lake is not None and wish.files and (wish.after is None or wish.after < group.lake_position()):
            facts |= await lake.files(owned, dict)
        if lake is not None and wish.after is not None:
            lost = await lake.losses(owned, wish.after, LOSSES_DEFAULT, dict)
            facts |= {"losses": lost["losses"], "more_losses": lost["more"]}
        # What the files are complete up to is told, not how far the lake has come since.
        return owned.state() | facts
