"""S3 as a store: lost answers are resolved, outages are waited out within bounds, refusals say what to change.
A proxy in front of a real S3 misbehaves; answers that this S3 never gives are made up with AWS's codes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater.lake.s3 import CONDITIONAL_ATTEMPTS_MAX, RETRIES_MAX
from headwater.lake.store import ObjectMissing, StoreRefused, StoreUnavailable, probe
from tests.lake.conftest import s3_store
from tests.support.s3 import READER_KEY, READER_SECRET, S3, Fault, FaultProxy


def xml(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>as AWS says it</Message></Error>'.encode()


# ---- conditional puts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 503, None], ids=["500", "503", "cut"])
def test_a_conditional_put_whose_answer_was_lost_is_a_success(proxy: FaultProxy, status: int | None) -> None:
    store = s3_store(proxy.endpoint)
    proxy.faults.append(Fault("PUT", "/log/1", status=status, after_forwarding=True))
    assert store.put_if_absent("log/1", b"ours")
    assert store.get("log/1") == b"ours"
    assert not store.put_if_absent("log/1", b"theirs")


def test_a_retry_between_us_and_the_store_does_not_turn_a_success_into_a_refusal(proxy: FaultProxy) -> None:
    """What a load balancer does that repeats a request: the first one is stored, the second one's answer is seen."""
    store = s3_store(proxy.endpoint)
    fault = Fault("PUT", "/log/1", status=412, body=xml("PreconditionFailed"), after_forwarding=True)
    proxy.faults.append(fault)
    assert store.put_if_absent("log/1", b"ours")


def test_a_conditional_put_that_never_arrived_is_tried_again(proxy: FaultProxy) -> None:
    store = s3_store(proxy.endpoint, sleep=lambda seconds: None)
    proxy.faults.append(Fault("PUT", "/log/1", times=2))
    assert store.put_if_absent("log/1", b"ours")


def test_a_conditional_put_lost_to_another_during_an_outage_is_a_no(proxy: FaultProxy, s3: S3) -> None:
    store = s3_store(proxy.endpoint, "contended", sleep=lambda seconds: None)
    s3_store(s3.endpoint, "contended").put("log/1", b"theirs")
    proxy.faults.append(Fault("PUT", "/log/1"))
    assert not store.put_if_absent("log/1", b"ours")


def test_a_conflict_of_two_concurrent_puts_is_tried_again(proxy: FaultProxy) -> None:
    store = s3_store(proxy.endpoint, sleep=lambda seconds: None)
    proxy.faults.append(Fault("PUT", "/log/1", status=409, body=xml("ConditionalRequestConflict")))
    assert store.put_if_absent("log/1", b"ours")


def test_conditional_puts_give_up_after_a_bounded_number_of_attempts(proxy: FaultProxy) -> None:
    naps: list[float] = []
    store = s3_store(proxy.endpoint, sleep=naps.append)
    proxy.faults.append(Fault("PUT", "/log/1", times=100))
    with pytest.raises(StoreUnavailable, match="500"):
        store.put_if_absent("log/1", b"ours")
    assert [method for method, path in proxy.seen if path.endswith("/log/1")].count("PUT") == CONDITIONAL_ATTEMPTS_MAX
    assert len(naps) == CONDITIONAL_ATTEMPTS_MAX - 1
    assert naps == sorted(naps)


def test_one_of_several_wins_although_every_answer_is_lost(proxy: FaultProxy) -> None:
    store = s3_store(proxy.endpoint, sleep=lambda seconds: None)
    proxy.faults.append(Fault("PUT", "/log/1", times=3, after_forwarding=True))
    gate = threading.Barrier(3)

    def attempt(number: int) -> bool:
        gate.wait()
        return store.put_if_absent("log/1", b"contender %d" % number)

    with ThreadPoolExecutor(3) as pool:
        won = list(pool.map(attempt, range(3)))
    assert won.count(True) == 1
    assert store.get("log/1") == b"contender %d" % won.index(True)


