"""Appends the lines of a file to a stream, each exactly once, however often it is run or cut off.

Owns the repeated attempts. Never numbers a line twice: a line's Producer-Seq is its place in the file, so the node
knows which lines it already has.

    python examples/exactly_once.py http://127.0.0.1:4437/v1/stream/journal FILE
"""

from __future__ import annotations

import sys
import time
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

PRODUCER = {"Producer-Id": "exactly-once", "Producer-Epoch": "0"}
ATTEMPTS_MAX = 20
RETRY_S_MAX = 5.0
RETRYABLE = (408, 429, 503)


class Refused(Exception):
    """The node answered, and trying again would not help."""


class Writer:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._path = parts.path
        self._connection = HTTPConnection(parts.hostname or "", parts.port, timeout=30)

    def send(self, method: str, headers: dict[str, str], body: bytes = b"") -> int:
        """The status of a 2xx answer. Tries again when there was none, or one that asks for it; raises Refused."""
        why: object = None
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                time.sleep(min(RETRY_S_MAX, 0.1 * 2**attempt))
            try:
                self._connection.request(method, self._path, body, headers)
                answer = self._connection.getresponse()
                text = answer.read().decode()
            except (OSError, HTTPException) as error:
                # The append may have happened or not. The same numbers make the next attempt safe.
                self._connection.close()
                why = error
                continue
            if answer.status < 300:
                return answer.status
            if answer.status not in RETRYABLE:
                raise Refused(f"{answer.status} {text}")
            why = text
        raise Refused(f"gave up after {ATTEMPTS_MAX} attempts: {why}")


def main(url: str, file: str) -> None:
    writer = Writer(url)
    kind = {"Content-Type": "text/plain"}
    writer.send("PUT", kind)
    new_count = known_count = 0
    with open(file, "rb") as lines:
        for seq, line in enumerate(lines):
            status = writer.send("POST", {**kind, **PRODUCER, "Producer-Seq": str(seq)}, line)
            if status == 200:
                new_count += 1
            else:
                known_count += 1  # 204: the node had it already
    print(f"{new_count} lines appended, {known_count} were there already")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except Refused as refused:
        sys.exit(f"error: {refused}")
