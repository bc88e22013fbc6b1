"""The audit log's records, and their bounds: a flood of refusals is no flood of records."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from headwater.errors import Overloaded
from headwater.security import audit as module
from headwater.security.audit import Audit
from headwater.security.audit_writer import AuditWriter
from headwater.security.principals import KEY, NOBODY, Asked, Principal, Scope
from tests.support.clock import SimClock

SHOP = Principal(KEY, "shop", (Scope(1, "shop/"),), None, "abc")
BY_SHOP = Asked("http", "192.0.2.1", SHOP, "r-1")


class Rng:
    def below(self, bound: int) -> int:
        return 0

    def token(self, size_bytes: int) -> bytes:
        return b"\x01" * size_bytes


def made() -> tuple[Audit, SimClock]:
    clock = SimClock()
    return Audit(clock, Rng(), "node/0"), clock


def taken(audit: Audit) -> list[dict[str, Any]]:
    audit.gather()
    records = audit.take(1_000_000)
    audit.given(records)
    return [msgspec.json.decode(record) for record in records]


def test_a_record_says_who_did_what_to_what_and_when() -> None:
    audit, _ = made()
    audit.done(BY_SHOP, "stream.delete", "shop/1", 204)
    assert taken(audit) == [
        {
            "id": "010101010101-1",
            "at": "1970-01-01T00:16:40.000Z",
            "action": "stream.delete",
            "what": "shop/1",
            "outcome": "done",
            "code": "204",
            "who_kind": "key",
            "who_id": "abc",
            "who": "shop",
            "address": "192.0.2.1",
            "door": "http",
            "request_id": "r-1",
            "count": 1,
            "last_at": "1970-01-01T00:16:40.000Z",
            "node": "node/0",
        }
    ]
    assert taken(audit) == []


def test_what_failed_may_have_been_done_and_what_was_allowed_has_begun() -> None:
    audit, _ = made()
    audit.done(BY_SHOP, "stream.delete", "shop/1", 503)
    audit.allowed(BY_SHOP, "stream.delete", "shop/1")
    assert [one["outcome"] for one in taken(audit)] == ["failed", "allowed"]


def test_deletions_have_a_record_each_and_refusals_of_one_client_one_together() -> None:
    audit, clock = made()
    for number in range(5):
        audit.done(BY_SHOP, "stream.delete", f"shop/{number}", 204)
        audit.denied(BY_SHOP, "get", f"/v1/stream/other/{number}", "forbidden", "read")
        clock.ms += 10
    audit.denied(BY_SHOP, "get", "/x", "credential_refused")
    audit.denied(BY_SHOP._replace(address="192.0.2.2"), "get", "/x", "forbidden")
    found = taken(audit)
    assert [one["what"] for one in found if one["outcome"] == "done"] == [f"shop/{number}" for number in range(5)]
    first, *others = (one for one in found if one["outcome"] == "denied")
    assert (first["count"], first["what"], first["needs"]) == (5, "/v1/stream/other/0", "read")
    assert (first["at"], first["last_at"]) == ("1970-01-01T00:16:40.000Z", "1970-01-01T00:16:40.040Z")
    assert [one["count"] for one in others] == [1, 1]


def test_a_second_later_it_is_another_record() -> None:
    audit, _ = made()
    for _ in range(2):
        audit.denied(BY_SHOP, "get", "/x", "forbidden")
        assert [one["count"] for one in taken(audit)] == [1]


def test_an_hour_of_refusals_from_everywhere_makes_two_records_a_second_at_most() -> None:
    audit, clock = made()
    count, total, at_most = 0, 0, 0
    for second in range(3_600):
        for client in range(50):
            address = f"2001:db8::{second:x}:{client:x}"
            audit.denied(Asked("http", address, None), "post", "/x" * 5_000, "credential_refused")
        at_most = max(at_most, audit.waiting_count)
        audit.gather()
        records = audit.take(1_000_000)
        audit.given(records)
        count += len(records)
        total += sum(map(len, records))
        clock.ms += 1_000
    assert count <= module.DENIALS_MAX + 2 * 3_600
    assert total < count * 800
    assert at_most <= module.DENIALS_MAX + 1
    assert audit.noted_count == 3_600 * 50


def test_what_had_no_record_is_counted_in_one() -> None:
    audit, _ = made()
    for client in range(module.DENIALS_MAX + 7):
        audit.denied(Asked("s3p", f"192.0.2.{client}", NOBODY), "append", "x/y", "not_authenticated")
    *_, more = found = taken(audit)
    assert len(found) == module.DENIALS_MAX + 1
    assert (more["action"], more["what"], more["outcome"], more["count"]) == ("more", "denied", "denied", 7)
    assert more["who_kind"] == "server" and audit.coalesced_count == 7


def test_deletions_in_great_number_leave_room_for_what_an_operator_does() -> None:
    audit, _ = made()
    for number in range(2 * module.DELETIONS_MAX):
        audit.done(BY_SHOP, "stream.delete", f"shop/{number}", 204)
    audit.done(BY_SHOP, "key.make", "k", 201)
    found = taken(audit)
    assert [one["what"] for one in found if one["action"] == "key.make"] == ["k"]
    assert [one["count"] for one in found if one["action"] == "more"] == [module.DELETIONS_MAX]


def test_records_that_cannot_be_appended_are_kept_up_to_a_bound_and_the_loss_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 10)
    audit, _ = made()
    for number in range(14):
        audit.done(BY_SHOP, "key.revoke", str(number), 200)
    audit.gather()
    records = audit.take(100)
    assert len(records) == 10 and audit.lost_count == 4
    for number in range(3):  # those that are being appended are lost meanwhile
        audit.done(BY_SHOP, "key.revoke", f"later {number}", 200)
    audit.gather()
    audit.given(records)
    found = taken(audit) + taken(audit)
    assert [one["what"] for one in found if one["action"] == "key.revoke"] == ["later 0", "later 1", "later 2"]
    assert [one["count"] for one in found if one["action"] == "lost"] == [7] and audit.lost_count == 7


def test_what_a_client_wrote_is_printable_and_short() -> None:
    audit, _ = made()
    evil = "/\x1b[31m\r\n\u202e\udcff\x00" + "é" * 5_000
    audit.denied(Asked("http", evil, None, "r"), evil, evil, "forbidden", evil)
    audit.done(BY_SHOP, "stream.delete", evil, 204)
    audit.gather()
    records = audit.take(10)
    assert len(records) == 2
    for record in records:
        text = record.decode()
        assert text.isprintable() and "\x1b" not in text and len(text) < 3_000
        assert "\\\\x1b[31m" in text and "é" in text


def test_it_is_appended_in_order_a_second_behind_and_again_when_that_failed() -> None:
    async def run() -> None:
        audit, clock = made()
        appended: list[str] = []
        failures = [Overloaded("busy"), RuntimeError("odd")]
        tries = 0

        async def append(records: list[bytes]) -> None:
            nonlocal tries
            tries += 1
            if failures:
                raise failures.pop()
            appended.extend(msgspec.json.decode(record)["what"] for record in records)

        writer = AuditWriter(audit, append, clock)
        writer.start()
        await clock.advance(60_000)
        assert tries == 0
        audit.done(BY_SHOP, "key.make", "one", 201)
        await clock.advance(900)
        assert tries == 0
        audit.done(BY_SHOP, "key.make", "two", 201)
        await clock.advance(200)
        assert tries == 1 and appended == []
        await clock.advance(60_000)
        assert appended == ["one", "two"] and tries == 3
        audit.done(BY_SHOP, "key.make", "three", 201)
        await writer.stop()
        assert appended == ["one", "two", "three"]
        audit.done(BY_SHOP, "key.make", "four", 201)
        await writer.stop()
        assert appended[-1] == "three"

    asyncio.run(run())


def test_a_flush_beside_the_task_tells_nothing_twice() -> None:
    async def run() -> None:
        audit, clock = made()
        appended: list[bytes] = []

        async def append(records: list[bytes]) -> None:
            await asyncio.sleep(0)
            appended.extend(records)

        writer = AuditWriter(audit, append, clock)
        writer.start()
        for number in range(1_200):
            audit.done(BY_SHOP, "key.make", str(number), 201)
        await asyncio.gather(clock.advance(1_000), writer.flush_in_time(), writer.flush())
        await writer.stop()
        assert len(appended) == len(set(appended)) == module.MANAGEMENT_MAX + 1

    asyncio.run(run())


def test_a_flood_while_records_are_appended_makes_no_more_appends() -> None:
    async def run() -> None:
        audit, clock = made()
        sizes: list[int] = []

        def flood() -> None:
            for client in range(300):
                audit.denied(Asked("http", f"192.0.2.{client}", None), "get", "/x", "credential_refused")

        async def append(records: list[bytes]) -> None:
            sizes.append(len(records))
            flood()
            if len(sizes) > 1_000:
                raise RuntimeError("there is no end of it")

        writer = AuditWriter(audit, append, clock)
        flood()
        assert await writer.flush()
        assert sizes == [module.DENIALS_MAX + 1]
        writer.start()
        await clock.advance(60_000)
        assert 50 < len(sizes) <= 61
        assert sum(sizes) <= module.DENIALS_MAX + 2 * 60
        await writer.stop()

    asyncio.run(run())
