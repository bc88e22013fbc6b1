"""The end of a connection with TLS: who was told of it and answers nothing is not waited for.

Owns when that is so. Never ends anything: connections do.

A transport that closes says goodbye and waits for the client's. A client that is idle may never look, and one that
reads slowly has not seen it yet: the difference is whether what was written has arrived.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios

QUIET_LOOKS = 2
"""Between two looks, what the kernel had sent may have been followed by more."""


class Farewell:
    __slots__ = ("_quiet_count", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._quiet_count = 0

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> Farewell | None:
        """None without TLS."""
        return None if transport.get_extra_info("sslcontext") is None else cls(transport)  # type: ignore[arg-type]

    def is_over(self) -> bool:
        """Asked about twice a second, after the end: whether all that was written has reached the other machine."""
        self._quiet_count = self._quiet_count + 1 if self._has_arrived() else 0
        return self._quiet_count >= QUIET_LOOKS

    def _has_arrived(self) -> bool:
        """While the kernel holds bytes that were not acknowledged, there may be more behind them."""
        if self._transport.get_write_buffer_size():
            return False
        try:
            unsent = fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
        except (OSError, AttributeError):
            return True
        return int(struct.unpack("i", unsent)[0]) == 0
