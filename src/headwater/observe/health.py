"""Health: is the process up, and may it be given work?

Owns the two pages. Never hides a failure: what is wrong is named in the detail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from headwater.engine.questions import Questions
from headwater.errors import Failure

WITHIN_S = 5.0
"""A process of the node that takes longer to answer is not ready."""
Check = Callable[[], str | None]
"""None when fine, otherwise what is wrong."""


class Health:
    """The checks of this process, and those of the node's other processes, which are asked."""

    def __init__(self, questions: Questions) -> None:
        self._checks: dict[str, Check] = {}
        self._questions = questions
        questions.register("health", self._answer)

    def add(self, name: str, check: Check) -> None:
        self._checks[name] = check

    async def _answer(self) -> dict[str, str | None]:
        return {name: check() for name, check in self._checks.items()}

    async def healthz(self) -> tuple[int, str, bytes]:
        return 200, "application/json", b'{"status":"up"}'

    async def readyz(self) -> tuple[int, str, bytes]:
        """200 when every check passes; 503 with the reasons otherwise."""
        members = self._questions.everyone
        detail: dict[str, str] = {}
        for member, found in zip(members, await asyncio.gather(*map(self._findings, members)), strict=True):
            for name, wrong in found.items():
                if wrong is None:
                    detail.setdefault(name, "ok")
                else:
                    told = wrong if self._questions.alone else f"worker {member}: {wrong}"
                    before = detail.get(name, "ok")
                    detail[name] = told if before == "ok" else f"{before}; {told}"
        ready = all(wrong == "ok" for wrong in detail.values())
        body = msgspec.json.encode({"status": "ready" if ready else "not ready", "checks": detail})
        return (200 if ready else 503), "application/json", body

    async def _findings(self, member: int) -> dict[str, str | None]:
        try:
            asked = self._questions.ask(member, "health", into=dict[str, str | None])
            found: dict[str, str | None] = await asyncio.wait_for(asked, WITHIN_S)
        except TimeoutError:
            return {"workers": f"worker {member} does not answer"}
        except Failure as failure:
            return {"workers": failure.message()}
        return found if self._questions.alone else {"workers": None, **found}
