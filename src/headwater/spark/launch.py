"""Starting Spark's JVM, and what it says while it starts.

Owns the JVM's standard error: held back until the session is there, then passed on as it comes. Never loses the reason
of a start that failed: `why` finds it in what was held back.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyspark import SparkConf

HELD_BYTES_MAX = 1 << 20
"""Of what the JVM says while it starts; what comes after it is dropped: the reason of a failure comes first."""
CONNECT_S = 3.0
_STANDALONE, _CONNECT = "spark://", "sc://"
CONNECT_PORT = 15_002
_MASTER = re.compile(r"local|local\[(?:\*|\d+)(?:, *\d+)?\]|local-cluster\[[\d, ]+\]|yarn|(?:spark|k8s|sc)://.+")
_GIVEN_UP = "All masters are unresponsive! Giving up."
_CLASS = r"(?:[\w.$]+(?:Exception|Error): )?"
_JAVA = re.compile(rf"^(?:: |Caused by: ){_CLASS}(.+)$", re.M)
_REASON = re.compile(rf'^(?:Exception in thread "[^"]*" |Error: |Caused by: ){_CLASS}(.+)$', re.M)


class Said:
    """What the JVM writes to its standard error."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        self._held = bytearray()
        self._holding = True
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="spark-stderr", daemon=True)
        self._reader.start()

    def launched(self) -> None:
        """The JVM has its own copy of the writing end: the pipe ends with the JVM."""
        os.close(self.writing)

    def release(self) -> None:
        """From now on everything is passed on: what users' functions print in workers comes this way, too."""
        with self._lock:
            self._holding = False
            self._held.clear()

    def text(self) -> str:
        with self._lock:
            return self._held.decode(errors="replace")

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._reading, 65_536)
            except OSError:
                return
            if not part:
                os.close(self._reading)
                return
            with self._lock:
                if self._holding:
                    self._held += part[: max(0, HELD_BYTES_MAX - len(self._held))]
                    continue
            try:
                os.write(2, part)
            except OSError:
                pass  # standard error was closed; the JVM must still be able to write


def refusal(master: str) -> str | None:
    """Why Spark could not run on this master; None when nothing is known against it. Waits at most some seconds."""
    if _MASTER.fullmatch(master) is None:
        return f"{master!r} is no master that Spark knows: write local[*], spark://HOST:PORT, yarn, k8s://… or sc://…"
    if master.startswith(_CONNECT):
        kind, addresses, port = "Spark Connect server", [master.removeprefix(_CONNECT).partition("/")[0]], CONNECT_PORT
    elif master.startswith(_STANDALONE):
        kind, addresses, port = "Spark master", master.removeprefix(_STANDALONE).split(","), None
    else:
        return None
    # Spark itself would try for minutes, and then say so in some pages.
    reasons = []
    for address in addresses:
        parts = urlsplit(f"//{address}")
        try:
            where = parts.hostname, parts.port or port
            if not where[0] or not where[1]:
                return f"{master!r} is no address of a {kind}: write spark://HOST:PORT, such as spark://spark-1:7077"
            socket.create_connection((where[0], where[1]), CONNECT_S).close()
            return None
        except (OSError, ValueError) as error:
            reasons.append(str(error))
    return f"no {kind} answers at {master} ({reasons[-1]}): start one, or name another with --master"


@contextmanager
def starting(conf: SparkConf, verbose: bool) -> Iterator[Any]:
    """The way to the JVM (a py4j gateway), started if there is none. A failure inside the block has `why` set.

    What the JVM says before the block ends is held back, unless `verbose`.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        yield SparkContext._gateway
        return
    said = None if verbose or "PYSPARK_GATEWAY_PORT" in os.environ else Said()
    try:
        try:
            gateway = launch_gateway(conf, {} if said is None else {"stderr": said.writing})
        finally:
            if said is not None:
                said.launched()
        yield gateway
    except Exception as error:
        error.held_back = "" if said is None else said.text()  # type: ignore[attr-defined]
        raise
    finally:
        if said is not None:
            said.release()


def why(error: BaseException) -> str:
    """One sentence: why Spark did not start."""
    text = f"{error}\n{getattr(error, 'held_back', '')}"
    if _GIVEN_UP in text:
        return "what answers there is no Spark master, or one of another version"
    found = _JAVA.findall(str(error)) or _REASON.findall(text)
    if not found:
        return next((line.strip().rstrip(".") for line in text.splitlines() if line.strip()), type(error).__name__)
    # What Spark was doing, and the error that ended it.
    first, last = (found[at].strip().rstrip(".") for at in (0, -1))
    return first if last in first else f"{first}: {last}"
