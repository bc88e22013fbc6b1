"""All that a program needs to plan a read over every group, in one call: `POST /__headwater/plan`.

Owns the gathering: the process that was asked asks those that serve the groups. Never counts or lists by itself: what
it tells is what `cut`, `lake/files` and `losses` of a group would.

    {"groups": {"0": {"from": 812, "expected": "5b0c…/9d1e…/812", "max_rows": 1000, "max_bytes": null, "files": true}},
     "choice": {"bucket": "orders"}}
    {"groups": [{"group": 0, "log": …, "position": 9020, "lake_position": 870, "cut": {…}, "files": […], …}]}

Without groups in it, every group tells how far it is, and nothing else. The parts of a group's answer fit together:
`cut` is taken first, then what is counted, then the files, and then the position, which is not below either.

With a choice of streams the limits are about these, `matched` counts them in memory, and only files that have something
behind `from` are listed, each with how many rows of theirs it has at most. Of a program that keeps what it was told
(`listed`, `seen`), only files that have come since are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from headwater.doors.http.admin.feed import FAR, chosen_of
from headwater.doors.http.admin.groups import GroupCalls, check_log
from headwater.doors.http.admin.lake import LOSSES_DEFAULT, LakeCalls
from headwater.doors.http.admin.pipeline import cut
from headwater.doors.http.admin.settled import settled_position
from headwater.doors.http.exchange import Exchange
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.hot_records import count
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BadBody, BadHeader, NoSuchGroup
from headwater.model import json_mode
from headwater.model.choices import Choice, Chosen

TRIES_MAX = 5
Count = Annotated[int, msgspec.Meta(ge=0, le=FAR)]


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is wanted of a group."""

    after: Count | None = msgspec.field(default=None, name="from")
    expected: str | None = None
    max_rows: Count | None = None
    max_bytes: Count | None = None
    files: bool = False
    listed: Count | None = None
    """The caller keeps a list of files that is complete up to this position, and was made when"""
    seen: str | None = None
    """the list said this of itself."""


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    groups: dict[int, Wish] = {}
    choice: Choice | None = None


_decode = msgspec.json.Decoder(Wanted).decode
_encode = msgspec.json.encode


class Plans:
    def __init__(
        self,
        engine: Engine,
        groups: GroupCalls,
        lake: LakeCalls | None,
        address: Callable[[int], str | None] = lambda member: None,
    ) -> None:
        """`address` is where clients reach another process by itself, if they can."""
        self._engine = engine
        self._groups = groups
        self._lake = lake
        self._address = address
        engine.questions.register("plan", self._answer)

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        exchange.only(b"POST", rest)
        body = exchange.request.body
        try:
            wanted = _decode(body or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadBody(f'expected {{"groups": {{"0": {{"from": …}}}}}} ({json_mode.fault(error, body)})') from None
        if wanted.choice is not None:
            chosen_of(wanted.choice)
        groups_count = self._engine.groups_count
        for number in wanted.groups:
            if not 0 <= number < groups_count:
                raise NoSuchGroup(number, groups_count)
        groups = wanted.groups or {number: Wish() for number in range(groups_count)}
        exchange.run(self._gather(exchange, groups, wanted.choice))

    async def _gather(self, exchange: Exchange, groups: dict[int, Wish], choice: Choice | None) -> None:
        questions = self._engine.questions
        of_member: dict[int, dict[int, Wish]] = {}
        for number, wish in groups.items():
            of_member.setdefault(questions.owner(number), {})[number] = wish
        asked = (
            questions.ask(member, "plan", _encode(Wanted(some, choice)), into=list[tuple[int, bytes]])
            for member, some in of_member.items()
        )
        found = dict(one for answer in await asyncio.gather(*asked) for one in answer)
        exchange.json(200, {"groups": [msgspec.Raw(found[number]) for number in sorted(found)]})

    async def _answer(self, body: bytes) -> list[tuple[int, bytes]]:
        """For each group its part, as JSON: a list of files is encoded once, and not on the event loop."""
        wanted = _decode(body)
        chosen = None if wanted.choice is None else chosen_of(wanted.choice)
        found = []
        for number, wish in wanted.groups.items():
            facts = await self._plan(self._groups.owned(number), wish, chosen)
            address = self._address(self._engine.questions.me)
            if address is not None:
                facts["address"] = address
            found.append((number, await asyncio.to_thread(_encode, facts)))
        return found

    async def _plan(self, owned: OwnedGroup, wish: Wish, chosen: Chosen | None) -> dict[str, Any]:
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
            facts["cut"] = {"from": start, **await cut(group, start, FAR, rows_max, bytes_max, chosen)}
        if wish.after is not None and chosen is not None:
            facts |= await _matched(group, wish.after, chosen)
            if lake is not None and wish.files and wish.after < settled_position(group):
                known = None if wish.listed is None or wish.seen is None else (wish.listed, wish.seen)
                facts |= await lake.files_after(owned, wish.after, chosen, known)
        # A list of files takes a checkpoint: it is made when there are some with records that are asked about.
        elif lake is not None and wish.files and (wish.after is None or wish.after < group.lake_position()):
            facts |= await lake.files(owned, dict)
        if lake is not None and wish.after is not None:
            lost = await lake.losses(owned, wish.after, LOSSES_DEFAULT, dict)
            facts |= {"losses": lost["losses"], "more_losses": lost["more"]}
        # What the files are complete up to is told, not how far the lake has come since.
        return owned.state() | facts


async def _matched(group: Group, after: int, chosen: Chosen) -> dict[str, Any]:
    """What memory holds of the chosen streams; nothing is told when records settle faster than they are counted."""
    for _ in range(TRIES_MAX):
        start = max(after, group.lake_position())
        found = await count(group, start, FAR, chosen)
        if found is not None:
            told = {"rows": found.rows_count, "bytes": found.payload_bytes, "oldest_ms": found.oldest_ms}
            return {"matched": {"from": start, "position": found.position, **told}}
    return {}
