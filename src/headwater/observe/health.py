"""Health: is the process up, and may it be given work?

Owns the two pages. Never hides a failure: what is wrong is named in the detail. A node of several workers answers for
all of them; a node of a cluster for itself alone, whatever became of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headwater import __version__
from headwater.engine.questions import Questions
from headwater.errors import Failure

if TYPE_CHECKING:
    from headwater.observe.cluster_readings import ClusterReadings

WITHIN_S = 5.0
"""A process of the node that takes longer to answer is not ready."""
GROUPS_TOLD_MAX = 8
LATE_S = 1.0
"""An event loop that is later than this has more to do than it can."""
Check = Callable[[], str | None]
"""None when fine, otherwise what is wrong."""


class Health:
    """The checks of this process, and those of the node's other workers, which are asked."""

    def __init__(
        self,
        questions: Questions,
        cluster: ClusterReadings | None = None,
        late_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`cluster` is what a node of a cluster sees of it, `late_s` how late the event loop of this process is."""
        self._late_s = late_s
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

    async def healthz(self, accept: bytes = b"") -> tuple[int, str, bytes]:
        """200 while this process answers. What it says of itself is no reason to end it."""
        late_s = self._late_s()
        process = "ok" if late_s < LATE_S else f"its event loop is {late_s:.1f} s late"
        return _shown(200, "up", {"process": process}, accept, version=__version__)

    async def readyz(self, accept: bytes = b"") -> tuple[int, str, bytes]:
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
        return _shown(200 if ready else 503, "ready" if ready else "not ready", detail, accept)

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


def _shown(status: int, word: str, checks: dict[str, str], accept: bytes, **more: str) -> tuple[int, str, bytes]:
    """As JSON, or as lines for who asks for text and not for JSON."""
    if b"text/plain" in accept and b"json" not in accept:
        lines = [word, *(f"{name}: {found}" for name, found in {**checks, **more}.items())]
        return status, "text/plain; charset=utf-8", "".join(f"{line}\n" for line in lines).encode()
    return status, "application/json", msgspec.json.encode({"status": word, "checks": checks, **more})


def _add_cluster(health: Health, cluster: ClusterReadings) -> None:
    has_joined = False

    def groups() -> str | None:
        nonlocal has_joined
        missing = cluster.groups_without_owner()
        has_joined = has_joined or not missing
        # A group that changes hands is no reason to keep clients from all nodes at once: the others are served.
        if has_joined and len(missing) < cluster.groups_count:
            return None
        shown = ", ".join(map(str, missing[:GROUPS_TOLD_MAX])) + (", …" if len(missing) > GROUPS_TOLD_MAX else "")
        return f"without an owner, as this node sees it: {shown} ({len(missing)} of {cluster.groups_count})"

    health.add("cluster", lambda: None if cluster.is_settled else "this node has not heard of all registered nodes yet")
    health.add("groups", groups)
    health.add("draining", lambda: "this node hands its groups over" if cluster.is_draining else None)
