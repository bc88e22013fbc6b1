"""Snapshots and bootstrap: a client starts from a blob and what came after it, instead of from the beginning.

Owns `{stream}/snapshot`, `{stream}/snapshot/{offset}` and `{stream}/bootstrap` (extension spec 2 and 3). Never holds up
appends: blobs go to the object store in worker threads, and only a reference to them is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.live_reads import SLICE_BYTES, BodyPump
from headwater.doors.http.origin import Origin
from headwater.doors.http.respond import header, path_of
from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.pending_answers import Outcome
from headwater.errors import (
    BadQuery,
    BootstrapIncomplete,
    Failure,
    MethodNotAllowed,
    OffsetGone,
    SnapshotInUse,
    SnapshotNotFound,
    row,
)
from headwater.lake.names import epoch_token, snapshot_key
from headwater.model import offsets
from headwater.model.commands import PublishSnapshot
from headwater.model.forks import ColdOffset
from headwater.model.row import Snapshot
from headwater.model.stream import decide_snapshot
from headwater.ports import Blobs, Rng

BOOTSTRAP_BYTES_MAX = 128 * 1024 * 1024
"""Retained updates in one bootstrap; a client reads the rest as an ordinary stream."""


class Snapshots:
    def __init__(self, engine: Engine, blobs: Blobs, settings: Settings, rng: Rng) -> None:
        self._engine = engine
        self._blobs = blobs
        self._settings = settings
        self._origin = Origin(settings)
        self._rng = rng

    def handle(self, exchange: Exchange, key: str, token: str | None) -> None:
        """`token` is the offset in the path; None for `{stream}/snapshot` itself."""
        method = exchange.request.method
        if token is None:
            if method not in (b"GET", b"HEAD"):
                raise MethodNotAllowed("GET, HEAD, OPTIONS")
            self._latest(exchange, self._engine.find(key, True))
            return
        offset = offsets.parse_snapshot(token)
        if method == b"PUT":
            self._publish(exchange, key, offset)
        elif method in (b"GET", b"HEAD"):
            stream = self._engine.find(key, True)
            exchange.run(self._read(exchange, stream, self._visible(stream, offset)))
        elif method == b"DELETE":
            self._visible(self._engine.find(key, False), offset)
            raise SnapshotInUse
        else:
            raise MethodNotAllowed("GET, HEAD, PUT, DELETE, OPTIONS")

    def bootstrap(self, exchange: Exchange, key: str, query: bytes) -> None:
        if exchange.request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("GET, HEAD, OPTIONS")
        if "live" in parse.query(query, ()):
            raise BadQuery("live", "bootstrap answers once; follow up with a live read from Stream-Next-Offset")
        exchange.run(self._bootstrap(exchange, self._engine.find(key, True)))

    # ---- publishing ---------------------------------------------------------------------------------------------

    def _publish(self, exchange: Exchange, key: str, offset: int) -> None:
        headers = exchange.request.headers
        stream = self._engine.find(key, True)
        raw = headers.get(b"content-type", b"application/octet-stream")
        parse.content_type(raw, self._settings.content_type_bytes_max)
        group = self._engine.group_of(stream).group
        blob = snapshot_key(group.number, stream.sid, offset, epoch_token(group.epoch, self._rng.token(8).hex()))
        command = PublishSnapshot(offset, raw.decode(), blob, len(exchange.request.body))
        # Judged twice: now, so that a hopeless blob is not stored, and again when it is.
        with contextlib.suppress(ColdOffset):
            decide_snapshot(stream, command, 0)
        exchange.run(self._store(exchange, key, command))

    async def _store(self, exchange: Exchange, key: str, command: PublishSnapshot) -> None:
        await asyncio.to_thread(self._blobs.put, command.blob, exchange.request.body)

        def published(_: Outcome) -> None:
            shown = offsets.show(command.offset)
            stream = self._engine.find(key, False)
            exchange.empty(
                204, [("Stream-Snapshot-Offset", shown), ("Stream-Next-Offset", offsets.show(stream.visible))]
            )

        def refused_or(exchange: Exchange, outcome: Outcome) -> None:
            discard_refused(self._engine, command, outcome)
            if isinstance(outcome, Failure):
                exchange.fail(outcome)
            else:
                published(outcome)

        exchange.then = refused_or
        self._engine.submit(key, command, exchange)

    # ---- reading ------------------------------------------------------------------------------------------------

    def _latest(self, exchange: Exchange, stream: LoadedStream) -> None:
        snapshot = stream.snapshot
        if snapshot is None:
            raise SnapshotNotFound
        path = f"{path_of(exchange.request.target).rstrip('/')}/{offsets.show(snapshot.offset)}"
        location = self._origin.redirect(path)
        exchange.empty(307, [("Location", location), *_facts(stream, snapshot), ("Cache-Control", "no-store")])

    @staticmethod
    def _visible(stream: LoadedStream, offset: int) -> Snapshot:
        snapshot = stream.snapshot
        if snapshot is None or snapshot.offset != offset:
            raise SnapshotNotFound
        return snapshot

    async def _read(self, exchange: Exchange, stream: LoadedStream, snapshot: Snapshot) -> None:
        body = await self._blob(snapshot)
        headers = [("Content-Type", snapshot.content_type), *_facts(stream, snapshot), ("Cache-Control", "no-store")]
        self._answer(exchange, headers, len(body), iter((body,)))

    async def _blob(self, snapshot: Snapshot) -> bytes:
        try:
            return await asyncio.to_thread(self._blobs.get, snapshot.blob)
        except KeyError:
            # Superseded while it was being read.
            raise SnapshotNotFound from None

    async def _bootstrap(self, exchange: Exchange, stream: LoadedStream) -> None:
        while True:
            snapshot = stream.snapshot
            try:
                body = b"" if snapshot is None else await self._blob(snapshot)
                # Not simply from the earliest record: between a snapshot and that one others may be gone.
                start = stream.earliest if snapshot is None else snapshot.offset
                part = await self._engine.read_now(stream, start, BOOTSTRAP_BYTES_MAX)
                break
            except (OffsetGone, SnapshotNotFound):
                if stream.snapshot is not snapshot:
                    continue  # a newer one was published meanwhile
                if snapshot is not None and snapshot.offset < stream.earliest:
                    raise BootstrapIncomplete(snapshot.offset, stream.earliest) from None
                raise
        boundary = f"headwater-{self._rng.token(12).hex()}"
        media = "application/octet-stream" if snapshot is None else snapshot.content_type
        first = _part_head(boundary, media, first=True)
        between = _part_head(boundary, stream.content_type, first=False)
        last = f"\r\n--{boundary}--\r\n".encode()
        size = len(first) + len(body) + len(last) + len(between) * len(part.payloads) + part.size
        headers = [
            ("Content-Type", f"multipart/mixed; boundary={boundary}"),
            ("Stream-Snapshot-Offset", "-1" if snapshot is None else offsets.show(snapshot.offset)),
            ("Stream-Earliest-Offset", offsets.show(part.start)),
            ("Stream-Next-Offset", offsets.show(part.end)),
            ("Stream-Up-To-Date", "true" if part.up_to_date else "false"),
            ("Cache-Control", "no-store"),
        ]
        if part.closed:
            headers.append(("Stream-Closed", "true"))
        if exchange.request.method == b"GET" and (body or part.count):
            self._engine.count_read(stream.key, len(body) + part.size)

        def parts() -> Iterator[bytes]:
            yield first + body
            at, payloads = 0, part.payloads
            while at < len(payloads):
                gathered: list[bytes | memoryview] = []
                held = 0
                while at < len(payloads) and held < SLICE_BYTES:
                    gathered += (between, payloads[at])
                    held += len(between) + len(payloads[at])
                    at += 1
                yield b"".join(gathered)
            yield last

        self._answer(exchange, headers, size, parts())

    @staticmethod
    def _answer(exchange: Exchange, headers: list[tuple[str, str]], size: int, parts: Iterator[bytes]) -> None:
        request = exchange.request
        head = exchange.responder.head(200, headers, size, request.keep_alive)
        if request.method == b"HEAD":
            exchange.reply(head)
        else:
            BodyPump(exchange, head, parts)


def discard_refused(engine: Engine, command: PublishSnapshot, outcome: Outcome) -> None:
    """A refused snapshot leaves no blob behind, unless its reference may be found in the log after a restart."""
    if isinstance(outcome, Failure) and row(outcome).no_effect:
        engine.discard_blob(command.blob)


def _part_head(boundary: str, content_type: str, first: bool) -> bytes:
    return b"%b--%b\r\n%b\r\n" % (b"" if first else b"\r\n", boundary.encode(), header("Content-Type", content_type))


def _facts(stream: LoadedStream, snapshot: Snapshot) -> list[tuple[str, str]]:
    """Spec 2.5. `Stream-Next-Offset` is where reading goes on after the snapshot."""
    current = stream.visible == snapshot.offset
    facts = [
        ("Stream-Snapshot-Offset", offsets.show(snapshot.offset)),
        ("Stream-Next-Offset", offsets.show(snapshot.offset)),
        ("Stream-Up-To-Date", "true" if current else "false"),
    ]
    if current and stream.closed_visible:
        facts.append(("Stream-Closed", "true"))
    return facts
