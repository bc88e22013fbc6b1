"""The servers that are measured: how each is installed, started on real disk, and ended by its pid.

Owns child servers and their data directories under .bench-tmp/; never sends them a request.
"""

import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from bench import proc
from bench.generator import REPO, Failed, die_with_parent, end, environment

SCRATCH = REPO / ".bench-tmp"
PEER_PACKAGES = REPO / "bench" / "peers"
START_SECONDS_MAX = 30.0
FSYNC, MEMORY = "fsync", "memory"
_claim: TextIO | None = None  # held open: closing it would release the lock
_READY = re.compile(r"ready on http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, slots=True)
class Peer:
    """A server in one durability mode. `command` is given the data directory."""

    name: str
    mode: str
    command: Callable[[Path], list[str]]
    install: Callable[[], None] = lambda: None
    ready: re.Pattern[str] = _READY
    """What it has printed when it is ready; the first group is the port to load."""


@dataclass(frozen=True, slots=True)
class Server:
    """A started peer, ready for requests."""

    peer: Peer
    port: int
    pid: int
    directory: Path


def headwater(mode: str) -> Peer:
    def command(data: Path) -> list[str]:
        where = ["--memory"] if mode == MEMORY else ["--data", str(data)]
        return [sys.executable, "-m", "headwater", "serve", "--listen", "127.0.0.1:0", "--s3p", "off", *where]

    return Peer("headwater", mode, command)


def headwater_s3p(mode: str) -> Peer:
    """The same server, loaded through its S3P door."""

    def command(data: Path) -> list[str]:
        return [*headwater(mode).command(data), "--s3p", "127.0.0.1:0"]

    ready = re.compile(r'"127\.0\.0\.1:(\d+)", "event": "s3p ready"(?s:.*)ready on http')
    return Peer("headwater", mode, command, ready=ready)


def redis() -> Peer:
    """Redis with an append-only file that is synced before each answer; it rewrites nothing while it is measured."""

    def command(data: Path) -> list[str]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = {"port": port, "bind": "127.0.0.1", "dir": data, "save": "", "appendonly": "yes"}
        settings |= {"appendfsync": "always", "auto-aof-rewrite-percentage": 0, "loglevel": "notice"}
        return ["redis-server", *(word for name, value in settings.items() for word in (f"--{name}", str(value)))]

    def install() -> None:
        if shutil.which("redis-server") is None:
            raise Failed("redis-server is not on the PATH; B7 and B14 need it: tools/system-packages.sh bench")

    ready = re.compile(r"port=(\d+)(?s:.*)Ready to accept connections")
    return Peer("redis", FSYNC, command, install, ready)


def reference(mode: str) -> Peer:
    """The Node reference server: file-backed (which syncs before it answers) or in memory."""

    def command(data: Path) -> list[str]:
        where = [] if mode == MEMORY else [str(data)]
        return ["node", str(PEER_PACKAGES / "reference.mjs"), *where]

    return Peer("reference", mode, command, install_node_peers)


def sketch(mode: str) -> Peer:
    def command(data: Path) -> list[str]:
        where = [] if mode == MEMORY else [str(data)]
        return [sys.executable, "-m", "bench.sketch", *where]

    return Peer("sketch", mode, command)


def install_node_peers() -> None:
    """Install bench/peers/package.json with npm, once per content of that file."""
    wanted = hashlib.sha256((PEER_PACKAGES / "package.json").read_bytes()).hexdigest()
    stamp = PEER_PACKAGES / "node_modules" / ".installed-for"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise Failed(f"{tool} is not on the PATH; the reference server needs Node 18 or newer")
    print("  installing the reference server with npm", file=sys.stderr, flush=True)
    command = ["npm", "install", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=PEER_PACKAGES, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"npm install in bench/peers failed: {done.stderr.strip()[-2000:]}")
    stamp.write_text(wanted)


def claim_scratch() -> None:
    """Make .bench-tmp/ this process's own until it ends, and empty. Raises Failed when another run has it:

    two runs at once would spoil each other's figures.
    """
    global _claim
    SCRATCH.mkdir(exist_ok=True)
    (SCRATCH / ".gitignore").write_text("*\n")
    _claim = (SCRATCH / "lock").open("w")
    try:
        fcntl.flock(_claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failed("another benchmark run is under way in this tree") from None
    kind = proc.filesystem_of(SCRATCH)
    if kind in ("tmpfs", "ramfs"):
        raise Failed(f"{SCRATCH.name}/ lies on {kind}: an fsync benchmark there would measure nothing")
    for left_over in SCRATCH.glob("run-*"):
        shutil.rmtree(left_over, ignore_errors=True)


def scratch_directory() -> Path:
    """A fresh directory on the disk that holds the repository."""
    return Path(tempfile.mkdtemp(prefix="run-", dir=SCRATCH))


@contextmanager
def serving(peer: Peer, extra_environment: dict[str, str] | None = None) -> Iterator[Server]:
    """The peer, ready, with an empty data directory; ended (SIGTERM, then SIGKILL) and wiped on leaving."""
    peer.install()
    directory = scratch_directory()
    (directory / "data").mkdir()
    said = directory / "said.txt"
    try:
        with said.open("wb") as sink:
            process = subprocess.Popen(
                peer.command(directory / "data"),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment(extra_environment),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        try:
            yield Server(peer, await_ready(peer, process, said), process.pid, directory)
        finally:
            end(process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        # Deleted data must not be written back, nor its journal, while the next peer is on the clock.
        os.sync()


def kill(server: Server) -> None:
    """End a server at once, for one that endangers the machine; `serving` reaps it."""
    os.kill(server.pid, signal.SIGKILL)


def await_ready(peer: Peer, process: subprocess.Popen[bytes], said: Path) -> int:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if found := peer.ready.search(said.read_text(errors="replace")):
            return int(found[1])
        if process.poll() is not None:
            raise Failed(f"{peer.name} ended with {process.returncode}: {_tail(said)}")
        time.sleep(0.02)
    raise Failed(f"{peer.name} was not ready within {START_SECONDS_MAX:.0f} s: {_tail(said)}")


def _tail(said: Path) -> str:
    return said.read_text(errors="replace").strip()[-1500:] or "it printed nothing"


BY_NAME: dict[str, Callable[[str], Peer]] = {"headwater": headwater, "reference": reference, "sketch": sketch}
