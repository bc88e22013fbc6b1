"""Entries of a quorum log in NATS JetStream: one stream per group.

Owns how entries become messages, the conditions under which they are stored, and what becomes of a put without an
answer. Never decides what an entry means; the demands on servers are in `jetstream_servers`.

A message, in a stream whose only subject carries the log's incarnation (`{name}.{group}.{incarnation}.log`):

    Headwater-Entry: {number of the entry} {number of this message in it, from 1} {count of its messages}
    Nats-Expected-Last-Sequence: {sequence before it}     (first message of an entry)
    Nats-Batch-Id, Nats-Batch-Sequence, Nats-Batch-Commit (an entry of several messages: an atomic batch)

Every entry is stored under the condition that the stream's last message is the one that its writer takes for the one
before. A put that is sent twice is therefore stored once at most, and one that arrives late is not stored. That alone
does not fence an owner with several entries in flight: a claim that takes the place of the first of them would be the
"last message" that the second one asks for. So **a claim is an atomic batch of `WINDOW` messages**, as many as an owner
may have sent beyond what it knows to be stored: it takes the places of all of them at once.

A subject of its own for each incarnation fences those who write to a stream that was deleted and made again: their
subject leads nowhere.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from nats.aio.msg import Msg

from headwater.log.jetstream_connection import NatsConnection, NoAnswer, NotDelivered
from headwater.log.jetstream_servers import (
    REPLICAS,
    Refused,
    ServerFacts,
    check_cluster,
    check_servers,
    check_stream,
    monitors_of,
    stream_config,
)
from headwater.log.jetstream_stream import (
    ENTRY_HEADER,
    NO_RESULT,
    STREAM_NOT_FOUND,
    ApiError,
    LogStream,
    Mark,
    Place,
    ask,
    decode,
    in_touch,
)
from headwater.log.medium import Gone, Lost, MediumError, Taken, Unavailable, Unsure
from headwater.ports import SYSTEM_CLOCK, Clock, Rng, SystemRng

WINDOW = 16
"""How many messages beyond the last known one an owner may send: part of the format, for it is what a claim covers."""
STORED_S_MAX = 1.0
"""What has had no answer by then is sent again, which is always safe. An election takes longer."""
WAIT_S = 1.0
_MAKE_S_MAX = 10.0
_HEADERS_BYTES_MAX = 1024
_BYTES_PER_S_MIN = 5_000_000
"""A large entry has as much longer to be answered."""
_LAST_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")
_SHORTER_MAX = 3
"""So many times in a row has the stream to be shorter than it was before it counts as damaged: a leader stores what is
agreed on a little later than others may."""

_STREAM_EXISTS = 10058
_TOO_FEW_SERVERS = (10005, 10074)
_WRONG_LAST_SEQUENCE = 10071
_NOT_STORED = frozenset((10023, 10047, 10174, 10175, 10176, 10177))
"""Errors that are answered before anything is proposed: no room, or a batch that was not whole. Any other error leaves
the outcome open."""


class JetStreamSettings(msgspec.Struct, frozen=True):
    urls: Sequence[str]
    name: str = "headwater"
    """Of streams and subjects: clusters that share servers have different ones."""
    replicas: int = REPLICAS
    """Fewer than three is for development: an acknowledged entry is then only as safe as that."""
    monitors: Sequence[str] = ()
    """Where the servers' monitoring is; empty: at port 8222 of the hosts in `urls`."""
    credentials: str | None = None
    """Path of a credentials file."""


class _Sent:
    __slots__ = ("done", "place", "unsure")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.unsure = False
        """Something was sent whose fate is not known."""
        self.done = False


