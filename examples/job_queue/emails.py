"""Puts e-mails into a queue, and works them: the same program as sender and as worker.

Owns the queue's options. Never sends a mail itself; `tasks.send` does.

    python emails.py URL put ada@example.com "Hello Ada"
    python emails.py URL work            # until Ctrl-C
    python emails.py URL drain           # until no job is left
    python emails.py URL dead            # what could not be sent, and why
"""

from __future__ import annotations

import hashlib
import logging
import sys

import tasks

from headwater.client import Headwater, HeadwaterError, NotFound, Queue, Record

OPTIONS = {"lease_ms": 30_000, "max_deliveries": 3, "dead_letter": "emails-dead", "backoff_ms": 500}


def put(queue: Queue, to: str, text: str) -> None:
    # The key makes a mail that is put twice, because somebody pressed twice, one job.
    key = hashlib.sha256(f"{to}\n{text}".encode()).hexdigest()[:16]
    written = queue.put({"to": to, "text": text}, key=key)
    print("is waiting already" if written.duplicates else "put")


def work(queue: Queue, until_empty: bool) -> None:
    count = queue.worker(concurrency=4, lease=30)(tasks.send).run(until_empty=until_empty)
    print(f"ran {count} jobs")


def dead(hw: Headwater) -> None:
    try:
        letters = list(hw.topic("emails-dead").records())
    except NotFound:
        letters = []  # The topic is made with the first letter.
    for letter in letters:
        if isinstance(letter, Record):
            print(letter.data["to"], (letter.meta or {})["dead_letter"]["reason"])


def main(url: str, verb: str, *args: str) -> None:
    with Headwater(url) as hw:
        queue = hw.queue("emails")
        queue.ensure(**OPTIONS)
        match verb, args:
            case "put", (to, text):
                put(queue, to, text)
            case (("work" | "drain"), ()):
                work(queue, until_empty=verb == "drain")
            case "dead", ():
                dead(hw)
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        main(*sys.argv[1:])
    except HeadwaterError as why:
        sys.exit(f"error: {why}")
