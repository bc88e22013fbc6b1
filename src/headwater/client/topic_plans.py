"""Plans for topics and routers at `/v0`: configuration, writes, reads by cursor, deletion.

Owns how values become bodies and answers become values. Does no I/O. Following is by `diff` with a wait: each answer
says the cursor to go on with, so a lost connection repeats nothing and leaves nothing out.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from headwater.client.failures import Conflict, HeadwaterError, NotFound
from headwater.client.plans import (
    Give,
    Plan,
    Send,
    Walk,
    json_request,
    present,
    produced,
    sent,
    topic_path,
    understood,
    with_query,
)
from headwater.client.producers import Producer, Stamp
from headwater.client.retries import Retries
from headwater.client.values import (
    Deleted,
    Diff,
    Draft,
    Match,
    Record,
    RouterInfo,
    Tombstone,
    TopicInfo,
    TopicsPage,
    TopicSummary,
    WireDiff,
    WireRouters,
    WireWritten,
    Written,
    diff_of,
    milliseconds,
    moment_ms,
    router_of,
)

LIVE_WAIT_S = 20.0
PAGE_RECORDS = 1_000
BATCH_RECORDS_MAX = 5_000
BATCH_BYTES_MAX = 8 * 1024 * 1024


class TopicPlans:
    """Of one topic."""

    def __init__(self, name: str, producer: Producer | None, retries: Retries) -> None:
        self.name, self.producer = name, producer
        self._path, self._retries = topic_path(name), retries

    # --- what it is ---

    def create(self, config: Mapping[str, Any]) -> Plan[TopicInfo]:
        done = yield from sent(json_request("PUT", self._path, dict(config)), self._retries)
        return understood(done.answer, TopicInfo)

    def ensure(self, config: Mapping[str, Any]) -> Plan[TopicInfo]:
        try:
            return (yield from self.create(config))
        except Conflict as why:
            if why.code != "topic_exists_incompatible":
                raise
        return (yield from self.update(config))

    def update(self, config: Mapping[str, Any]) -> Plan[TopicInfo]:
        done = yield from sent(json_request("PATCH", self._path, dict(config)), self._retries)
        return understood(done.answer, TopicInfo)

    def info(self) -> Plan[TopicInfo]:
        done = yield from sent(Send("GET", self._path), self._retries)
        return understood(done.answer, TopicInfo)

    def delete(self) -> Plan[None]:
        yield from _deleted(self._path, self._retries)

    # --- writing ---

    def write(self, drafts: Iterable[Draft], node: str | None, disable_backpressure: bool) -> Plan[Written]:
        """One request for as many records as the sizes allow; each request is taken whole or not at all."""
        seqs, duplicates, head_seq, repeated, count = list[int](), list[int](), 0, False, 0
        for batch in batches(drafts):
            try:
                written = yield from self._write(batch, node, disable_backpressure)
            except HeadwaterError as why:
                why.detail["written"] = count
                raise
            seqs += written.seqs
            duplicates += [count + index for index in written.duplicates]
            head_seq, repeated = max(head_seq, written.head_seq), repeated or written.duplicate
            count += len(batch)
        return Written(seqs, head_seq, duplicates, repeated)

    def _write(self, batch: list[msgspec.Raw], node: str | None, disable_backpressure: bool) -> Plan[WireWritten]:
        path = topic_path(self.name, "records")

        def request(stamp: Stamp | None) -> Send:
            body = present(
                records=batch,
                node=node,
                producer=None if stamp is None else stamp._asdict(),
                disable_backpressure=disable_backpressure or None,
            )
            return json_request("POST", path, body, fresh=stamp is None)

        done = yield from produced(request, self.producer, self._retries)
        return understood(done.answer, WireWritten)

    # --- reading ---

    def diff(
        self, from_seq: int, limit: int, node: str | None, wait_s: float, epoch: int | str | None = None
    ) -> Plan[Diff]:
        path = with_query(
            topic_path(self.name, "diff"),
            from_seq=from_seq,
            limit=limit,
            node=node,
            wait_ms=milliseconds(wait_s) or None,
            epoch=epoch,
        )
        done = yield from sent(Send("GET", path, wait_s=wait_s), self._retries)
        return diff_of(understood(done.answer, WireDiff))

    def records(self, from_seq: int | None, node: str | None, live: bool) -> Walk[Record | Tombstone]:
        """Up to the present end, or `live` without end. From None: behind the present end."""
        epoch: int | str | None = None
        if from_seq is None:
            state = (yield from self.info()).state
            from_seq, epoch = state.head_seq, state.epoch
        while True:
            page = yield from self.diff(from_seq, PAGE_RECORDS, node, LIVE_WAIT_S if live else 0.0, epoch)
            if page.tombstone is not None:
                yield Give(page.tombstone)
            for record in page.records:
                yield Give(record)
            stands_still = page.next_seq <= from_seq and not page.records
            if not live and (page.up_to_date or stands_still):
                return
            # The epoch of the first page: a topic that was deleted and created again counts from 1 anew.
            from_seq, epoch = page.next_seq, page.epoch

    # --- deleting ---

    def delete_records(self, before_seq: int | None, match: Match | None) -> Plan[Deleted]:
        body = present(before_seq=before_seq, match=match)
        done = yield from sent(json_request("POST", topic_path(self.name, "delete"), body), self._retries)
        return understood(done.answer, Deleted)


def matching(tag: str | None, tag_prefix: str | None) -> Match | None:
    """Raises ValueError for both."""
    if tag is not None and tag_prefix is not None:
        raise ValueError("give tag or tag_prefix, not both")
    if tag is not None:
        return ("tag", "Eq", tag)
    return None if tag_prefix is None else ("tag", "Glob", tag_prefix + "*")


def batches(drafts: Iterable[Draft]) -> Iterator[list[msgspec.Raw]]:
    """Encoded records in requests of bounded size. Raises TypeError or ValueError for what cannot be encoded."""
    batch: list[msgspec.Raw] = []
    batch_bytes = 0
    for draft in drafts:
        record = msgspec.json.encode(_wire(draft))
        if batch and (len(batch) >= BATCH_RECORDS_MAX or batch_bytes + len(record) > BATCH_BYTES_MAX):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(msgspec.Raw(record))
        batch_bytes += len(record)
    if batch:
        yield batch


def drafts_of(items: Iterable[object]) -> Iterator[Draft]:
    """Raises TypeError for what has parts but is one record: nobody wants its letters or keys written."""
    if isinstance(items, str | bytes | bytearray | Mapping):
        raise TypeError(f"expected a list of records, not one {type(items).__name__}")
    return map(draft_of, items)


def draft_of(item: object) -> Draft:
    return item if isinstance(item, Draft) else Draft(item)


def _wire(draft: Draft) -> dict[str, Any]:
    if draft.deliver_at is not None and draft.delay is not None:
        raise ValueError("give deliver_at or delay, not both")
    data = draft.data
    if isinstance(data, bytes | bytearray | memoryview):
        payload: dict[str, Any] = {"data_base64": base64.b64encode(data).decode()}
    else:
        payload = {"data": data}
    labels = present(
        tag=draft.tag,
        node=draft.node,
        meta=draft.meta,
        key=draft.key,
        deliver_at=None if draft.deliver_at is None else moment_ms(draft.deliver_at),
        delay_ms=None if draft.delay is None else milliseconds(draft.delay),
    )
    return {**payload, **labels}


def _deleted(path: str, retries: Retries) -> Plan[None]:
    try:
        yield from sent(Send("DELETE", path), retries)
    except NotFound as why:
        if not why.outcome_unknown:
            raise
        # An attempt whose answer was lost has deleted it.


# --- beside one topic -----------------------------------------------------------------------------------------


def topics(bucket: str | None, prefix: str | None, retries: Retries) -> Walk[TopicSummary]:
    after: str | None = None
    while True:
        path = with_query("/v0/topics", bucket=bucket, prefix=prefix, limit=PAGE_RECORDS, after=after)
        page = understood((yield from sent(Send("GET", path), retries)).answer, TopicsPage)
        for topic in page.topics:
            yield Give(topic)
        if page.next is None or page.next == after:
            return
        after = page.next


class RouterPlans:
    """Of all routers."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries

    def create(self, name: str, config: Mapping[str, Any]) -> Plan[RouterInfo]:
        done = yield from sent(json_request("PUT", _router_path(name), dict(config)), self._retries)
        return router_of(name, understood(done.answer, dict[str, Any]))

    def get(self, name: str) -> Plan[RouterInfo]:
        done = yield from sent(Send("GET", _router_path(name)), self._retries)
        return router_of(name, understood(done.answer, dict[str, Any]))

    def list(self) -> Plan[list[RouterInfo]]:
        done = yield from sent(Send("GET", "/v0/routers"), self._retries)
        return [router_of("", wire) for wire in understood(done.answer, WireRouters).routers]

    def delete(self, name: str) -> Plan[None]:
        yield from _deleted(_router_path(name), self._retries)


def _router_path(name: str) -> str:
    if not name:
        raise ValueError("the router's name is empty")
    return "/v0/routers/" + quote(name, safe="", errors="surrogateescape")
