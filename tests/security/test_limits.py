"""Accounts of principals and addresses: rates against a slow model, counts, and what is forgotten when.
The clock stands still until a test moves it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import RateLimited, TooManyFollowers
from headwater.limit_settings import LimitSettings
from headwater.security import limits as module
from headwater.security.limits import TOLD_CONNECTIONS_MAX, Account, Limits, counted_as, new_limits
from headwater.security.principals import JWT, KEY, NOBODY, PUBLIC, SIGNED, Principal
from tests.support.clock import SimClock


def made(clock: SimClock, **settings: int) -> Limits:
    found = new_limits(LimitSettings(**settings), clock)
    assert found is not None
    return found


def key(id: str) -> Principal:
    return Principal(KEY, "a name", (), None, id)


def test_without_any_limit_nothing_is_counted() -> None:
    assert new_limits(LimitSettings(), SimClock()) is None
    assert new_limits(LimitSettings(bucket_streams_max=5, limit_burst_ms=5_000), SimClock()) is None


def test_a_burst_is_taken_and_then_as_much_as_the_rate_allows() -> None:
    clock = SimClock()
    limits = made(clock, address_requests_per_s=4, limit_burst_ms=2_000)
    one = limits.of_address("10.0.0.1")
    assert [limits.begin(one, None, 0) is None for _ in range(10)] == [True] * 8 + [False] * 2
    clock.ms += 250
    assert [limits.begin(one, None, 0) is None for _ in range(2)] == [True, False]
    clock.ms += 60_000
    assert [limits.begin(one, None, 0) is None for _ in range(9)] == [True] * 8 + [False]
    assert limits.refused["address_requests"] == 4


def test_the_refusal_says_which_limit_it_is_and_how_long_to_wait() -> None:
    clock = SimClock()
    limits = made(clock, principal_bytes_per_s=1_000, limit_burst_ms=1_000)
    whose = (limits.of_address("10.0.0.1"), limits.of_principal(key("k")))
    assert limits.begin(*whose, 9_500) is None  # larger than the burst, and taken: those after it wait
    refused = limits.begin(*whose, 0)
    assert isinstance(refused, RateLimited)
    assert refused.facts() == {"retry_after_s": 9}
    assert "1000 bytes a second (principal_bytes_per_s)" in refused.message()
    clock.ms += 8_499
    assert limits.begin(*whose, 0) is not None
    clock.ms += 2
    assert limits.begin(*whose, 0) is None


def test_what_one_of_two_refuses_is_taken_from_neither() -> None:
    clock = SimClock()
    limits = made(clock, principal_requests_per_s=1, address_requests_per_s=10, limit_burst_ms=1_000)
    greedy, modest = limits.of_principal(key("greedy")), limits.of_principal(key("modest"))
    address = limits.of_address("10.0.0.1")
    assert [limits.begin(address, greedy, 0) is None for _ in range(20)].count(True) == 1
    assert [limits.begin(address, None, 0) is None for _ in range(10)].count(True) == 9
    assert limits.begin(limits.of_address("10.0.0.2"), modest, 0) is None


def test_what_is_sent_is_paid_for_by_what_comes_next() -> None:
    clock = SimClock()
    limits = made(clock, address_bytes_per_s=100, limit_burst_ms=1_000)
    one = limits.of_address("10.0.0.1")
    limits.take((one, None), 0, 1_000_000_000)
    refused = limits.begin(one, None, 0)
    assert refused is not None and refused.retry_after_s <= module.WAIT_S_MAX
    clock.ms += module.WAIT_S_MAX * 1_000
    assert limits.begin(one, None, 0) is None


@given(
    st.integers(1, 50),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 200)), max_size=60),
)
def test_a_rate_is_a_bucket_that_fills_again(per_s: int, burst_s: int, steps: list[tuple[int, int]]) -> None:
    """The model counts tokens in thousandths; a request may begin while there are any."""
    clock = SimClock()
    limits = made(clock, address_bytes_per_s=per_s, limit_burst_ms=burst_s * 1_000)
    one = limits.of_address("10.0.0.1")
    full = per_s * burst_s * 1_000
    tokens = full
    for pause_ms, size in steps:
        clock.ms += pause_ms
        tokens = min(full, tokens + pause_ms * per_s)
        if abs(tokens) < 2:
            return  # a hair decides, and floats are not that exact
        begins = limits.begin(one, None, size) is None
        assert begins == (tokens > 0)
        if begins:
            tokens -= size * 1_000


def test_principals_are_told_apart_by_what_proved_them() -> None:
    limits = made(SimClock(), principal_requests_per_s=1)
    assert limits.of_principal(key("a")) is limits.of_principal(key("a"))
    assert limits.of_principal(key("a")) is not limits.of_principal(key("b"))
    assert limits.of_principal(key("a")) is not limits.of_principal(Principal(JWT, "a name", (), None, "a"))
    for nobody in (None, NOBODY, Principal(PUBLIC, "public", ()), Principal(SIGNED, "a", (), 1, "signed-a")):
        assert limits.of_principal(nobody) is None


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("::1", "::/64"),
    ],
)
def test_an_ipv6_address_counts_as_its_network(address: str, name: str) -> None:
    assert counted_as(address) == name


def test_many_addresses_and_tokens_do_not_take_more_and_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACCOUNTS_MAX", 100)
    limits = made(SimClock(), address_requests_per_s=1, principal_requests_per_s=1, address_connections_max=5)
    used = [limits.of_address(f"10.9.0.{number}") for number in range(50)]
    assert all(limits.connected(one) for one in used)
    for number in range(5_000):
        limits.of_address(f"2001:db8:0:{number:x}::1")
        limits.of_principal(Principal(JWT, "x", (), None, f"jwt:{number}"))
    assert limits.accounts_count <= 100 + 100 + len(used)
    assert [limits.of_address(f"10.9.0.{number}") for number in range(50)] == used


def test_connections_beyond_the_limit_are_told_so_and_many_more_are_cut() -> None:
    limits = made(SimClock(), address_connections_max=2)
    one = limits.of_address("10.0.0.1")
    assert [limits.connected(one) and not limits.has_too_many(one) for _ in range(2)] == [True, True]
    told = [limits.connected(one) and limits.has_too_many(one) for _ in range(TOLD_CONNECTIONS_MAX)]
    assert told == [True] * TOLD_CONNECTIONS_MAX
    assert not limits.connected(one)
    assert one.connections == 2 + TOLD_CONNECTIONS_MAX
    assert limits.connected(limits.of_address("10.0.0.2"))
    assert limits.refused["address_connections"] == TOLD_CONNECTIONS_MAX + 1


def test_live_reads_are_counted_until_they_end() -> None:
    limits = made(SimClock(), principal_followers_max=2, address_followers_max=3)
    address = limits.of_address("10.0.0.1")
    one: tuple[Account, Account | None] = address, limits.of_principal(key("one"))
    other = address, limits.of_principal(key("other"))
    assert limits.follow(one) is None and limits.follow(one) is None
    refused = limits.follow(one)
    assert isinstance(refused, TooManyFollowers) and "principal_followers_max" in refused.message()
    assert limits.follow(other) is None
    refused = limits.follow(other)
    assert isinstance(refused, TooManyFollowers) and "address_followers_max" in refused.message()
    limits.followed(one)
    assert limits.follow(other) is None
    assert limits.refused["principal_followers"] == limits.refused["address_followers"] == 1
