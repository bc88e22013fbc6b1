"""WebSockets (RFC 6455): messages of text over a connection that began as a request.

Owns the opening handshake, the pace in both directions and how a WebSocket ends. Never knows what a message means: a
handler does. Frames and the state of the closing handshake are those of `websockets`, its layer without I/O.

    GET with Upgrade -> WebSockets.upgrade -> 101 -> bytes -> frames -> handler.message
    WebSocket.send -> the socket, or a queue of a few messages while the client does not take more

- The process that accepted the connection serves the WebSocket: nothing of it is sent on to another process.
- No coroutine and no timer for a message or a connection: the sweep's `tick` keeps the time.
- While the client does not take what is written, nothing of it is read.
- Messages are handed on a few at a time, with others' turns in between.
- No extension is taken. permessage-deflate would keep a window of 32 KiB and more for each direction of each
  connection, and a small message could become a large one before its size is known.
"""

from __future__ import annotations

from binascii import Error as NotBase64
from binascii import a2b_base64
from collections import deque
from collections.abc import Callable
from typing import Protocol as Interface

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side, State
from websockets.utils import accept_key

from headwater.config import Settings
from headwater.doors import faults
from headwater.doors.http import request_ids
from headwater.doors.http.connection import BODY_RATE_BYTES_PER_S
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.headers import Headers
from headwater.doors.http.wire import Budget
from headwater.errors import BadHeader, MethodNotAllowed, OriginNotAllowed, UpgradeRequired

VERSION = b"13"
QUEUE_MESSAGES_MAX = 4
CLOSE_S = 5.0
"""How long a client may take to answer a Close."""
SLICE_BYTES = 1024
"""What is parsed at once. As frames without content it is 170 of them, 1.4 ms."""
TURN_FRAMES = 64
"""Frames of one connection that are handled while others wait."""
REASON_BYTES_MAX = 123
"""A control frame has room for no more (RFC 6455, 5.5)."""


class Handler(Interface):
    """What a WebSocket is used for. None of these is called again after `closed`."""

    def message(self, text: str) -> None:
        """One whole message."""
        ...

    def writable(self) -> None:
        """`send` takes messages again, after it had refused one."""
        ...

    def closed(self) -> None:
        """Called once: nothing can be sent any more, whoever ended it and why."""
        ...


class WebSockets:
    """What the WebSockets of one listener share."""

    def __init__(
        self,
        settings: Settings,
        bodies: Budget,
        queue_messages_max: int = QUEUE_MESSAGES_MAX,
        allows_origin: Callable[[Headers], bool] | None = None,
        message_bytes_max: int | None = None,
    ) -> None:
        """`allows_origin` judges a handshake by its headers; None: the setting `cors_origin` does.

        `message_bytes_max` bounds a client's message where that is less than the setting `body_bytes_max`.
        """
        self.message_bytes_max = min(settings.body_bytes_max, message_bytes_max or settings.body_bytes_max)
        self.message_timeout_s = settings.body_timeout_ms / 1000
        self.keepalive_s = settings.sse_keepalive_ms / 1000
        self.bodies = bodies
        self.queue_messages_max = queue_messages_max
        self.open_count = 0
        self._cors_origins = tuple(origin.encode() for origin in settings.cors_origins)
        self._allows_origin = self._is_let_in if allows_origin is None else allows_origin

    def upgrade(self, exchange: Exchange, opened: Callable[[WebSocket], Handler]) -> None:
        """Makes the exchange's connection a WebSocket. Raises a Failure when the request does not ask for one.

        `opened` makes the handler; it may send at once. The request has to be at a path that `wire` knows as one of
        WebSockets: only there is what the client sends behind its request kept for this.
        """
        request, connection = exchange.request, exchange.connection
        if exchange.internal:
            raise BadHeader("Upgrade", "a WebSocket is served by the process that accepted its connection")
        key = judge(request.method, request.version, request.headers)
        if not self._allows_origin(request.headers):
            raise OriginNotAllowed
        if connection.closing:
            return
        headers = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept_key(key))]
        exchange.begin(exchange.responder.head(101, headers, None, keep_alive=True))
        WebSocket(self, exchange).begin(opened)

    def _is_let_in(self, headers: Headers) -> bool:
        """A browser shows any page what it reads from a WebSocket, so it is the server that looks at the origin (10.2).

        Clients that are not browsers name none. A page of this server itself is no other origin.
        """
        origin = headers.get(b"origin")
        if origin is None or origin in self._cors_origins or b"*" in self._cors_origins:
            return True
        return origin.partition(b"://")[2] == headers.get(b"host", b"")


