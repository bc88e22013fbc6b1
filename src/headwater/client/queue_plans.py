"""Plans for one queue at `/v0`: claim, ack, nack, extend, counts, and putting dead letters back.

Owns what a lost answer means: a repeated ack of a job that is gone was an ack. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Any

from headwater.client.failures import Conflict, LeaseLost, NotAQueue, NotFound
from headwater.client.plans import Plan, Send, Sent, json_request, present, sent, topic_path, understood, with_query
from headwater.client.retries import Retries
from headwater.client.topic_plans import TopicPlans
from headwater.client.values import (
    Acked,
    Deleted,
    Draft,
    Extended,
    FailedJob,
    JobFacts,
    Nacked,
    PeekedJob,
    QueueStats,
    Record,
    WireJobs,
    jobs_of,
    milliseconds,
    peeked_of,
)

LETTERS_PAGE = 100


class QueuePlans:
    """Of one queue. `topic` are the plans for the topic that it is; jobs are put with them."""

    def __init__(self, topic: TopicPlans, retries: Retries) -> None:
        self.topic, self.name = topic, topic.name
        self._retries = retries

    def claim(
        self, count_max: int, lease: float | timedelta | None, node: str | None, wait_s: float
    ) -> Plan[list[JobFacts]]:
        """Jobs that an attempt whose answer was lost has claimed come back when their leases end."""
        body = present(
            max=count_max,
            lease_ms=None if lease is None else milliseconds(lease),
            node=node,
            wait_ms=milliseconds(wait_s) or None,
        )
        done = yield from sent(json_request("POST", self._at("claim"), body, wait_s=wait_s), self._retries)
        return jobs_of(understood(done.answer, WireJobs))

    def ack(self, jobs: Iterable[JobFacts]) -> Plan[Acked]:
        done = yield from self._about("ack", "acks", [_named(job) for job in jobs])
        told = understood(done.answer, Acked)
        if not done.repeated:
            return told
        # An attempt whose answer was lost has acked them: what is acked is gone.
        acked = [job.seq for job in told.failed if job.code == "not_found"]
        return Acked([*told.acked, *acked], [job for job in told.failed if job.code != "not_found"])

    def nack(self, jobs: Iterable[JobFacts], delay: float | timedelta | None, reason: str | None) -> Plan[Nacked]:
        more = present(delay_ms=None if delay is None else milliseconds(delay), reason=reason)
        done = yield from self._about("nack", "nacks", [{**_named(job), **more} for job in jobs])
        told = understood(done.answer, Nacked)
        # After a lost answer nobody can tell a lease that the first attempt gave back from one that ended. The job is
        # with the queue either way, which is what was wanted.
        return Nacked(told.released, told.dead_lettered, []) if done.repeated else told

    def extend(self, jobs: Iterable[JobFacts], lease: float | timedelta | None) -> Plan[Extended]:
        more = present(lease_ms=None if lease is None else milliseconds(lease))
        done = yield from self._about("extend", "extends", [{**_named(job), **more} for job in jobs])
        return understood(done.answer, Extended)

    def stats(self) -> Plan[QueueStats]:
        done = yield from sent(Send("GET", self._at("queue")), self._retries)
        return understood(done.answer, QueueStats)

    def peek(self, state: str, limit: int) -> Plan[list[PeekedJob]]:
        path = with_query(self._at("peek"), state=state, limit=limit)
        done = yield from sent(Send("GET", path), self._retries)
        return peeked_of(understood(done.answer, WireJobs))

    def purge(self) -> Plan[int]:
        done = yield from sent(json_request("POST", self._at("purge"), {}), self._retries)
        return understood(done.answer, Deleted).deleted

    def retry_dead(self, count_max: int | None) -> Plan[int]:
        """Puts dead letters back, oldest first, and returns how many.

        Each page is put back before it is deleted: whoever is cut off between puts the same jobs back again, and their
        keys keep those that still live from being there twice. Records of a topic can only be deleted from its
        beginning on, so a letter of another queue ends it; Conflict when such a letter is the first.
        """
        queue = (yield from self.topic.info()).config.queue
        if queue is None:
            raise NotAQueue("not_a_queue", f"{self.name} is a topic without a queue")
        if queue.dead_letter is None:
            raise Conflict("no_dead_letter", f"{self.name} has no dead letter topic")
        letters, count = TopicPlans(queue.dead_letter, None, self._retries), 0
        while count_max is None or count < count_max:
            limit = LETTERS_PAGE if count_max is None else min(LETTERS_PAGE, count_max - count)
            try:
                page = yield from letters.diff(0, limit, None, 0.0)
            except NotFound:
                break  # It is made with the first letter.
            mine = list(takewhile(self._is_mine, page.records))
            if not mine:
                if page.records and not count:
                    message = f"record {page.records[0].seq} of {queue.dead_letter} is no dead letter of {self.name}"
                    raise Conflict("foreign_dead_letter", message)
                break
            yield from self.topic.write([_put_back(letter) for letter in mine], None, False)
            yield from letters.delete_records(mine[-1].seq + 1, None)
            count += len(mine)
            if len(mine) < len(page.records):
                break
        return count

    def _is_mine(self, letter: Record) -> bool:
        return _whole_name(str(_about_letter(letter).get("topic", ""))) == _whole_name(self.name)

    def _about(self, verb: str, field: str, jobs: Sequence[dict[str, Any]]) -> Plan[Sent]:
        return (yield from sent(json_request("POST", self._at(verb), {field: jobs}), self._retries))

    def _at(self, verb: str) -> str:
        return topic_path(self.name, verb)


def demand(job: JobFacts, failed: Iterable[FailedJob]) -> None:
    """Raises NotFound or LeaseLost when the job is among those that failed."""
    for one in failed:
        if one.seq == job.seq:
            if one.code == "not_found":
                raise NotFound("not_found", f"job {job.seq} is gone", detail={"seq": job.seq})
            raise LeaseLost(one.code, f"the lease of job {job.seq} is over", detail={"seq": job.seq})


def _named(job: JobFacts) -> dict[str, Any]:
    return {"seq": job.seq, "lease_id": job.lease_id}


def _about_letter(letter: Record) -> dict[str, Any]:
    about = (letter.meta or {}).get("dead_letter")
    return about if isinstance(about, dict) else {}


def _put_back(letter: Record) -> Draft:
    own = {name: value for name, value in (letter.meta or {}).items() if name != "dead_letter"}
    key = _about_letter(letter).get("key") or letter.key
    return Draft(letter.data, tag=letter.tag, node=letter.node, meta=own or None, key=key)


def _whole_name(topic: str) -> str:
    return topic if "/" in topic else f"_default/{topic}"
