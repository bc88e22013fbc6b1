"""A plain file behind the same event loop: what a catch-up read could be at best.

Owns the barest answer that uvloop allows: `GET …?offset=N` gives the next `--read-bytes` of the file,
in writes of the same size as the server's, held back when the socket is. Knows nothing of streams.
"""

import argparse
import asyncio
import os
import re

import uvloop

SLICE_BYTES = 256 * 1024
_OFFSET = re.compile(rb"[?&]offset=(-?\d+)")


class Door(asyncio.Protocol):
    def __init__(self, fd: int, size: int, read_bytes: int) -> None:
        self._fd, self._size, self._read_bytes = fd, size, read_bytes
        self._held = b""
        self._paused = False
        self._rest = memoryview(b"")

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=SLICE_BYTES)

    def data_received(self, data: bytes) -> None:
        self._held += data
        if not self._held.endswith(b"\r\n\r\n"):
            return
        found = _OFFSET.search(self._held)
        self._held = b""
        start = max(0, int(found[1])) if found else 0
        body = os.pread(self._fd, self._read_bytes, start)
        end = start + len(body)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nStream-Next-Offset: {end:020d}\r\n"
        head += "Stream-Up-To-Date: true\r\n" if end >= self._size else ""
        self._transport.write(head.encode() + b"\r\n")
        self._rest = memoryview(body)
        self._pump()

    def _pump(self) -> None:
        while self._rest and not self._paused:
            part, self._rest = self._rest[:SLICE_BYTES], self._rest[SLICE_BYTES:]
            self._transport.write(part)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()


async def serve(path: str, read_bytes: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    server = await asyncio.get_running_loop().create_server(lambda: Door(fd, size, read_bytes), "127.0.0.1", 0)
    print(f"plain file ready on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--read-bytes", type=int, required=True)
    given = parser.parse_args()
    uvloop.run(serve(given.path, given.read_bytes))
