"""`headwater serve`: a node in this process, or one in several with this process as their parent.

Owns the data directory's lock and the numbers of groups and workers. Never serves: `process` does, here or in workers.

    settings -> lock and prepare the directory -> one worker:          `process`, here
                                               -> several:             listen -> a process each, kept alive
                                               -> a cluster's node:    listen -> `process`, here
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import structlog

from headwater.cluster.supervisor import BACKLOG, CannotListen, Order, SocketDirectory, listen, supervise
from headwater.config import Settings
from headwater.data_directory import DataDirectory, DirectoryInUse, DirectoryRefused
from headwater.observe import log_lines
from headwater.ports import SystemRng
from headwater.security.name_hash import BadReceiptKey, NameHash
from headwater.security.sealing import sealing_of
from headwater.setting_values import shown_address
from headwater.start_refused import CannotStart, refused
from headwater.subscriptions.keys import BadKeys, Keys

log = structlog.get_logger("headwater")


def serve(settings: Settings) -> int:
    """Runs a node until SIGTERM or SIGINT; returns the process's exit code."""
    log_lines.set_up(settings.log_level, settings.log_format)
    try:
        if settings.tls:
            _check_tls(settings)
        with ExitStack() as held:
            if settings.in_cluster:
                return _serve_in_cluster(settings, held)
            groups_count, workers_count, lock = _prepare(settings, held)
            if workers_count > 1:
                return _supervise(settings, groups_count, workers_count, lock, held)
            from headwater.process import serve_alone  # Late: the parent of workers needs none of it.

            return serve_alone(settings, groups_count)
    except (CannotStart, BadKeys, BadReceiptKey) as error:
        return refused(error)


def _check_tls(settings: Settings) -> None:
    """Raises CannotStart: once, and not in each worker."""
    from headwater.security import tls
    from headwater.security.certificates import TlsRefused  # Late: a node without TLS needs none of it.

    try:
        tls.load(settings)
    except TlsRefused as why:
        raise CannotStart(str(why)) from None


def _serve_in_cluster(settings: Settings, held: ExitStack) -> int:
    """The node takes its addresses before it joins, so that it can tell the others where. It listens when it has
    met them: a client that comes earlier is refused at once, and goes to another node."""
    _locked(DataDirectory(Path(settings.data)), held)
    http, http_sockets = _listen(settings.listen_address, "another --listen", held, None)
    s3p, s3p_sockets = None, list[socket.socket]()
    if settings.s3p_address is not None:
        s3p, s3p_sockets = _listen(settings.s3p_address, "another --s3p, or --s3p off", held, None)
    admin, admin_sockets = _listen_for_admin(settings, held, None)
    from headwater.process import serve_in_cluster  # Late, as below.

    sockets = {"http": http_sockets, "s3p": s3p_sockets, "admin": admin_sockets}
    return serve_in_cluster(settings, http, s3p, admin, sockets)


def _locked(data: DataDirectory, held: ExitStack) -> int:
    """The descriptor that locks the directory until `held` is closed. Raises CannotStart."""
    try:
        return held.enter_context(data.lock()).fileno()
    except DirectoryInUse:
        raise CannotStart(f"another node already serves {data.path}; stop it, or choose another --data") from None
    except DirectoryRefused as error:
        raise CannotStart(str(error)) from None


def _prepare(settings: Settings, held: ExitStack) -> tuple[int, int, int | None]:
    """The numbers of groups and workers, and the descriptor that locks the data directory until `held` is closed."""
    default = settings.workers_wanted or len(os.sched_getaffinity(0))
    wanted = settings.groups_wanted or default
    if settings.memory:
        return wanted, _workers(settings, wanted), None
    data = DataDirectory(Path(settings.data))
    lock = _locked(data, held)
    try:
        # Before anything is made or taken over: a refusal leaves the directory as it was.
        data.check(settings.groups_wanted)
        workers_count = _workers(settings, data.groups() or wanted)
        groups_count = data.prepare(settings.groups_wanted, default)
    except DirectoryRefused as error:
        raise CannotStart(str(error)) from None
    return groups_count, workers_count, lock


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
        sealing = sealing_of(settings)
        Keys.kept(Path(settings.data), SystemRng(), sealing)
        NameHash.kept(Path(settings.data), SystemRng(), sealing)
    http, http_sockets = _listen(settings.listen_address, "another --listen", held)
    s3p, s3p_sockets = None, list[socket.socket]()
    if settings.s3p_address is not None:
        s3p, s3p_sockets = _listen(settings.s3p_address, "another --s3p, or --s3p off", held)
    admin, admin_sockets = _listen_for_admin(settings, held)
    listening = [*http_sockets, *s3p_sockets, *admin_sockets]
    directory = SocketDirectory()
    held.callback(directory.close)
    shared = asdict(settings)
    numbers = [sock.fileno() for sock in http_sockets], [sock.fileno() for sock in s3p_sockets]
    admin_numbers = [sock.fileno() for sock in admin_sockets]
    orders = [
        Order(
            member, workers_count, groups_count, str(directory.path), shared, http, s3p, *numbers, admin, admin_numbers
        )
        for member in range(workers_count)
    ]

    def ready() -> None:
        if s3p is not None:
            log.info("s3p ready", address=shown_address(*s3p))
        if admin is not None:
            log.info("admin ready", address=shown_address(*admin))
        print(f"headwater ready on {settings.scheme}://{shown_address(*http)} with {workers_count} workers", flush=True)

    def ending() -> None:
        for sock in listening:
            sock.close()

    command = [sys.executable, "-m", "headwater.worker"]
    fds = [*([] if lock is None else [lock]), *numbers[0], *numbers[1], *admin_numbers]
    return asyncio.run(supervise(orders, command, fds, settings.shutdown_grace_ms / 1000, ready, ending, settings.tls))


def _listen_for_admin(
    settings: Settings, held: ExitStack, backlog: int | None = BACKLOG
) -> tuple[tuple[str, int] | None, list[socket.socket]]:
    if settings.admin_address is None:
        return None, []
    return _listen(settings.admin_address, "another --admin-listen, or --admin-listen off", held, backlog)


def _listen(
    address: tuple[str, int], instead: str, held: ExitStack, backlog: int | None = BACKLOG
) -> tuple[tuple[str, int], list[socket.socket]]:
    """The address with its port, and the sockets that listen there until `held` is closed. Raises CannotStart."""
    host, port = address
    try:
        sockets, port = listen(host, port, backlog)
    except CannotListen as error:
        raise CannotStart(f"cannot listen on {shown_address(host, port)}: {error.strerror}; choose {instead}") from None
    for sock in sockets:
        held.enter_context(sock)
    return (host, port), sockets
