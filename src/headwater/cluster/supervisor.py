"""The parent of the workers: starts them, starts those again that die, and stops them together.

Owns the data directory's lock, the listening sockets and the processes. Never serves a request and never touches the
data itself.

A worker is told who it is by a line of JSON on its standard input, and says `ready` on its standard output. Its input
stays open: its end tells a worker that the parent is gone. The lock's descriptor is inherited, so the directory stays
locked until the last of them has ended.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

EXIT_OK, EXIT_FAILED = 0, 1
BACKLOG = 4096
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 5.0
STEADY_S = 10.0
"""A worker that lived this long begins with the shortest wait again when it dies."""
KILL_AFTER_S = 15.0
"""Beyond the grace of open requests: what has not ended by then is killed."""

_PREFIX, _LOCK, _SECRETS = "headwater-sockets-", "sockets.lock", ("webhook-keys", "url-key")

log = structlog.get_logger("headwater.supervisor")
_SAY = b"say "
"""Begins a line of a worker that is for whoever started the node."""


class CannotListen(OSError):
    """The address is taken or not to be had; the message says which."""


class Order(msgspec.Struct, frozen=True):
    """What a worker is told: who it is, and the settings that all of them share."""

    member: int
    members_count: int
    groups_count: int
    directory: str
    """Where the members' sockets are."""
    settings: dict[str, Any]
    http: tuple[str, int]
    """The address that the node listens on; its port is chosen by now."""
    s3p: tuple[str, int] | None = None
    http_sockets: list[int] = []
    """Descriptors of the sockets that listen there, which all workers accept from."""
    s3p_sockets: list[int] = []
    admin: tuple[str, int] | None = None
    """The same of the node's own calls, when they have an address of their own."""
    admin_sockets: list[int] = []


def listen(host: str, port: int, backlog: int | None = BACKLOG) -> tuple[list[socket.socket], int]:
    """Sockets that listen on an address, for the workers to accept from, and its port. Raises CannotListen.

    Without a backlog the address is taken, and who connects is refused until somebody has the sockets listen.

    One for all workers, not one each: the address is this node's from here on, whichever workers live, and connections
    that wait when a worker dies are accepted by another.
    """
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            if backlog is not None:
                sock.listen(backlog)
            port = sock.getsockname()[1]
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise CannotListen(error.errno or 0, error.strerror or str(error)) from None
    return sockets, port


