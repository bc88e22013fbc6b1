"""The ceiling: the barest append server that uvloop and httptools allow, `python -m bench.sketch [DATA_DIR]`.

Owns nothing but a write per turn of the event loop and a group-committed fdatasync in a thread; it checks no
request, reads nothing back and keeps no protocol: what the real append path costs beyond this needs a reason.
"""

import asyncio
import os
import queue
import signal
import struct
import sys
import threading
from pathlib import Path

import httptools
import uvloop

WAL_BYTES = 1 << 28
_FRAME = struct.Struct("<II")
_CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"


class Sketch:
    """All state: streams as [number, tail offset, payloads], and the batch of the current turn."""

    def __init__(self, data: Path | None) -> None:
        self.streams: dict[bytes, list] = {}
        self.loop = asyncio.get_running_loop()
        self.frames: list[bytes] = []
        self.replies: list[tuple] = []
        self.syncing = False
        # Bound: one batch, for the next is handed over only when the last has come back.
        self.batches: queue.SimpleQueue = queue.SimpleQueue()
        self.durable = data is not None
        if data is not None:
            self.fd = os.open(data / "wal", os.O_CREAT | os.O_WRONLY)
            os.posix_fallocate(self.fd, 0, WAL_BYTES)
            os.fsync(self.fd)
            threading.Thread(target=self._write_batches, daemon=True).start()

    def append(self, path: bytes, body: bytes, write) -> None:
        stream = self.streams[path]
        stream[1] += len(body)
        stream[2].append(body)
        reply = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: %020d\r\n\r\n" % stream[1]
        if not self.durable:
            write(reply)
            return
        self.frames += (_FRAME.pack(len(body), stream[0]), body)
        if not self.replies and not self.syncing:
            self.loop.call_soon(self._hand_over)
        self.replies.append((write, reply))

    def _hand_over(self) -> None:
        self.syncing = True
        self.batches.put((b"".join(self.frames), self.replies))
        self.frames, self.replies = [], []

    def _write_batches(self) -> None:
        while True:
            frames, replies = self.batches.get()
            os.write(self.fd, frames)
            os.fdatasync(self.fd)
            self.loop.call_soon_threadsafe(self._synced, replies)

    def _synced(self, replies: list[tuple]) -> None:
        self.syncing = False
        if self.replies:
            self._hand_over()
        for write, reply in replies:
            write(reply)


class Connection(asyncio.Protocol):
    def __init__(self, sketch: Sketch) -> None:
        self._sketch = sketch
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._write = transport.write

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_body(self, body: bytes) -> None:
        self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        if self._parser.get_method() == b"PUT":
            streams = self._sketch.streams
            streams.setdefault(self._path, [len(streams), 0, []])
            self._write(_CREATED)
        else:
            self._sketch.append(self._path, body, self._write)


async def serve(data: Path | None) -> None:
    loop = asyncio.get_running_loop()
    sketch = Sketch(data)
    server = await loop.create_server(lambda: Connection(sketch), "127.0.0.1", 0)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    print(f"sketch ready on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
