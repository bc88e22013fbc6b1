"""The worker of a queue of e-mails: each job becomes a file in an outbox, where a real one would talk to a mail server.

Owns what is done with a job. Never acks: the worker does when the function returns. It may run twice for one job, so
the file's name is the job's, and the second run writes the same file again.

    headwater queue work emails tasks:send --concurrency 4
"""

from __future__ import annotations

import os
from pathlib import Path

from headwater.client import Job, Reject, Retry

OUTBOX = Path(os.environ.get("OUTBOX", "outbox"))


def send(job: Job) -> None:
    to, text = job.data.get("to", ""), job.data.get("text", "")
    if "@" not in to:
        raise Reject(f"{to!r} is no address")  # No further try would help.
    if to.endswith("@busy.example") and job.deliveries == 1:
        raise Retry(delay=1)  # As a mail server says "try again later".
    OUTBOX.mkdir(parents=True, exist_ok=True)
    letter = OUTBOX / f"{job.seq}.txt"
    unfinished = letter.with_suffix(".part")
    unfinished.write_text(f"To: {to}\n\n{text}\n")
    unfinished.rename(letter)
    print(f"sent {job.seq} to {to}", flush=True)
