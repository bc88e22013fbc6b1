"""One S3P connection: commands in, replies out in order, with back-pressure both ways.

Owns the socket's protocol object, pipelining and what a command asks of the engine. Never parses and never decides.

Writes are judged as they arrive, without waiting for the replies in front of them. A READ or TRIM waits until those are
out, so that it sees what was written before it; what comes after a READ waits for its reply.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from headwater.doors import faults
from headwater.doors.farewell import Farewell
from headwater.doors.peers import HERE, certificate_of, peer_of
from headwater.doors.s3p import outcomes, replies
from headwater.doors.s3p.caller import Caller
from headwater.doors.s3p.commands import Append, Auth, Create, Delete, Placed, Read, Trim
from headwater.doors.s3p.exclusive import Alone, Reading, Trimming, Undecided
from headwater.doors.s3p.limited import Limited
from headwater.doors.s3p.replies import Failure as Refusal
from headwater.doors.s3p.shared import Server
from headwater.doors.s3p.wire import Parser, Taken
from headwater.engine.pending_answers import Outcome
from headwater.errors import NotServedHere, ShuttingDown
from headwater.model import commands as model
from headwater.model.events import Appended

PIPELINE_MAX = 1024
"""Unanswered commands of one connection; beyond it the socket is not read."""
IN_FLIGHT_BYTES_MAX = 4 * 1024 * 1024
"""Bytes received since the connection was last without an unanswered command; beyond it the socket is not read."""
COMMANDS_PER_TURN_MAX = 512
"""Commands that one connection starts before the others have a turn."""
UNFINISHED_RATE_BYTES_PER_S = 64 * 1024
"""A command on its way is given time for its size at this rate, on top of the idle time-out."""
LINGER_S = 2.0
"""How long a client that sends on after a refusal may be quiet."""
LINGER_S_MAX = 300.0
"""How long it is read, and what it sends thrown away, before it is cut off."""
RUN_BYTES_MAX = 1024 * 1024
"""Payload of pipelined APPENDs that are submitted as one."""


# gc=False: a pending reply leaves its connection's queue before it is let go, so it is in no cycle by then. Without
# it every 700th command would start the garbage collector.
class Pending(msgspec.Struct, gc=False, eq=False):
    """What was submitted, and the place of its replies in the order of replies."""

    connection: Connection
    name: bytes
    counts: list[int]
    """How many records each of its commands has. APPENDs may be submitted as one; any other command stands alone."""
    replies: bytes | None = None

    def resolve(self, outcome: Outcome) -> None:
        try:
            self.replies = outcomes.replied(self.name, outcome, self.counts)
        except Exception:
            self.broke()
        connection = self.connection
        if len(self.counts) > 1 and type(outcome) is Appended:
            connection.server.engine.joined_count += len(self.counts) - 1
        if not connection.due:
            connection.later()

    def broke(self) -> None:
        """Called while an exception is handled that is a fault of this server: each of its commands is told."""
        failure = faults.report("s3p", name=self.name[:200])
        if self.replies is None:
            self.replies = outcomes.failed(self.name, failure) * len(self.counts)


ALONE = [1]
"""The counts of one command with one record, or with none."""


class Connection(asyncio.Protocol):
    __slots__ = (
        "_active",
        "_closing",
        "_deadline_s",
        "_farewell",
        "_in_flight_bytes",
        "_linger_end_s",
        "_lingering",
        "_parser",
        "_receiving",
        "_transport",
        "_unanswered_count",
        "alone",
        "asked",
        "caller",
        "due",
        "ended",
        "held",
        "limited",
        "paused",
        "peer",
        "pending",
        "server",
        "waiting",
    )

    def __init__(self, server: Server) -> None:
        self.server = server
        self.caller = Caller.of(server.guard, server.audit)
        self.limited = Limited(server.use_limits, self.caller) if server.use_limits is not None else None
        self.asked = self.caller is not None or self.limited is not None
        """Commands are judged, or counted, before they are begun."""
        self.held = False  # nothing is begun, for a while (see `limited`)
        self._parser = Parser(server.limits)
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._farewell: Farewell | None = None
        """Of a connection with TLS."""
        self.peer = HERE
        """The address at the other end: the client's, or that of another process."""
        self._lingering = False
        self._linger_end_s = 0.0
        self.ended = False
        """The client sends no more, or is not listened to any more: no READ waits for records."""
        self._receiving = True
        self._active = True
        self._deadline_s = 0.0
        self._unanswered_count = 0
        self._in_flight_bytes = 0
        self.pending: deque[Pending] = deque()
        """Submitted, their replies not written yet."""
        self.waiting: deque[Taken] = deque()
        """Not started yet."""
        self.alone: Alone | None = None
        """The command that holds this connection."""
        self.paused = False
        """The client takes its replies too slowly."""
        self.due = False
        """`advance` runs, or will soon: nobody has to ask for it."""

    # ---- asyncio calls these ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not asyncio's by class
        transport.set_write_buffer_limits(high=self.server.settings.write_buffer_bytes_max)  # type: ignore[attr-defined]
        self._farewell = Farewell.of(transport)
        self.peer = peer_of(transport.get_extra_info("peername"))
        admitted = self.server.admitted
        if admitted is not None and self.caller is not None and self._farewell is not None:
            self.caller.admitted = admitted(certificate_of(transport))
        limited = self.limited
        if (limited is not None and not limited.may_stay(self.peer)) or not self.server.admit(self):
            self.abort()
        elif limited is not None and (refusal := limited.greeting()) is not None:
            self.waiting.append(refusal)
            self._unanswered_count = 1
            self.later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self.server.forget(self)
        if self.limited is not None:
            self.limited.close()
        self._parser.close()
        alone, self.alone = self.alone, None
        if alone is not None:
            alone.leave()
        self.pending.clear()
        self.waiting.clear()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            self._active = True
            return
        parsed = self._parser.feed(data)
        if self._unanswered_count:
            self._in_flight_bytes += len(data)
            if self._in_flight_bytes > IN_FLIGHT_BYTES_MAX:
                self._stop_receiving()
        if not parsed:
            return
        self._active = True
        self._unanswered_count += len(parsed)
        try:
            if self._unanswered_count == 1 and type(parsed[0]) is Append and not (self.paused or self.held):
                # One APPEND at a time needs no queue: all that Python does for it takes 5.9 µs instead of 6.6.
                if not (self.asked and self._denied(parsed[0])):
                    self._append(parsed[0])
            else:
                self.waiting += parsed
                self.advance()
        except Exception:
            self.broke()

    def eof_received(self) -> bool:
        """A client that half-closes still gets its replies. Nobody waits there for records: a blocked READ ends."""
        self.ended = True
        if not self._closing and self.alone is not None:
            self.alone.guard(self.alone.stop)
        if self._farewell is not None:
            self._closing = True  # the transport sends nothing any more: connection_lost follows
        return not self._closing and bool(self._unanswered_count)

    def pause_writing(self) -> None:
        self.paused = True
        self._stop_receiving()

    def resume_writing(self) -> None:
        self.paused = False
        self._active = True
        if self.alone is not None:
            self.alone.guard(self.alone.drained)
        self.later()

    # ---- the order of commands and replies ------------------------------------------------------------------------

    def advance(self) -> None:
        """Replies that are ready leave; then commands start, in order, until one has to wait."""
        if self._closing:
            return
        if self.waiting:
            self.due = True
            out_of_turn = self._start_commands()
            self.due = out_of_turn
            if out_of_turn:
                self.server.soon(self)
        else:
            self.due = False
        self._send_ready()
        count = self._unanswered_count
        if not count:
            self._in_flight_bytes = 0
            if self.ended:
                self.close()
        elif count > PIPELINE_MAX:
            self._stop_receiving()
        if not self._receiving:
            self._receive_again()

    def later(self) -> None:
        """Has `advance` run once the caller is done: many replies then leave in one write."""
        if not self.due:
            self.due = True
            self.server.soon(self)

    def _start_commands(self) -> bool:
        """Returns True when more could start, but others have to have their turn first."""
        waiting = self.waiting
        if self.server.closing:
            self._refuse_waiting()
        budget = COMMANDS_PER_TURN_MAX
        while waiting and budget > 0 and self.alone is None and not (self.paused or self.held or self._closing):
            command = waiting[0]
            budget -= 1
            waiting.popleft()
            if self.asked and self._denied(command):
                continue
            if type(command) is Append:
                budget -= self._append(command, budget)
            elif not self._start(command):
                waiting.appendleft(command)
                break
        return bool(waiting) and budget <= 0

    def _denied(self, command: Taken) -> bool:
        """True when it may not be done, or was an AUTH: its reply takes its place among the others."""
        if isinstance(command, Refusal | Placed):
            return False
        caller, limited = self.caller, self.limited
        refused = None if limited is None else limited.refusal(command)
        if refused is not None:
            self._hold()
        elif caller is not None:
            refused = caller.judged(command, self.peer)
        if refused is None and not isinstance(command, Auth):
            return False
        replied = replies.ok() if refused is None else outcomes.failed(command.name, refused)
        self.pending.append(Pending(self, command.name, ALONE, replied))
        self.later()
        return True

    def _hold(self) -> None:
        if self.limited is not None and not (self.held or self.server.closing):
            self.held = True
            self._stop_receiving()
            asyncio.get_running_loop().call_later(self.limited.held_s(), self._let_go)

    def _let_go(self) -> None:
        self.held = False
        self._active = True
        self.later()

    def _start(self, command: Taken) -> bool:
        """Starts what is no APPEND. False: it has to wait until every reply in front of it is out."""
        server = self.server
        if type(command) is Create:
            key = server.key(command.name)
            if server.placing is not None and server.placing.is_deciding(key):
                self.alone = Undecided(self, command, key)
                self.alone.guard(self.alone.begin)
            else:
                self.create(command, key)
        elif type(command) is Delete:
            self.submit(command.name, server.key(command.name), model.Delete())
        else:
            self._send_ready()
            if self.pending:
                return False
            self._start_alone(command)
        return True

    def _append(self, command: Append, more_max: int = 0) -> int:
        """Submits an APPEND, and up to `more_max` of those after it together with it; returns how many of those."""
        name, records = command.name, command.records
        server = self.server
        waiter = Pending(self, name, ALONE if len(records) == 1 else [len(records)])
        self.pending.append(waiter)
        try:
            key = server.keys.get(name) or server.key(name)
            if more_max and self.waiting:
                waiter.counts = self._join_run(command, key, more_max) or waiter.counts
                if self.limited is not None:
                    self.limited.joined(waiter.counts, records)
            server.submit(key, model.Append(records, None, None, None, False, None, command.ms), waiter)
        except NotServedHere as elsewhere:
            waiter.resolve(outcomes.not_here(server.engine, elsewhere))
        except Exception:
            waiter.broke()
            self.later()
        return len(waiter.counts) - 1

    def _join_run(self, first: Append, key: str, commands_max: int) -> list[int] | None:
        """Adds the records of the APPENDs after `first` to its own, as far as they can be submitted as one.

        Returns how many records each command has, or None when `first` stays alone. The ids are those that they would
        get one by one, and each has its reply; only that they become durable together.
        """
        stream = self.server.engine.look(key)
        if stream is not None and stream.is_json:
            return None  # It may refuse one for its records, and must take the others.
        waiting, limits = self.waiting, self.server.limits
        name, ms, records = first.name, first.ms, first.records
        counts: list[int] | None = None
        room_bytes = min(RUN_BYTES_MAX, limits.append_bytes_max) - sum(map(len, records))
        room_records = limits.records_max - len(records)
        while waiting and commands_max:
            command = waiting[0]
            if type(command) is not Append or command.name != name or command.ms != ms:
                break
            more = command.records
            count = len(more)
            room_bytes -= len(more[0]) if count == 1 else sum(map(len, more))
            room_records -= count
            if room_bytes < 0 or room_records < 0:
                break
            if counts is None:
                counts = [len(records)]
            counts.append(count)
            records += more
            waiting.popleft()
            commands_max -= 1
        return counts

    def create(self, command: Create, key: str) -> None:
        self.submit(command.name, key, model.Create(key, None, [], exclusive=True))

    def submit(self, name: bytes, key: str, command: model.Command) -> None:
        waiter = Pending(self, name, ALONE)
        self.pending.append(waiter)
        try:
            self.server.submit(key, command, waiter)
        except NotServedHere as elsewhere:
            waiter.resolve(outcomes.not_here(self.server.engine, elsewhere))
        except Exception:
            waiter.broke()
            self.later()

    def _start_alone(self, command: Taken) -> None:
        """A command that was to wait for every reply in front of it."""
        if isinstance(command, Read):
            self.alone = Reading(self, command, self.server.key(command.name))
            self.alone.guard(self.alone.begin)
        elif isinstance(command, Trim):
            self.alone = Trimming(self, command, self.server.key(command.name))
            self.alone.guard(self.alone.begin)
        elif isinstance(command, Refusal):
            self.write(replies.error(command.code, command.message))
            self._linger()
        else:
            raise RuntimeError(f"{command!r} was not to start alone")

    def _send_ready(self) -> None:
        pending = self.pending
        ready = []
        while pending and (replied := pending[0].replies) is not None:
            ready.append(replied)
            self._unanswered_count -= len(pending.popleft().counts)
        if ready:
            self.write(ready[0] if len(ready) == 1 else b"".join(ready))

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._closing:
            self._transport.write(data)
            if self.limited is not None:
                self.limited.sent(len(data))

    def finish(self, alone: Alone) -> None:
        """The reply of the command that held the connection is out."""
        if self.alone is alone:
            self.alone = None
            self._unanswered_count -= 1
            if self.limited is not None:
                self.limited.ended()
            self.later()

    # ---- time and the end -----------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Enforces time limits; called by the server's sweep about twice a second."""
        alone, caller = self.alone, self.caller
        if alone is not None and caller is not None and caller.refusal(alone.command) is not None:
            alone.guard(alone.stop)  # whoever waits for records may not read them any more
        if self._lingering:
            if self._active:
                self._active = False
                self._deadline_s = min(now_s + LINGER_S, self._linger_end_s)
            if now_s >= self._deadline_s:
                self.abort()
        elif self._closing and self._farewell is not None:
            if self._farewell.is_over():
                self.abort()
        elif self._active or self.pending or self.held or (self.alone is not None and not self.paused):
            self._active = False
            self._deadline_s = now_s + self.server.settings.s3p_idle_timeout_ms / 1000
        elif now_s >= self._deadline_s + self._parser.buffered_bytes / UNFINISHED_RATE_BYTES_PER_S:
            # A client that stopped reading would never let a polite close finish.
            if self.paused:
                self.abort()
            else:
                self.close()

    def shut_down(self) -> None:
        """Takes no more commands: a blocked READ returns nothing, those after it are refused, then it closes."""
        self.ended = True
        self._stop_receiving()
        if self.alone is not None:
            self.alone.guard(self.alone.stop)
        self.later()

    def _refuse_waiting(self) -> None:
        while self.waiting and self.alone is None:
            command = self.waiting.popleft()
            if isinstance(command, Refusal):
                self._unanswered_count -= 1
            else:
                refused = outcomes.failed(command.name, ShuttingDown())
                self.pending.append(Pending(self, command.name, ALONE, refused))

    def close(self) -> None:
        """Closes after what was written has left."""
        if not self._closing and self._transport is not None:
            self._closing = True
            self._transport.close()

    def broke(self) -> None:
        """Called while an exception is handled that no command can be blamed for: the connection ends."""
        faults.report("s3p")
        self.abort()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def _linger(self) -> None:
        """Closes so that the reply arrives: a client still sending would have it wiped out by a reset."""
        transport = self._transport
        self._closing = self._lingering = True
        self.waiting.clear()
        if transport is not None:
            self._deadline_s = self.server.now_s + LINGER_S
            self._linger_end_s = self.server.now_s + LINGER_S_MAX
            if not self._receiving:
                self._receiving = True
                transport.resume_reading()
            if transport.can_write_eof():
                transport.write_eof()

    def _stop_receiving(self) -> None:
        if self._receiving and self._transport is not None and not self._closing:
            self._receiving = False
            self._transport.pause_reading()

    def _receive_again(self) -> None:
        if self._unanswered_count > PIPELINE_MAX // 2 or self._in_flight_bytes > IN_FLIGHT_BYTES_MAX:
            return
        if self._transport is not None and not (self.paused or self.held or self._closing or self.server.closing):
            self._receiving = True
            self._transport.resume_reading()
