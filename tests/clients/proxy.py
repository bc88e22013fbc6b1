"""A TCP proxy that cuts connections in the middle of requests and of responses, and follows a node to its new port.
It owns its thread and its sockets; it never changes a byte that it lets through."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

HOST = "127.0.0.1"
PIECE_BYTES = 64 * 1024
CUTS = ("request", "response")


@dataclass(frozen=True)
class Plan:
    """Every connection is cut, in one way or the other, before it has carried this many bytes that way."""

    request_bytes_max: int
    """0: only responses are cut."""
    response_bytes_max: int


class Proxy:
    """Listens on a port of its own until `close`; `target` may be moved at any time, None refuses everybody."""

    def __init__(self, target: int | None, plan: Plan | None, seed: int) -> None:
        self.target = target
        self.plan = plan
        self.cut_counts = dict.fromkeys(CUTS, 0)
        self.connections_count = 0
        self._rng = random.Random(seed)
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def drop_all(self) -> None:
        """Cut every open connection, as a vanished network would."""
        done = threading.Event()

        def act() -> None:
            for writer in list(self._open):
                writer.transport.abort()
            done.set()

        self._loop.call_soon_threadsafe(act)
        done.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, HOST, 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_count += 1
        self._open.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            if self.target is None:
                return
            from_server, upstream = await asyncio.open_connection(HOST, self.target)
            self._open.add(upstream)
            request_left, response_left, kind = self._choose()
            ways = (
                asyncio.ensure_future(self._pass(reader, upstream, request_left)),
                asyncio.ensure_future(self._pass(from_server, writer, response_left)),
            )
            done, pending = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if any(way.exception() is None and way.result() for way in done):
                self.cut_counts[kind] += 1
            elif all(way.exception() is None for way in done):
                # One side ended in order: what it said last must still arrive at the other.
                for one in (writer, upstream):
                    one.close()
                    await one.wait_closed()
            for way in pending:
                way.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # cancelled only when the proxy closes: then there is nobody to tell
        finally:
            for one in (writer, upstream):
                if one is not None:
                    self._open.discard(one)
                    one.transport.abort()

    def _choose(self) -> tuple[int | None, int | None, str]:
        """Bytes each way until the cut, and which way is cut; None for a way that is not."""
        if self.plan is None:
            return None, None, ""
        kind = self._rng.choice(CUTS) if self.plan.request_bytes_max else "response"
        if kind == "request":
            return self._rng.randrange(1, self.plan.request_bytes_max), None, kind
        # From 0: the server has answered and not a byte of it arrives.
        return None, self._rng.randrange(self.plan.response_bytes_max), kind

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None) -> bool:
        """Forward until the end, or until `left` bytes have gone: then True."""
        while piece := await reader.read(PIECE_BYTES):
            if left is not None and len(piece) >= left:
                writer.write(piece[:left])
                await writer.drain()
                return True
            writer.write(piece)
            await writer.drain()
            if left is not None:
                left -= len(piece)
        return False


@contextmanager
def proxying(target: int | None, plan: Plan | None = None, seed: int = 1) -> Iterator[Proxy]:
    """A proxy in front of a port of this machine; without a plan it cuts nothing by itself."""
    proxy = Proxy(target, plan, seed)
    try:
        yield proxy
    finally:
        proxy.close()