def judge(method: bytes, version: str, headers: Headers) -> str:
    """The key of an opening handshake (RFC 6455, 4.2.1). Raises a Failure for what is none."""
    if method != b"GET":
        raise MethodNotAllowed("GET, OPTIONS")
    if version != "1.1":
        raise UpgradeRequired("the request is of HTTP/1.0")
    if b"websocket" not in _words(headers, b"upgrade"):
        raise UpgradeRequired("the header Upgrade does not ask for one")
    if b"upgrade" not in _words(headers, b"connection"):
        raise UpgradeRequired("the header Connection does not ask for an upgrade")
    if headers.get(b"sec-websocket-version") != VERSION:
        raise UpgradeRequired("the header Sec-WebSocket-Version is not 13")
    key = headers.get(b"sec-websocket-key", b"")
    try:
        size = len(a2b_base64(key, strict_mode=True))
    except NotBase64:
        size = 0
    if size != 16:
        raise BadHeader("Sec-WebSocket-Key", "expected 16 bytes in base64")
    return key.decode()


def _words(headers: Headers, name: bytes) -> list[bytes]:
    return [word.strip().lower() for word in headers.get(name, b"").split(b",")]


class WebSocket:
    """One WebSocket. A Receiver for its connection; `send`, `close`, `hold` and `release` are for its handler.

    Bounds: `queue_messages_max` messages that wait for the client to take what was written before; overflow: `send`
    refuses. One message of `message_bytes_max` that is arriving; overflow: Close 1009. What all of them have brought
    of such messages counts as request bodies do; overflow: Close 1013.
    """

    def __init__(self, shared: WebSockets, exchange: Exchange) -> None:
        self._shared = shared
        self._exchange = exchange
        self._connection = exchange.connection
        self._protocol = Protocol(Side.SERVER, max_size=shared.message_bytes_max)
        self._handler: Handler | None = None
        """None before it is made and after it was told that the WebSocket is closed."""
        self._queue: deque[bytes] = deque()
        self._has_refused = False
        self._is_closing = False
        """A Close is sent, and nothing after it."""
        self._is_over = False
        self._unread, self._at = b"", 0
        """Bytes that are not parsed, from the index on."""
        self._frames: deque[Frame] = deque()
        """Of the last slice that was parsed, those that are not handled."""
        self._frames_bytes = 0
        self._answers: list[bytes] = []
        """What the protocol answers to that slice: it leaves when the slice's frames are handled."""
        self._message = bytearray()
        """The fragments of a message that has begun."""
        self._is_held = False
        self._is_reading = False
        self._waits_turn = False
        self._has_heard = False
        self._is_pinged = False
        self._quiet_since_s = 0.0
        self._close_end_s = 0.0
        self._arriving_bytes = 0
        """Of messages that are not handed on; they are counted in the budget of request bodies."""
        self._arrived_bytes = 0
        self._window_start_s = 0.0
        self._window_start_bytes = 0

    # ---- the handler calls these --------------------------------------------------------------------------------

    def send(self, text: str | bytes) -> bool:
        """Sends a message, or has it wait in the queue. Bytes are text in UTF-8.

        False when it was not taken: the queue is full, and `Handler.writable` comes later; or the WebSocket is closed.
        """
        if not self.has_room():
            return False
        connection = self._connection
        frame = Frame(Opcode.TEXT, text.encode() if isinstance(text, str) else text).serialize(mask=False)
        if connection.paused or self._queue:
            self._queue.append(frame)
        else:
            connection.write(frame)
        return True

    def has_room(self) -> bool:
        """Whether `send` would take a message now. When not, `Handler.writable` comes later: what is large need not be
        put together before."""
        if self._is_closing or self._is_over:
            return False
        if (self._connection.paused or self._queue) and len(self._queue) >= self._shared.queue_messages_max:
            self._has_refused = True
            return False
        return True

    def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Ends the WebSocket after what was sent; `Handler.closed` is called before this returns."""
        if self._is_closing or self._is_over:
            return
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, _short(reason))
        self._finish()

    def hold(self) -> None:
        """No message is handed on until `release`; what then arrives stays in the socket."""
        if not self._is_closing:
            self._is_held = True
            self._connection.read_no_more()

    def release(self) -> None:
        self._is_held = False
        self._later()

    # ---- the connection calls these -----------------------------------------------------------------------------

    def begin(self, opened: Callable[[WebSocket], Handler]) -> None:
        """Called once, when the answer to the handshake is written."""
        early = self._connection.take_over(self)
        self._shared.open_count += 1
        try:
            self._handler = opened(self)
        except Exception:
            self._broke()
        else:
            if self._is_closing or self._is_over:
                self._tell_closed()  # `opened` has closed it
        if early:
            self.received(early)

    @property
    def is_full(self) -> bool:
        return self._is_held or bool(self._frames) or self._at < len(self._unread)

    def received(self, data: bytes) -> None:
        self._has_heard = True
        self._arrived_bytes += len(data)
        self._unread = self._unread[self._at :] + data if self._at < len(self._unread) else data
        self._at = 0
        self._read()

    def drained(self) -> None:
        self._send_queue()
        if self._connection.paused or self._is_over:
            return
        if self._has_refused and self._handler is not None:
            self._has_refused = False
            try:
                self._handler.writable()
            except Exception:
                self._broke()
        self._read()

    def tick(self, now_s: float) -> None:
        if self._is_closing:
            if not self._close_end_s:
                self._close_end_s = now_s + CLOSE_S
            elif now_s >= self._close_end_s:
                self._connection.abort()
        elif self._connection.paused or self.is_full:
            # Nothing is read from it: its silence says nothing. One that is gone is found by TCP, which has unsent
            # bytes for it, or when reading goes on.
            self._quiet_since_s = self._window_start_s = now_s
            self._window_start_bytes = self._arrived_bytes
            self._is_pinged = False
        else:
            self._listen(now_s)
            self._watch_message(now_s)

    def stop(self) -> None:
        self.close(CloseCode.GOING_AWAY, "the server is shutting down")

    def lost(self) -> None:
        self._over()

    # ---- time ---------------------------------------------------------------------------------------------------

    def _listen(self, now_s: float) -> None:
        """Pings a silent client; one that stays silent is given up."""
        if self._has_heard or not self._quiet_since_s:
            self._has_heard = self._is_pinged = False
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s >= self._shared.keepalive_s:
            if self._is_pinged:
                # 1011 is what the `websockets` package says in this case; clients take it as a reason to come again.
                self.close(CloseCode.INTERNAL_ERROR, "no answer to a ping")
            else:
                self._is_pinged = True
                self._quiet_since_s = now_s
                self._connection.write(Frame(Opcode.PING, b"").serialize(mask=False))

    def _watch_message(self, now_s: float) -> None:
        """A message that has begun goes on at the rate of a request's body: it holds memory that others need."""
        since_s = now_s - self._window_start_s
        if not self._arriving_bytes or not self._window_start_s:
            self._window_start_s, self._window_start_bytes = now_s, self._arrived_bytes
        elif since_s >= self._shared.message_timeout_s:
            if self._arrived_bytes - self._window_start_bytes < BODY_RATE_BYTES_PER_S * since_s:
                self.close(CloseCode.POLICY_VIOLATION, "the message does not arrive in time")
            self._window_start_s, self._window_start_bytes = now_s, self._arrived_bytes

    # ---- what arrives -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Handles what has arrived, as far as the client takes answers and the handler takes messages."""
        if self._is_reading or self._is_over:
            return
        self._is_reading = True
        frames_left = TURN_FRAMES
        while not self._is_over:
            if self._frames:
                if self._is_held or self._connection.paused:
                    break
                if not frames_left:
                    self._later()
                    break
                frames_left -= 1
                frame = self._frames.popleft()
                self._frames_bytes -= len(frame.data)
                self._take(frame)
            elif self._answers:
                self._write_answers()
            elif self._at < len(self._unread) and not self._connection.paused:
                self._parse()
            else:
                break
        self._is_reading = False
        if self._is_over:
            return
        self._count_arriving()
        if self.is_full:
            self._connection.read_no_more()
        else:
            self._unread, self._at = b"", 0
            self._connection.read_on()

    def _later(self) -> None:
        if not self._waits_turn and not self._is_over:
            self._waits_turn = True
            self._connection.after_others(self._next_turn)

    def _next_turn(self) -> None:
        self._waits_turn = False
        try:
            self._read()
        except Exception:
            self._exchange.broke()

    def _parse(self) -> None:
        """One slice."""
        end = self._at + SLICE_BYTES
        protocol = self._protocol
        protocol.receive_data(self._unread[self._at : end])
        self._at = end
        for event in protocol.events_received():
            if isinstance(event, Frame):
                self._frames.append(event)
                self._frames_bytes += len(event.data)
        self._answers += protocol.data_to_send()
        self._count_arriving()

    def _count_arriving(self) -> None:
        bytes_now = 0
        if not self._is_over:
            bytes_now = len(self._protocol.reader.buffer) + len(self._message) + self._frames_bytes
        more = bytes_now - self._arriving_bytes
        self._arriving_bytes = bytes_now
        bodies = self._shared.bodies
        bodies.held += more
        if more > 0 and bodies.held > bodies.bytes_max:
            self._fail(CloseCode.TRY_AGAIN_LATER, "too many request bodies arrive at once")

    def _take(self, frame: Frame) -> None:
        opcode = frame.opcode
        if self._is_closing or opcode not in (Opcode.TEXT, Opcode.CONT, Opcode.BINARY):
            return  # the protocol has answered Ping and Close; what comes after our Close is not wanted
        if opcode is Opcode.BINARY:
            self._fail(CloseCode.UNSUPPORTED_DATA, "send messages as text")
            return
        data: bytes | bytearray | memoryview = frame.data
        if self._message or not frame.fin:
            self._message += data
            if not frame.fin:
                return
            data, self._message = self._message, bytearray()
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "the message is not valid UTF-8")
            return
        if self._handler is not None:
            try:
                self._handler.message(text)
            except Exception:
                self._broke()

    # ---- what leaves, and the end -------------------------------------------------------------------------------

    def _send_queue(self) -> None:
        while self._queue and not self._connection.paused:
            self._connection.write(self._queue.popleft())

    def _write_answers(self) -> None:
        """Pongs; or a Close, and an empty item when the connection is to end."""
        answers, self._answers = self._answers, []
        if self._protocol.state is not State.OPEN:
            self._is_closing = True
            while self._queue:  # a Close is the last frame: the few messages that wait are sent before it
                self._connection.write(self._queue.popleft())
        for data in answers:
            if data:
                self._connection.write(data)
        if self._is_closing:
            self._tell_closed()
        if b"" in answers:
            self._over()
            self._connection.hang_up(self._exchange)

    def _finish(self) -> None:
        """Sends the protocol's Close. What is not handled by now is not handled any more."""
        self._forget_frames()
        self._answers += self._protocol.data_to_send()
        self._write_answers()
        self._is_held = False
        self._later()  # the client's Close may have arrived already

    def _fail(self, code: int, reason: str) -> None:
        """Ends the WebSocket without waiting for the client's Close (RFC 6455, 7.1.7)."""
        if not self._is_over:
            self._protocol.fail(code, _short(reason))
            self._finish()

    def _broke(self) -> None:
        """Called while an exception is handled that came out of the handler."""
        failure = faults.report("http", path=request_ids.path_of(self._exchange.request))
        self._fail(CloseCode.INTERNAL_ERROR, failure.message())

    def _over(self) -> None:
        if not self._is_over:
            self._is_over = self._is_closing = True
            self._shared.open_count -= 1
            self._forget_frames()
            self._queue.clear()
            self._unread, self._at = b"", 0
            self._count_arriving()
            self._tell_closed()

    def _forget_frames(self) -> None:
        self._frames.clear()
        self._frames_bytes = 0
        self._message = bytearray()

    def _tell_closed(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            try:
                handler.closed()
            except Exception:
                faults.report("http")


def _short(reason: str) -> str:
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
