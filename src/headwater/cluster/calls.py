"""Questions between members: a name and arguments to the process that can answer, its answer back.

Owns their encoding and their connections. Never carries a client's request: those are forwarded whole.

A question is registered once in every process, as a function over the groups of that process. Asking this process
itself is a plain call, so with one process nothing is encoded and nothing is sent.

    POST /__headwater/members/<name>        body and answer: msgpack; a refusal is [class, facts] with status 409

The body is a list of arguments. In a map, {"covered": arguments}, it asks for [groups, answer]: also which groups the
answer is about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from headwater import errors
from headwater.cluster.framing import BadAnswer, ResponseFraming
from headwater.cluster.membership import HTTP, Membership
from headwater.engine.questions import Answer
from headwater.errors import Failure, MemberUnavailable, NoOwner, OutcomeUnknown
from headwater.ports import BlobsUnavailable

PREFIX = "/__headwater/members"
IDLE_CONNECTIONS_MAX = 8
COVERED = "covered"
READ_BYTES = 256 * 1024
TIMEOUT_S = 600.0
"""Some questions are about work that takes long, such as a flush. Who wants an answer sooner limits that itself."""
ANSWERED, REFUSED = 200, 409
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.decode


class Calls:
    """What this process can be asked, and the way to ask the others. See `engine.questions`."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self.me = members.me
        self.alone = members.alone
        self.on_change = members.on_change
        self.owner = members.owner
        self._answers: dict[str, Answer] = {}
        self._idle: dict[int, list[_Line]] = {}

    @property
    def everyone(self) -> Sequence[int]:
        return self._members.everyone

    async def wait_for_owner(self, group: int) -> int:
        return await self._members.wait_for_owner(group)

    def register(self, name: str, answer: Answer) -> None:
        self._answers[name] = answer

    async def ask(self, member: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        """The member's answer, which is an `into`. Raises what it refused with; MemberUnavailable, OutcomeUnknown."""
        if member == self._members.me:
            return await self._answers[name](*arguments)
        return self._taken(member, await self._post(member, name, _encode(arguments)), into)

    def _taken(self, member: int, answered: tuple[int, bytes], into: Any) -> Any:
        status, body = answered
        if status == REFUSED:
            raise _failure(*_decode(body))
        if status != ANSWERED:
            raise OutcomeUnknown(member)  # a fault there, which its log tells of
        return _decode(body, type=into)

    async def ask_owner(self, group: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        return await self.ask(self._members.owner(group), name, *arguments, into=into)

    async def ask_all(self, name: str, *arguments: Any, into: Any = Any) -> list[Any]:
        members = self._members
        unanswered = set(range(members.groups_count))
        for group in unanswered:
            members.owner(group)
        asked = (self._ask_covered(member, name, arguments, into) for member in members.everyone)
        answers = []
        for groups, answer in await asyncio.gather(*asked):
            for group in groups:
                if group not in unanswered:
                    raise NoOwner(group)  # two answers are about it: it changed hands between them
                unanswered.remove(group)
            answers.append(answer)
        if unanswered:
            raise NoOwner(min(unanswered))
        return answers

    async def _ask_covered(
        self, member: int, name: str, arguments: tuple[Any, ...], into: Any
    ) -> tuple[list[int], Any]:
        if member == self._members.me:
            return await self._covered(name, arguments)
        answered = await self._post(member, name, _encode({COVERED: arguments}))
        found: tuple[list[int], Any] = self._taken(member, answered, tuple[list[int], into])
        return found

    async def _covered(self, name: str, arguments: Sequence[Any]) -> tuple[list[int], Any]:
        """An answer, and the groups that it is about: this process served them all the while.

        Raises NoOwner when it gained or lost one meanwhile, which the answer may be about or not.
        """
        groups_of, me = self._members.groups_of, self._members.me
        groups = groups_of(me)
        answer = await self._answers[name](*arguments)
        if changed := {*groups} ^ {*groups_of(me)}:
            raise NoOwner(min(changed))
        return groups, answer

    async def answer(self, name: str, body: bytes) -> tuple[int, bytes]:
        """Status and body for a question that another member asked."""
        answer = self._answers.get(name)
        if answer is None:
            return REFUSED, _encode(("NoSuchRoute", {}))
        try:
            asked = _decode(body)
            if type(asked) is dict:
                return ANSWERED, _encode(await self._covered(name, asked[COVERED]))
            return ANSWERED, _encode(await answer(*asked))
        except BlobsUnavailable as error:
            return REFUSED, _encode(("Overloaded", {"reason": f"the object store does not answer ({error})"}))
        except Failure as failure:
            return REFUSED, _encode((type(failure).__name__, vars(failure)))

    def close(self) -> None:
        for lines in self._idle.values():
            for line in lines:
                line.close()
        self._idle.clear()

    async def _post(self, member: int, name: str, body: bytes) -> tuple[int, bytes]:
        idle = self._idle.setdefault(member, [])
        while idle and idle[-1].is_over:
            idle.pop().close()  # the member was started again since
        line = idle.pop() if idle else await self._connect(member)
        head = b"POST %b/%b HTTP/1.1\r\nhost: member\r\ncontent-length: %d\r\n\r\n" % (
            PREFIX.encode(),
            name.encode(),
            len(body),
        )
        try:
            answered = await asyncio.wait_for(line.post(head + body), TIMEOUT_S)
        except (OSError, BadAnswer, TimeoutError, asyncio.IncompleteReadError):
            line.close()
            raise OutcomeUnknown(member) from None
        except BaseException:
            line.close()
            raise
        if len(idle) < IDLE_CONNECTIONS_MAX:
            idle.append(line)
        else:
            line.close()
        return answered

    async def _connect(self, member: int) -> _Line:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(READ_BYTES, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport = await self._members.connect(member, HTTP, protocol)
        except OSError:
            raise MemberUnavailable(member) from None
        return _Line(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


class _Line:
    """A connection to another member, for one question at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, request: bytes) -> tuple[int, bytes]:
        self._writer.write(request)
        await self._writer.drain()
        framing = ResponseFraming(False)
        held: list[bytes] = []
        while not framing.complete:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise BadAnswer("the connection ended")
            held.append(data[: framing.take(data)])
        return framing.status, b"".join(held)[len(framing.head or b"") :]

    @property
    def is_over(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()


def _failure(name: str, facts: dict[str, Any]) -> Failure:
    """The refusal of another member, as if it had been raised here."""
    kind = getattr(errors, name)
    failure: Failure = kind.__new__(kind)
    for fact, value in facts.items():
        setattr(failure, fact, value)
    return failure
