"""A node of a cluster as a process of its own, for tests that stop or kill one: `ROOT NAME GROUP`. It claims its group,
prints what it sees as a line of JSON after each change, and ends with its standard input."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import structlog
import uvloop

from headwater.ports import SystemClock
from tests.support.cluster_nodes import SECRET, ClusterNode, made_group


async def main(root: str, name: str, group: int) -> None:
    loop = asyncio.get_running_loop()
    node = ClusterNode(name, Path(root), SECRET, {group: made_group(group)}, SystemClock())
    await node.start()
    ended = loop.create_future()

    def tell() -> None:
        owners = {str(one): claim for one in range(node.view.groups_count) if (claim := node.view.claim_of(one))}
        seen = {"alive": node.view.alive, "owners": owners, "port": node.port}
        print(json.dumps(seen), flush=True)

    node.view.on_change.append(tell)
    node.view.claimed(group, 1)
    loop.add_reader(sys.stdin.fileno(), lambda: ended.done() or ended.set_result(None))
    await ended
    loop.remove_reader(sys.stdin.fileno())
    await node.stop()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # what it sees is on standard output
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
