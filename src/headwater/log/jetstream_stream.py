"""The stream of one group in JetStream: reading its messages, and finding entries among them.

Owns the reads, from the stream's leader and from any server that holds it, and tells the stream from another one of the
same name. Never writes a message. What a message looks like is drawn in `jetstream`.

Any of these answers may be old: a server that no longer leads a stream may not know it. Nothing is decided by them but
what a condition on the next write, or the entries themselves, would show.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, NamedTuple

from nats.aio.msg import Msg

from headwater.log.jetstream_connection import NatsConnection, NoAnswer, NotDelivered
from headwater.log.jetstream_servers import Refused
from headwater.log.medium import Gone, Lost, Unavailable
from headwater.ports import Clock

ANSWER_S_MAX = 2.0
_AT_ONCE_S = 0.5
_READ_S = (0.5, 1.0, 2.0)
"""Each time another server may be asked."""
ENTRY_HEADER = "Headwater-Entry"
STREAM_NOT_FOUND = 10059
_NO_MESSAGE = 10037
_MESSAGES_MAX = 1000
_READ_AGAIN_S = 0.1
_LOOKS = 5
_LOOK_AGAIN_S = 0.1
_ELECTION_NS_MIN = 3_000_000_000
"""A server stands for election when it has not heard from the leader for 4 s or more."""
_MARK = re.compile(r"(\d+) (\d+) (\d+)")


class Place(NamedTuple):
    """Where an entry is; without messages: where it will be."""

    number: int
    sequence: int
    messages: int

    @property
    def after(self) -> int:
        return self.sequence + self.messages


class Mark(NamedTuple):
    """What a message says it is."""

    number: int
    part: int
    parts_count: int


class ApiError(Exception):
    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description


NO_RESULT = (NotDelivered, NoAnswer, ApiError)


class LogStream:
    def __init__(self, connection: NatsConnection, info: dict[str, Any], clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        config = info["config"]
        self.name = str(config["name"])
        subjects = config.get("subjects") or []
        if len(subjects) != 1 or not subjects[0].endswith(".log"):
            raise Refused(f"the NATS stream {self.name} has other subjects than a log ({subjects}): it is not one")
        self.subject = str(subjects[0])
        self.told_last = 0
        """The newest sequence when its leader was last asked where an entry is: another server may not have it yet."""

    @property
    def incarnation(self) -> str:
        """Unlike that of any other stream, also of one with the same name."""
        return self.subject.split(".")[-2]

    @property
    def hints(self) -> str:
        """The subject on which the stream's leader says that something was stored."""
        return self.subject.removesuffix("log") + "stored"

    # ---- messages -----------------------------------------------------------------------------------------------

    async def info(self, within_s: float = ANSWER_S_MAX) -> dict[str, Any]:
        """From the leader. Raises Lost when it is another stream, and NO_RESULT."""
        try:
            info = await ask(self._connection, f"STREAM.INFO.{self.name}", {}, within_s)
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                raise Lost(f"the NATS stream {self.name} was deleted: restore it, or restore the cluster") from error
            raise
        if info["config"].get("subjects") != [self.subject]:
            raise Lost(f"the NATS stream {self.name} was deleted and made again, or its subjects were changed")
        return info

    async def info_if_known(self) -> dict[str, Any] | None:
        """None when nobody answers at once. Raises Lost."""
        try:
            return await self.info(_AT_ONCE_S)
        except NO_RESULT:
            return None

    async def message(self, sequence: int) -> tuple[Mark, bytes] | None:
        """As the leader has it; None when it has none there. Raises Lost, NO_RESULT."""
        try:
            found = await ask(self._connection, f"STREAM.MSG.GET.{self.name}", {"seq": sequence})
        except ApiError as error:
            if error.code == _NO_MESSAGE:
                return None
            raise
        stored = found["message"]
        headers = {"Nats-Subject": str(stored["subject"]), "Nats-Sequence": str(stored["seq"])}
        for line in base64.b64decode(stored.get("hdrs", "")).decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                headers.setdefault(name.strip(), value.strip())
        return self._judge(headers)[1], base64.b64decode(stored.get("data", ""))

    async def messages(self, sequence: int, bytes_max: int) -> list[tuple[int, Mark, bytes]] | None:
        """From `sequence` or the next one that is there, in order, as any of the servers has them. None when they give
        no answer: the one that is asked may be stopped, and the others do not know; or the server of this connection
        has not heard yet who answers, as after the stream was made and after its leader moved. Raises Unavailable,
        Lost."""
        request = json.dumps({"seq": sequence, "batch": _MESSAGES_MAX, "max_bytes": bytes_max}).encode()
        for within_s in _READ_S:
            try:
                *found, status = await self._connection.ask_for_many(
                    f"$JS.API.DIRECT.GET.{self.name}", request, within_s
                )
            except NotDelivered:
                await self.info_if_known()  # tells a stream that is gone from one that nobody answers for yet
                await self._clock.sleep(_READ_AGAIN_S)
                continue
            except NoAnswer:
                continue
            if (status.headers or {}).get("Status") not in ("204", "404"):
                raise Unavailable(f"{self.name} cannot be read: {status.headers}")
            return [(*self._judge(message.headers or {}), message.data) for message in found]
        return None

    def _judge(self, headers: dict[str, str]) -> tuple[int, Mark]:
        sequence = int(headers["Nats-Sequence"])
        if headers.get("Nats-Subject") != self.subject:
            raise Lost(
                f"the NATS stream {self.name} was deleted and made again: it holds {headers.get('Nats-Subject')} "
                f"where {self.subject} was written"
            )
        mark = _MARK.fullmatch(headers.get(ENTRY_HEADER, ""))
        if mark is None:
            raise Lost(f"{self.name} holds a message at {sequence} that is no part of a log")
        return sequence, Mark(int(mark[1]), int(mark[2]), int(mark[3]))

    def unreadable(self, error: Exception) -> Unavailable:
        return Unavailable(f"{self.name} cannot be read: {error}")

    # ---- entries ------------------------------------------------------------------------------------------------

    async def head(self) -> int:
        """The number of the oldest entry. Raises Unavailable, Lost."""
        try:
            state = (await self.info())["state"]
            if not state["messages"]:
                return self._unwritten(state)
            return (await self.entry_at(state["first_seq"])).number
        except NO_RESULT as error:
            raise self.unreadable(error) from error

    async def find(self, number: int) -> Place:
        """Where the entry is, or will be when it is the next one. Raises Unavailable, Gone, and Lost when the log ends
        before: whoever asks knows of the entry in front of it."""
        try:
            for _ in range(_LOOKS):
                info = await self.info()
                self.told_last = int(info["state"]["last_seq"])
                place = await self._find(number, info["state"])
                if place is not None:
                    return place
                if not in_touch(info):
                    break
                await self._clock.sleep(_LOOK_AGAIN_S)
        except NO_RESULT as error:
            raise self.unreadable(error) from error
        text = f"the NATS stream {self.name} ends at {info['state']['last_seq']}, before entry {number - 1}"
        if in_touch(info):
            raise Lost(f"{text}: it is another log, or has lost its end")
        raise Unavailable(f"{text}, as far as a server knows that has no quorum")

    async def _find(self, number: int, state: dict[str, Any]) -> Place | None:
        """Entries have one message each but for claims and large ones: it is found in few steps."""
        if not state["messages"]:
            return Place(1, 1, 0) if number == self._unwritten(state) else None
        low = await self.entry_at(state["first_seq"])
        high = await self.entry_at(state["last_seq"])
        if number < low.number:
            raise Gone(f"entry {number} of {self.name} was purged")
        if number > high.number:
            return Place(number, high.after, 0) if number == high.number + 1 else None
        while number != high.number:
            if high.sequence - low.sequence == high.number - low.number or number == low.number:
                return Place(number, low.sequence + number - low.number, max(1, low.messages))
            middle = await self.entry_at((low.sequence + high.sequence) // 2)
            if middle.number > number:
                high = middle
            elif middle.number > low.number:
                low = middle
            else:
                # The middle is one of the messages of `low` itself.
                low = Place(low.number + 1, low.after, 0)
        return high

    async def entry_at(self, sequence: int) -> Place:
        """The entry that the message belongs to. Raises Lost, NO_RESULT."""
        found = await self.message(sequence)
        if found is None:
            raise NoAnswer(f"the message at {sequence} cannot be read")
        mark = found[0]
        return Place(mark.number, sequence - mark.part + 1, mark.parts_count)

    async def check_missing(self, number: int, sequence: int) -> None:
        """A server has nothing at `sequence` and something after it. Raises Gone or Lost when the leader agrees."""
        state = (await self.info_if_known() or {}).get("state") or {}
        if state.get("first_seq", 0) > sequence:
            raise Gone(f"entry {number} of {self.name} was purged")
        if state.get("last_seq", 0) >= sequence:
            raise Lost(f"{self.name} has lost entry {number}: nothing is at {sequence}, and it goes on behind it")

    async def purge(self, below: int) -> None:
        """Entries below the number go, but never the newest one. Raises Unavailable, Lost."""
        try:
            state = (await self.info())["state"]
            if not state["messages"] or below <= (await self.entry_at(state["first_seq"])).number:
                return
            newest = await self.entry_at(state["last_seq"])
            place = newest if below >= newest.number else await self.find(below)
            await ask(self._connection, f"STREAM.PURGE.{self.name}", {"seq": place.sequence})
        except (*NO_RESULT, Gone) as error:
            raise Unavailable(f"{self.name} cannot be purged: {error}") from error

    def _unwritten(self, state: dict[str, Any]) -> int:
        """1, the number of the first entry, for a stream without messages. Raises Lost."""
        if state["last_seq"]:
            raise Lost(f"{self.name} lost everything up to {state['last_seq']}: its newest entry is never purged")
        return 1


def in_touch(info: dict[str, Any]) -> bool:
    """The leader that said this has heard from a quorum lately: since then nobody else can have been elected."""
    replicas = (info.get("cluster") or {}).get("replicas") or []
    near = [one for one in replicas if not one.get("offline") and one.get("active", 0) < _ELECTION_NS_MIN]
    return 2 * (len(near) + 1) > len(replicas) + 1


async def ask(
    connection: NatsConnection, call: str, request: dict[str, Any], within_s: float = ANSWER_S_MAX
) -> dict[str, Any]:
    """Raises NO_RESULT."""
    answer = await connection.ask(f"$JS.API.{call}", json.dumps(request).encode(), within_s)
    return decode(await answer)


def decode(answer: list[Msg]) -> dict[str, Any]:
    """What a server answered to a call, or to a message. Raises ApiError, NoAnswer."""
    try:
        found: dict[str, Any] = json.loads(answer[0].data)
    except ValueError as error:
        raise NoAnswer(f"not an answer of JetStream: {answer[0].data[:100]!r}") from error
    if "error" in found:
        raise ApiError(int(found["error"].get("err_code", 0)), str(found["error"].get("description", "")))
    return found
