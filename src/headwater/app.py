"""`headwater serve`: a node in this process, or one in several with this process as their parent.

Owns the data directory's lock, the number of groups and workers, and exit codes. Never wires a door: `node` does.

    settings -> lock and prepare the directory -> one worker:  Node, here
                                               -> several:     reserve the addresses -> a process each, kept alive
"""

from __future__ import annotations

import asyncio
import cProfile
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog
import uvloop

from headwater.catalog.sqlite import CatalogMismatch
from headwater.cluster.members import Members
from headwater.cluster.supervisor import CannotListen, Order, SocketDirectory, reserve, supervise
from headwater.config import Settings
from headwater.data_directory import DataDirectory, DirectoryInUse, DirectoryRefused
from headwater.engine.recovery import LogContradiction
from headwater.log.entries import BadEntry
from headwater.log.wal_recovery import LogCorrupt
from headwater.node import CannotStart, Node, shown_address
from headwater.observe import log_lines
from headwater.ports import SystemRng
from headwater.security.name_hash import BadReceiptKey, NameHash
from headwater.subscriptions.keys import BadKeys, Keys

EXIT_OK, EXIT_FAILED = 0, 1
SWITCH_INTERVAL_S = 0.0005
"""How long the event loop may hold the interpreter while the log's writer waits for it: the default of 5 ms is a
visible part of an append's latency under load."""
REFUSALS = (CannotStart, LogCorrupt, LogContradiction, CatalogMismatch, BadEntry, BadKeys, BadReceiptKey)
"""What ends a start with a line that says what to do."""

log = structlog.get_logger("headwater")


def serve(settings: Settings) -> int:
    """Runs a node until SIGTERM or SIGINT; returns the process's exit code."""
    log_lines.set_up(settings.log_level, settings.log_format)
    try:
        with ExitStack() as held:
            groups_count, lock = _prepare(settings, held)
            workers_count = _workers(settings, groups_count)
            if workers_count == 1:
                alone = Members(0, 1, groups_count, Path())
                run(lambda: _serve_alone(settings, alone), settings.profile)
                return EXIT_OK
            return _supervise(settings, groups_count, workers_count, lock, held)
    except REFUSALS as error:
        return refused(error)


def serve_worker(order: Order, ready: Callable[[], None], watch: Callable[[], None]) -> int:
    """Runs one process of a node until SIGTERM. `watch` is called on its event loop before anything is opened."""
    settings = Settings(**order.settings)
    log_lines.set_up(settings.log_level, settings.log_format)
    members = Members(order.member, order.members_count, order.groups_count, Path(order.directory))

    async def body() -> None:
        watch()
        await _serve(Node(settings, members), order.http, order.s3p, lambda address: ready(), (signal.SIGTERM,))

    profile = settings.profile if settings.profile == "off" else f"{settings.profile}.{order.member}"
    try:
        run(body, profile)
    except REFUSALS as error:
        return refused(error)
    return EXIT_OK


def run(body: Callable[[], Coroutine[Any, Any, None]], profile: str) -> None:
    """Runs a node's coroutine on the event loop that all of them have."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if profile != "off":
            with cProfile.Profile() as profiler:
                runner.run(body())
            profiler.dump_stats(profile)
        else:
            runner.run(body())


def refused(error: Exception) -> int:
    print(log_lines.escaped(f"error: {error}"), file=sys.stderr)
    return EXIT_FAILED


async def _serve_alone(settings: Settings, members: Members) -> None:
    def ready(address: str) -> None:
        print(f"headwater ready on http://{address}", flush=True)

    node = Node(settings, members)
    await _serve(node, settings.listen_address, settings.s3p_address, ready, (signal.SIGTERM, signal.SIGINT))


async def _serve(
    node: Node,
    http: tuple[str, int],
    s3p: tuple[str, int] | None,
    ready: Callable[[str], None],
    signals: tuple[signal.Signals, ...],
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    log_lines.log_stray_exceptions(loop)
    for number in signals:
        loop.add_signal_handler(number, stopping.set)
    try:
        ready(await node.start(http, s3p))
        await stopping.wait()
    finally:
        await node.stop()


def _prepare(settings: Settings, held: ExitStack) -> tuple[int, int | None]:
    """The number of groups, and the descriptor that locks the data directory until `held` is closed."""
    default = settings.workers_wanted or len(os.sched_getaffinity(0))
    if settings.memory:
        return settings.groups_wanted or default, None
    data = DataDirectory(Path(settings.data))
    try:
        lock = held.enter_context(data.lock())
        groups_count = data.prepare(settings.groups_wanted, default)
    except DirectoryInUse:
        raise CannotStart(f"another node already serves {data.path}; stop it, or choose another --data") from None
    except DirectoryRefused as error:
        raise CannotStart(str(error)) from None
    return groups_count, lock.fileno()


def _workers(settings: Settings, groups_count: int) -> int:
    wanted = settings.workers_wanted
    if wanted is None:
        return min(len(os.sched_getaffinity(0)), groups_count)
    if wanted > groups_count:
        groups = "1 group" if groups_count == 1 else f"{groups_count} groups"
        raise CannotStart(
            f"{wanted} workers cannot share {groups}: a group has one writer. Ask for at most {groups_count}, or move "
            f"the data into a directory with more groups by a backup and a restore"
        )
    return wanted


def _supervise(settings: Settings, groups_count: int, workers_count: int, lock: int | None, held: ExitStack) -> int:
    if not settings.memory:
        # Secrets that all workers share: made here, where nobody else makes them at the same time.
        Keys.kept(Path(settings.data), SystemRng())
        NameHash.kept(Path(settings.data), SystemRng())
    http = _reserve(settings.listen_address, "another --listen", held)
    s3p = None
    if settings.s3p_address is not None:
        s3p = _reserve(settings.s3p_address, "another --s3p, or --s3p off", held)
    directory = SocketDirectory()
    held.callback(directory.close)
    shared = asdict(settings)
    orders = [
        Order(member, workers_count, groups_count, str(directory.path), shared, http, s3p)
        for member in range(workers_count)
    ]

    def ready() -> None:
        if s3p is not None:
            log.info("s3p ready", address=shown_address(*s3p))
        print(f"headwater ready on http://{shown_address(*http)} with {workers_count} workers", flush=True)

    command = [sys.executable, "-m", "headwater.worker"]
    fds = [] if lock is None else [lock]
    return asyncio.run(supervise(orders, command, fds, settings.shutdown_grace_ms / 1000, ready))


def _reserve(address: tuple[str, int], instead: str, held: ExitStack) -> tuple[str, int]:
    """The address with its port, which stays taken until `held` is closed. Raises CannotStart."""
    host, port = address
    try:
        sockets, port = reserve(host, port)
    except CannotListen as error:
        raise CannotStart(f"cannot listen on {shown_address(host, port)}: {error}; choose {instead}") from None
    for sock in sockets:
        held.enter_context(sock)
    return host, port
