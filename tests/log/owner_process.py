"""An owner of a log in a directory, as a process of its own: appends numbered events and says which were acknowledged.

    python -m tests.log.owner_process DIRECTORY NAME

Prints a line for each: `owns`, `acked <name> <n>`, `failed <kind>`. Ends when the log fails, or when it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from headwater.log.object_places import DirectoryPlace
from headwater.log.objects import ObjectEntries
from headwater.log.quorum import QuorumLog
from headwater.log.quorum_entries import Claim
from tests.log import appended


async def main(directory: Path, name: str) -> None:
    log = QuorumLog(ObjectEntries(DirectoryPlace(directory), "log/3"))
    await log.load()
    await log.claim(Claim(name, ""))
    progress = asyncio.Event()
    log.start(progress.set)
    print("owns", flush=True)
    sent: list[int] = []
    acked = 0
    while log.failure is None:
        # More than may be in flight: some are stored and not acknowledged whenever this process is stopped.
        while len(sent) < acked + 20:
            sent.append(log.add(appended(b"%s %d" % (name.encode(), len(sent))), True))
            log.commit()
        progress.clear()
        await progress.wait()
        while acked < len(sent) and sent[acked] <= log.synced:
            print(f"acked {name} {acked}", flush=True)
            acked += 1
    print(f"failed {log.failure.kind}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
