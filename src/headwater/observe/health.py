"""Health: is the process up, and may it be given work?

Owns the two pages. Never hides a failure: what is wrong is named in the detail. A node of several workers answers for
all of them; a node of a cluster for itself alone, whatever became of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headwater.engine.questions import Questions
from headwater.errors import Failure

if TYPE_CHECKING:
    from headwater.observe.cluster_readings import ClusterReadings

WITHIN_S = 5.0
"""A process of the node that takes longer to answer is not ready."""
GROUPS_TOLD_MAX = 8
Check = Callable[[], str | None]
"""None when fine, otherwise what is wrong."""


class Health:
    """The checks of this process, and those of the node's other workers, which are asked."""

    def __init__(self, questions: Questions, cluster: ClusterReadings | None = None) -> None:
        """`cluster` is what a node of a cluster sees of it."""
        self._checks: dict[str, Check] = {}
        self._questions = questions
        self._is_whole = questions.alone or cluster is not None
        """The node is this process."""
        questions.register("health", self._answer)
        if cluster is not None:
            _add_cluster(self, cluster)

    def add(self, name: str, check: Check) -> None:
        self._checks[name] = check

    async def _answer(self) -> dict[str, str | None]:
        return {name: check() for name, check in self._checks.items()}

    async def healthz(self) -> tuple[int, str, bytes]:
        return 200, "application/json", b'{"status":"up"}'

    async def readyz(self) -> tuple[int, str, bytes]:
        """200 when every check passes; 503 with the reasons otherwise."""
        members = [self._questions.me] if self._is_whole else list(self._questions.everyone)
        detail: dict[str, str] = {}
        for member, found in zip(members, await asyncio.gather(*map(self._findings, members)), strict=True):
            for name, wrong in found.items():
                if wrong is None:
                    detail.setdefault(name, "ok")
                else:
                    told = wrong if self._is_whole else f"worker {member}: {wrong}"
                    before = detail.get(name, "ok")
                    detail[name] = told if before == "ok" else f"{before}; {told}"
        ready = all(wrong == "ok" for wrong in detail.values())
        body = msgspec.json.encode({"status": "ready" if ready else "not ready", "checks": detail})
        return (200 if ready else 503), "application/json", body

    async def _findings(self, member: int) -> dict[str, str | None]:
        if self._is_whole:
            return await self._answer()
        try:
            asked = self._questions.ask(member, "health", into=dict[str, str | None])
            found: dict[str, str | None] = await asyncio.wait_for(asked, WITHIN_S)
        except TimeoutError:
            return {"workers": f"worker {member} does not answer"}
        except Failure as failure:
            return {"workers": failure.message()}
        return {"workers": None, **found}


def _add_cluster(health: Health, cluster: ClusterReadings) -> None:
    def groups() -> str | None:
        missing = cluster.groups_without_owner()
        if not missing:
            return None
        shown = ", ".join(map(str, missing[:GROUPS_TOLD_MAX])) + (", …" if len(missing) > GROUPS_TOLD_MAX else "")
        return f"without an owner, as this node sees it: {shown} ({len(missing)} of {cluster.groups_count})"

    health.add("cluster", lambda: None if cluster.is_settled else "this node has not heard of all registered nodes yet")
    health.add("groups", groups)
    health.add("draining", lambda: "this node hands its groups over" if cluster.is_draining else None)