class Worker:
    """One worker process, started again whenever it dies."""

    def __init__(self, order: Order, fds: Sequence[int], command: Sequence[str]) -> None:
        self._order = order
        self._fds = tuple(fds)
        # The number tells people which process this is.
        self._command = (*command, str(order.member))
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self.starts_count = 0

    async def start(self) -> bool:
        """Starts the process; True when it is ready, False when it ended before it was, or there can be none."""
        self.starts_count += 1
        pipe = asyncio.subprocess.PIPE
        # A Ctrl-C reaches the whole process group, and it is for the parent to tell the workers when to stop. What is
        # blocked here is blocked in the new process from its first instruction on.
        # SIGHUP stays blocked until the worker says what it is for.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, pass_fds=self._fds
            )
        except OSError as error:
            log.error("a worker cannot be started", worker=self._order.member, reason=str(error))
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGHUP))
        if self._stopping.is_set():
            self._signal(signal.SIGTERM)  # it was not there yet when the others were told
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a worker has no standard input or output")
        with suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(self._order) + b"\n")
            await process.stdin.drain()
        while (line := await process.stdout.readline()).startswith(_SAY):
            print(line.removeprefix(_SAY).decode("utf-8", "replace"), end="", flush=True)
        return line == b"ready\n"

    async def keep(self) -> None:
        """Waits for the process to end and starts it again, until it is stopped and has ended."""
        wait_s = BACKOFF_S_MIN
        loop = asyncio.get_running_loop()
        while self._process is not None:
            began_s = loop.time()
            code = await self._process.wait()
            if self._stopping.is_set():
                return
            if loop.time() - began_s > STEADY_S:
                wait_s = BACKOFF_S_MIN
            log.error("a worker died and is started again", worker=self._order.member, exit=code, seconds=wait_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
                return
            wait_s = min(BACKOFF_S_MAX, wait_s * 2)
            if await self.start() and not self._stopping.is_set():
                log.info("the worker serves again", worker=self._order.member)

    def expect_end(self) -> None:
        """It is not started again from now on."""
        self._stopping.set()

    def hang_up(self) -> None:
        self._signal(signal.SIGHUP)

    def terminate(self) -> None:
        self.expect_end()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self.expect_end()
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            # Not `send_signal`: it looks for the end of the process first, and nobody else is told of that then.
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def ended(self) -> int | None:
        return None if self._process is None else await self._process.wait()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid


async def supervise(
    orders: Sequence[Order],
    command: Sequence[str],
    fds: Sequence[int],
    grace_s: float,
    ready: Callable[[], None],
    ending: Callable[[], None] = lambda: None,
    tls: bool = False,
) -> int:
    """Runs `command` for each order until SIGTERM or SIGINT; returns the exit code. `fds` are theirs too.

    Calls `ready` once all are, and `ending` before they are told to stop.
    """
    workers = [Worker(order, fds, command) for order in orders]
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for worker in workers:
            worker.expect_end()  # at once: a signal to the whole process group may end them before they are told
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)

    def hang_up() -> None:
        for worker in workers:
            worker.hang_up()

    if takes_hang_up(tls):
        loop.add_signal_handler(signal.SIGHUP, hang_up)
    stopped = loop.create_task(stopping.wait())
    starting = [loop.create_task(worker.start()) for worker in workers]
    keeping: list[asyncio.Task[None]] = []
    code = EXIT_OK
    if await _all_ready(starting, stopped):
        keeping = [loop.create_task(worker.keep()) for worker in workers]
        ready()
        await stopped
    elif not stopping.is_set():
        code = EXIT_FAILED  # whoever could not start has said why
    stopped.cancel()
    ending()
    for worker in workers:
        worker.terminate()
    ended = loop.create_task(_ended(workers, (*starting, *keeping)))
    try:
        await asyncio.wait_for(asyncio.shield(ended), grace_s + KILL_AFTER_S)
    except TimeoutError:
        for worker in workers:
            worker.kill()
        await ended
    block_signals()
    return code


def takes_hang_up(tls: bool) -> bool:
    """Whether SIGHUP has a node read its files again. A node on a terminal that has none to read ends with it, as any
    program does."""
    return tls or not os.isatty(0)


def unblock_hang_up() -> None:
    """In a worker, which was started with SIGHUP blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))


def block_signals() -> None:
    """The process is about to end, in order: another signal to end does not make that a crash."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))


async def _all_ready(starting: Sequence[asyncio.Task[bool]], stopped: asyncio.Task[Any]) -> bool:
    """False as soon as one of them cannot start, or they are to stop."""
    left: set[asyncio.Task[Any]] = {*starting, stopped}
    while len(left) > 1:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        if stopped in done or not all(task.result() for task in done):
            return False
    return True


async def _ended(workers: Sequence[Worker], tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Returns when no process is left, nor one about to be started."""
    await asyncio.gather(*tasks)
    await asyncio.gather(*(worker.ended() for worker in workers))


class SocketDirectory:
    """A directory for the members' sockets that only this user may enter; gone with `close`.

    Not below the data directory: the path of a Unix socket is 107 bytes at most. One that a killed parent left behind
    is removed by the next that starts.
    """

    def __init__(self) -> None:
        base = os.environ.get("XDG_RUNTIME_DIR")
        usable = base is not None and len(base) < 60 and os.path.isdir(base) and os.access(base, os.W_OK)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base if usable else None))
        # Locked before it has its name: whoever finds it free knows that its parent is gone.
        draft = self.path / "lock.part"
        self._lock = draft.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        draft.rename(self.path / _LOCK)
        _remove_left_behind(self.path.parent)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_left_behind(base: Path) -> None:
    """Removes sockets, and keys of a node that keeps nothing: a directory that holds anything beside them stays."""
    for path in base.glob(f"{_PREFIX}*"):
        try:
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                with (path / _LOCK).open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    for inside in path.iterdir():
                        if stat.S_ISSOCK(inside.lstat().st_mode) or inside.name in _SECRETS:
                            inside.unlink()
                    if [inside.name for inside in path.iterdir()] == [_LOCK]:
                        (path / _LOCK).unlink()
                        path.rmdir()
        except OSError:
            continue  # in use, just being made, or none of ours