class JetStream:
    """The servers of a cluster's logs, checked: where the entries of groups are opened. One per process."""

    def __init__(self, settings: JetStreamSettings, clock: Clock = SYSTEM_CLOCK, rng: Rng | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._rng = rng or SystemRng()
        self._connection = NatsConnection(clock, self._rng)
        self._servers: dict[str, ServerFacts] = {}
        self.cluster = ""
        """Whose logs are made here: kept with the streams."""

    async def open(self) -> None:
        """Connects and checks the servers. Raises Unavailable, Refused."""
        settings = self._settings
        if settings.replicas not in (1, 3, 5):
            raise Refused(f"{settings.replicas} copies of a log are not a quorum: ask for 3 or 5, or 1 for development")
        await self._connection.open(settings.urls, settings.credentials)
        await self.check()

    async def check(self) -> None:
        """Looks at the servers again. Raises Refused."""
        self._servers = await check_servers(self._settings.monitors or monitors_of(self._settings.urls))

    async def is_empty(self, group: int) -> bool:
        """The group's stream is not there, or nothing was ever written to it. Makes nothing. Raises Unavailable."""
        try:
            info = await ask(self._connection, f"STREAM.INFO.{self._settings.name}-{group}", {})
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                return True
            raise Unavailable(f"the NATS stream {self._settings.name}-{group} cannot be seen: {error}") from error
        except (NotDelivered, NoAnswer) as error:
            raise Unavailable(f"NATS JetStream does not answer: {error}") from error
        return not info["state"]["last_seq"]

    async def entries(self, group: int) -> JetStreamEntries:
        """The entries of a group, whose stream is made when there is none. Raises Unavailable, Refused."""
        settings = self._settings
        name = f"{settings.name}-{group}"
        info: dict[str, Any] | None = None
        try:
            try:
                info = await ask(self._connection, f"STREAM.INFO.{name}", {})
            except ApiError as error:
                if error.code != STREAM_NOT_FOUND:
                    raise
            if info is None:
                subjects = f"{settings.name}.{group}.{self._rng.token(8).hex()}"
                config = stream_config(name, f"{subjects}.log", f"{subjects}.stored", settings.replicas, self.cluster)
                try:
                    await ask(self._connection, f"STREAM.CREATE.{name}", config, _MAKE_S_MAX)
                except ApiError as error:
                    # Somebody else made it in between.
                    if error.code != _STREAM_EXISTS:
                        raise
                info = await ask(self._connection, f"STREAM.INFO.{name}", {})
        except ApiError as error:
            if error.code in _TOO_FEW_SERVERS:
                raise Refused(
                    f"a log of {settings.replicas} copies needs as many NATS servers in one cluster, running and with "
                    f"room: {error}. Start them, or ask for 1 copy, for development"
                ) from error
            raise Unavailable(f"the NATS stream {name} cannot be had: {error}") from error
        except (NotDelivered, NoAnswer) as error:
            raise Unavailable(f"NATS JetStream does not answer: {error}") from error
        check_stream(info, settings.replicas, self._servers)
        check_cluster(info, self.cluster)
        stream = LogStream(self._connection, info, self._clock)
        opened = JetStreamEntries(self._connection, stream, self._clock, self._rng)
        await opened.open()
        return opened

    async def close(self) -> None:
        await self._connection.close()


class JetStreamEntries:
    """See `Entries`."""

    def __init__(self, connection: NatsConnection, stream: LogStream, clock: Clock, rng: Rng) -> None:
        self._connection = connection
        self._stream = stream
        self._clock = clock
        self._rng = rng
        self._part_bytes = connection.message_bytes_max - _HEADERS_BYTES_MAX
        self._order = asyncio.Lock()
        self._sent: dict[int, _Sent] = {}
        """By number: what was sent and is not known to be stored, or is but not everything before it."""
        self._sending: set[asyncio.Future[None]] = set()
        """One for each attempt that is under way."""
        self._claimed = 0
        """The number of the last claim that was tried, whatever became of it."""
        self._next = Place(0, 0, 0)
        """Where the next new entry goes; number 0: nothing may be written before a claim."""
        self._stored = Place(0, 0, 0)
        """Everything before this is known to be stored."""
        self._read = Place(0, 0, 0)
        """The place after the last entry that was read."""
        self._seen = 0
        """The newest sequence that was heard of."""
        self._shorter_count = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._unsubscribe: Callable[[], Awaitable[None]] | None = None

    async def open(self) -> None:
        self._unsubscribe = await self._connection.subscribe(self._stream.hints, self._hear)
        self._connection.on_reconnected.add(self._wake)

    @property
    def incarnation(self) -> str:
        return self._stream.incarnation

    @property
    def entry_bytes_max(self) -> int:
        """What fits into one message, with the head of an entry."""
        return self._part_bytes - _HEADERS_BYTES_MAX

    # ---- writing ------------------------------------------------------------------------------------------------

    async def put(self, number: int, data: bytes) -> None:
        await self._store(number, data, 1)

    async def claim(self, number: int, data: bytes) -> None:
        if self._claimed != number:
            place = self._read if self._at_end(number) else await self._stream.find(number)
            if place.messages:
                raise Taken(f"entry {number} is not the next one of {self._stream.name}")
            # What this process has sent before and not heard of is fenced like that of others.
            self._sent.clear()
            self._claimed = number
            self._next = self._stored = place
        await self._store(number, data, WINDOW)

    async def begin(self, number: int, data: bytes) -> None:
        """Like `claim`, as the first entry of a stream that holds nothing, with whatever number. Raises Taken when it
        holds something."""
        if self._claimed != number:
            self._claimed = number
            self._next = self._stored = Place(number, 1, 0)
        await self._store(number, data, WINDOW)

    def _at_end(self, number: int) -> bool:
        """The entry comes next after what was read, and nothing newer was heard of."""
        return self._read.number == number and self._seen < self._read.sequence

    async def _store(self, number: int, data: bytes, messages_min: int) -> None:
        sent = self._sent.get(number)
        if sent is None:
            if 0 < number < self._stored.number:
                return await self._compare(number, data)
            if not self._next.number or number < self._next.number:
                raise Taken(f"entry {number} of {self._stream.name} was not claimed by this node")
            if number > self._next.number:
                raise Unavailable(f"entry {number} of {self._stream.name} was put before the one in front of it")
            messages = max(messages_min, -(-len(data) // self._part_bytes))
            sent = self._sent[number] = _Sent(Place(number, self._next.sequence, messages))
            self._next = Place(number + 1, sent.place.after, 0)
        while sent.place.sequence - self._stored.sequence >= WINDOW:
            if not self._sending:
                raise self._not_stored(sent, "what stands before it is not stored yet")
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        sending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sending.add(sending)
        try:
            await self._send(sent, data)
        finally:
            self._sending.discard(sending)
            sending.set_result(None)

    async def _send(self, sent: _Sent, data: bytes) -> None:
        number = sent.place.number
        unsure = sent.unsure
        sent.unsure = True
        try:
            async with self._order:
                answer = await self._publish(sent.place, data)
            ack = decode(await answer)
        except NotDelivered as error:
            sent.unsure = unsure
            # Nobody takes its subject: there is no leader, or no such stream any more.
            await self._stream.info_if_known()
            raise self._not_stored(sent, str(error)) from error
        except NoAnswer as error:
            raise Unsure(f"entry {number} of {self._stream.name}: {error}") from error
        except ApiError as error:
            if error.code == _WRONG_LAST_SEQUENCE:
                sent.unsure = unsure
                await self._resolve(sent, data, error)
            elif error.code in _NOT_STORED:
                sent.unsure = unsure
                raise self._not_stored(sent, str(error)) from error
            else:
                raise Unsure(f"entry {number} of {self._stream.name}: {error}") from error
        else:
            if ack.get("seq") != sent.place.after - 1:
                place = f"at {ack.get('seq')}, and not at {sent.place.after - 1}"
                raise Lost(f"{self._stream.name} says that it stored the end of entry {number} {place}")
        self._stand(sent)

    def _not_stored(self, sent: _Sent, reason: str) -> MediumError:
        """This attempt was not stored. An earlier one of the same entry may be."""
        text = f"entry {sent.place.number} of {self._stream.name}: {reason}"
        return Unsure(text) if sent.unsure else Unavailable(text)

    def _stand(self, sent: _Sent) -> None:
        sent.done = True
        sent.unsure = False
        while (first := self._sent.get(self._stored.number)) is not None and first.done:
            del self._sent[self._stored.number]
            self._stored = Place(first.place.number + 1, first.place.after, 0)
        self._seen = max(self._seen, self._stored.sequence - 1)
        self._wake()

    async def _publish(self, place: Place, data: bytes) -> asyncio.Future[list[Msg]]:
        """Sends the entry, and returns what will be the answer to it."""
        subject = self._stream.subject
        condition = {"Nats-Expected-Last-Sequence": str(place.sequence - 1)}
        if place.messages == 1:
            headers = {ENTRY_HEADER: f"{place.number} 1 1"} | condition
            return await self._connection.ask(subject, data, STORED_S_MAX, headers)
        # A batch that is tried again is another one: the servers may still hold a part of the first.
        batch = self._rng.token(12).hex()
        for i in range(1, place.messages + 1):
            headers = {
                ENTRY_HEADER: f"{place.number} {i} {place.messages}",
                "Nats-Batch-Id": batch,
                "Nats-Batch-Sequence": str(i),
            }
            if i < place.messages:
                await self._connection.tell(subject, self._part(data, i), headers | (condition if i == 1 else {}))
        headers["Nats-Batch-Commit"] = "1"
        within_s = STORED_S_MAX + len(data) / _BYTES_PER_S_MIN
        return await self._connection.ask(subject, self._part(data, place.messages), within_s, headers)

    def _part(self, data: bytes, i: int) -> bytes:
        return data[(i - 1) * self._part_bytes : i * self._part_bytes]

    async def _resolve(self, sent: _Sent, data: bytes, error: ApiError) -> None:
        """The stream's last message is not the one before the entry. Returns when that is because the entry is stored.

        The server counts what it has proposed and may still lose, so that what it names as the last message need not
        be there."""
        place = sent.place
        found = _LAST_SEQUENCE.search(error.description)
        if found is not None and int(found[1]) < place.sequence - 1:
            raise self._not_stored(sent, f"what stands before it is not stored yet ({error})")
        try:
            for i in range(1, place.messages + 1):
                stored = await self._stream.message(place.sequence + i - 1)
                if stored is None:
                    if (await self._stream.info())["state"]["first_seq"] > place.sequence:
                        raise (Gone if sent.unsure else Taken)(
                            f"entry {place.number} of {self._stream.name} is taken, and was purged"
                        )
                    raise self._not_stored(sent, f"its place is taken, by what cannot be read yet ({error})")
                if stored != (Mark(place.number, i, place.messages), self._part(data, i)):
                    raise Taken(f"entry {place.number} of {self._stream.name} is another one")
        except NO_RESULT as failed:
            raise self._not_stored(sent, f"its place is taken, and cannot be read: {failed}") from failed

    async def _compare(self, number: int, data: bytes) -> None:
        found = await self.read(number, len(data))
        if not found:
            raise Unsure(f"entry {number} of {self._stream.name} cannot be read yet")
        if found[0][1] != data:
            raise Taken(f"entry {number} of {self._stream.name} is another one")

    # ---- reading ------------------------------------------------------------------------------------------------

    async def head(self) -> int:
        return await self._stream.head()

    async def read(self, first: int, bytes_max: int) -> list[tuple[int, bytes]]:
        place = self._read
        if place.number != first:
            place = await self._stream.find(first)
            # A server that is behind its leader would show a shorter log, or an empty one.
            self._seen = max(self._seen, self._stream.told_last)
        entries: list[tuple[int, bytes]] = []
        parts: list[bytes] = []
        number, sequence = first, place.sequence
        while not entries and (found := await self._messages(sequence, bytes_max)):
            for at, mark, data in found:
                if at != sequence:
                    if not entries:
                        await self._stream.check_missing(first, sequence)
                    break
                if mark[:2] != (number, len(parts) + 1):
                    raise Lost(f"{self._stream.name} holds {mark} at {at}, where entry {number} belongs")
                parts.append(data)
                sequence += 1
                if len(parts) == mark.parts_count:
                    entries.append((number, parts[0] if len(parts) == 1 else b"".join(parts)))
                    parts = []
                    number += 1
                    place = Place(number, sequence, 0)
            else:
                continue
            break
        self._read = place._replace(number=number, messages=0)
        # At the end, only what is heard from now on says that there is more.
        self._seen = max(self._seen, sequence - 1) if entries else min(self._seen, place.sequence - 1)
        return entries

    async def _messages(self, sequence: int, bytes_max: int) -> list[tuple[int, Mark, bytes]]:
        """From any server; from the leader when that one gives no answer, or does not have what was heard of."""
        found = await self._stream.messages(sequence, bytes_max)
        if found or (found is not None and self._seen < sequence):
            return found
        try:
            one = await self._stream.message(sequence)
        except NO_RESULT as error:
            raise self._stream.unreadable(error) from error
        return [] if one is None else [(sequence, *one)]

    async def wait(self, number: int) -> None:
        place = self._read
        if place.number == number and self._seen >= place.sequence:
            return
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(heard)
        timer = asyncio.ensure_future(self._clock.sleep(WAIT_S))
        try:
            await asyncio.wait((heard, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            self._waiting.discard(heard)
        if not heard.done():
            await self._look()

    def _hear(self, message: Msg) -> None:
        self._seen = max(self._seen, int((message.headers or {}).get("Nats-Sequence", 0)))
        self._wake()

    def _wake(self) -> None:
        for heard in self._waiting:
            if not heard.done():
                heard.set_result(None)

    async def _look(self) -> None:
        """Nothing was heard for a while: is it still the same stream, and as long as it was? Raises Lost."""
        info = await self._stream.info_if_known()
        if info is None:
            return
        last, known = int(info["state"]["last_seq"]), max(self._read.sequence, self._stored.sequence) - 1
        self._seen = max(self._seen, last)
        self._shorter_count = self._shorter_count + 1 if last < known and in_touch(info) else 0
        if self._shorter_count >= _SHORTER_MAX:
            raise Lost(f"the NATS stream {self._stream.name} ends at {last}, and went up to {known} before")

    # ---- forgetting ---------------------------------------------------------------------------------------------

    async def purge(self, below: int) -> None:
        await self._stream.purge(below)

    async def close(self) -> None:
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        self._connection.on_reconnected.discard(self._wake)
        self._wake()
        if unsubscribe is not None and self._connection.connected:
            await unsubscribe()
