"""Entries of a request about many streams that belong to groups of other processes: asked of their owners.

Owns which process an entry goes to, and the size of a question. Never judges an entry: its owner does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from headwater.doors import faults
from headwater.doors.http import failures
from headwater.doors.http.bulk_answers import Answer
from headwater.engine.engine import Engine
from headwater.engine.placements import Placement
from headwater.engine.questions import Questions
from headwater.errors import Failure, MemberUnavailable, NotServedHere

QUESTION_BYTES_MAX = 4 * 1024 * 1024
QUESTION_ENTRIES_MAX = 10_000
"""A question is encoded, read and answered at once by each side. What is longer becomes several, one after the other:
entries of one stream keep their order."""
T = TypeVar("T")


class Owner(NamedTuple):
    member: int
    placed: Placement | None
    """Where the stream lives, as its name's home decided; None: the home is that process's own."""


def other_owner(engine: Engine, key: str, was_sent: bool) -> Owner | None:
    """The process that a stream's commands go to; None: this one. Of a node with several groups.

    What another process sent here is not sent on to a home that this one does not serve: two that take each other for
    its owner would send it back and forth. Raises MemberUnavailable, NotServedHere.
    """
    home = engine.home(key)
    if home not in engine.owned:
        if was_sent:
            raise NotServedHere(home)
        return Owner(engine.questions.owner(home), None)
    placed = engine.placement(key)
    if placed is None or placed.group in engine.owned:
        return None
    return Owner(engine.questions.owner(placed.group), placed)


async def ask_owner(
    questions: Questions,
    member: int,
    name: str,
    items: Sequence[tuple[int, T]],
    size_of: Callable[[T], int],
    tell: Callable[[int, Answer], None],
) -> None:
    """Has a process answer entries of its own: `items` are (index in the request, entry).

    A process that is away gives its entries that answer. After a question without an answer no more are asked.
    """
    failure: Failure | None = None
    for part in _parts(items, size_of):
        answers: list[Answer] = []
        if failure is not None:
            answers = [failures.entry(MemberUnavailable(member))] * len(part)
        else:
            try:
                answers = await questions.ask(member, name, [item for _, item in part], into=list[dict[str, Any]])
            except Failure as refused:
                failure = refused
                answers = [failures.entry(refused)] * len(part)
            except Exception:
                # A fault there, or of what it answered: the other processes' entries have their own answers.
                failure = faults.report("http", member=member, question=name)
                answers = [failures.entry(failure)] * len(part)
        for (index, _), answer in zip(part, answers, strict=True):
            tell(index, answer)


def _parts(items: Sequence[tuple[int, T]], size_of: Callable[[T], int]) -> list[Sequence[tuple[int, T]]]:
    parts: list[Sequence[tuple[int, T]]] = []
    start = size = 0
    for at, (_, item) in enumerate(items):
        own = size_of(item)
        if at > start and (size + own > QUESTION_BYTES_MAX or at - start >= QUESTION_ENTRIES_MAX):
            parts.append(items[start:at])
            start, size = at, 0
        size += own
    parts.append(items[start:])
    return parts