# ---- outages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 503, None], ids=["500", "503", "cut"])
def test_ordinary_requests_outlive_a_short_outage(proxy: FaultProxy, status: int | None) -> None:
    store = s3_store(proxy.endpoint)
    for method in ("PUT", "GET", "HEAD", "DELETE"):
        proxy.faults.append(Fault(method, "data/x", times=RETRIES_MAX - 1, status=status))
    store.put("data/x", b"content")
    assert bytes(store.get_range("data/x", 0, 7)) == b"content"
    assert store.head("data/x") == 7
    store.delete("data/x")
    assert store.head("data/x") is None


def test_a_longer_outage_is_unavailable_and_over_when_it_is_over(proxy: FaultProxy) -> None:
    store = s3_store(proxy.endpoint)
    store.put("data/x", b"content")
    proxy.faults.append(fault := Fault("GET", "data/x", times=1_000, status=503, body=xml("SlowDown")))
    with pytest.raises(StoreUnavailable, match=r"data/x.*503"):
        store.get("data/x")
    fault.times = 0
    assert store.get("data/x") == b"content"


def test_a_request_that_takes_too_long_is_cut_off(proxy: FaultProxy) -> None:
    store = s3_store(proxy.endpoint, request_ms_max=200)
    store.put("data/x", b"content")
    proxy.faults.append(Fault("GET", "data/x", times=100, delay_s=1.0, answer_itself=False))
    with pytest.raises(StoreUnavailable):
        store.get("data/x")


def test_a_slow_answer_within_the_time_is_an_answer(proxy: FaultProxy) -> None:
    store = s3_store(proxy.endpoint)
    store.put("data/x", b"content")
    proxy.faults.append(Fault("GET", "data/x", delay_s=0.3, answer_itself=False))
    assert store.get("data/x") == b"content"


def test_a_store_that_is_not_there_is_unavailable() -> None:
    store = s3_store("http://127.0.0.1:1", sleep=lambda seconds: None)
    for call in (
        lambda: store.put("a", b"1"),
        lambda: store.get("a"),
        lambda: list(store.list()),
    ):
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
            call()


# ---- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"secret_access_key": "wrong"}, "secret access key does not belong"),
        ({"access_key_id": "nobody"}, "access key id is not known"),
        ({"access_key_id": READER_KEY, "secret_access_key": READER_SECRET}, "s3:PutObject"),
    ],
    ids=["secret", "key", "permission"],
)
def test_wrong_credentials_are_refused_by_the_probe_with_what_to_change(
    s3: S3, options: dict[str, str], says: str
) -> None:
    with pytest.raises(StoreRefused, match=says):
        probe(s3_store(s3.endpoint, **options), "abc")


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (404, "NoSuchBucket", "create it or name another"),
        (403, "ExpiredToken", "expired; renew"),
        (403, "RequestTimeTooSkewed", "clock"),
        (400, "AuthorizationHeaderMalformed", "region"),
        (301, "PermanentRedirect", "region"),
        (403, "SomethingNew", "lack a permission"),
        (400, "SomethingElse", "400 SomethingElse as AWS says it"),
    ],
)
def test_every_refusal_says_what_to_change(proxy: FaultProxy, status: int, code: str, says: str) -> None:
    store = s3_store(proxy.endpoint)
    for method in ("PUT", "GET"):
        proxy.faults.append(Fault(method, "", times=100, status=status, body=xml(code)))
    for call in (
        lambda: store.put("a", b"1"),
        lambda: store.put_if_absent("a", b"1"),
        lambda: store.get("a"),
        lambda: store.get_range("a", 0, 1),
        lambda: store.get_tail("a", 1),
        lambda: list(store.list()),
    ):
        with pytest.raises(StoreRefused, match=says):
            call()


def test_a_missing_object_is_not_taken_for_a_missing_bucket(s3: S3) -> None:
    with pytest.raises(ObjectMissing):
        s3_store(s3.endpoint).get("a")


def test_no_secret_stands_in_any_message(proxy: FaultProxy) -> None:
    store = s3_store(proxy.endpoint, access_key_id="AKIDVISIBLE", secret_access_key="top-secret-value")
    for call in (lambda: store.put("a", b"1"), lambda: list(store.list())):
        with pytest.raises(StoreRefused) as raised:
            call()
        assert "top-secret-value" not in str(raised.value)
        assert "AKIDVISIBLE" not in str(raised.value)
