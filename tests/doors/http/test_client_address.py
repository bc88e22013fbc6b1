"""Whose address a request has: the peer's, or the one that a trusted proxy names, never one that a client made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.config import Settings
from headwater.doors.http.client_address import Proxies
from headwater.doors.peers import HERE, peer_of

PROXY, CLIENT = "10.0.0.1", "203.0.113.5"
TRUSTED = Proxies(Settings(trusted_proxies="10.0.0.0/8,fd00::/8"))
RFC_7239 = Proxies(Settings(trusted_proxies="10.0.0.0/8", trusted_proxy_headers="forwarded"))
NOBODY = Proxies(Settings())


def x(value: str) -> dict[bytes, bytes]:
    return {b"x-forwarded-for": value.encode("latin-1")}


def test_without_trusted_proxies_nothing_is_believed() -> None:
    assert not NOBODY.trusts("127.0.0.1")
    assert NOBODY.client(PROXY, x(CLIENT)) == PROXY
    assert NOBODY.reached_by({**x(CLIENT), b"x-forwarded-proto": b"https"}) == ("", "")


def test_who_is_no_trusted_proxy_speaks_for_nobody() -> None:
    assert TRUSTED.client(CLIENT, x("198.51.100.7")) == CLIENT


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (CLIENT, CLIENT),
        (f"198.51.100.7, {CLIENT}", CLIENT),
        (f"{CLIENT}, 10.2.3.4", CLIENT),
        (f"127.0.0.1, 10.9.9.9, {CLIENT}, 10.2.3.4, 10.2.3.5", CLIENT),
        (f"{CLIENT}:55123", CLIENT),
        ("[2001:db8::1]:55123", "2001:db8::1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        (f"::ffff:{CLIENT}", CLIENT),
        ("10.2.3.4", "10.2.3.4"),
        ("unknown", PROXY),
        (f"{CLIENT}, unknown, 10.2.3.4", "10.2.3.4"),
        (f"{CLIENT},", PROXY),
        ("", PROXY),
        ("1.2.3.4.5", PROXY),
        (", ".join(["10.1.1.1"] * 1_000), "10.1.1.1"),
    ],
)
def test_the_chain_is_walked_from_the_near_end_to_the_first_that_is_not_trusted(value: str, expected: str) -> None:
    assert TRUSTED.client(PROXY, x(value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"for={CLIENT}", CLIENT),
        (f'For="{CLIENT}:99";proto=https', CLIENT),
        ('for="[2001:db8::1]:99", for=10.3.3.3', "2001:db8::1"),
        ("for=_hidden", PROXY),
        ("proto=https", PROXY),
        ('for="', PROXY),
        ('for="x, for=1.2.3.4', PROXY),
        ("for=1.2.3.4 for=5.6.7.8", PROXY),
    ],
)
def test_forwarded_is_read_as_its_rfc_says(value: str, expected: str) -> None:
    assert RFC_7239.client(PROXY, {b"forwarded": value.encode()}) == expected


def test_the_other_header_does_not_count() -> None:
    assert RFC_7239.client(PROXY, x(CLIENT)) == PROXY
    assert TRUSTED.client(PROXY, {b"forwarded": f"for={CLIENT}".encode()}) == PROXY


@given(st.binary(max_size=80), st.sampled_from(["x-forwarded", "forwarded"]))
def test_any_bytes_give_an_address(value: bytes, headers: str) -> None:
    proxies = Proxies(Settings(trusted_proxies="10.0.0.0/8", trusted_proxy_headers=headers))
    names = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded")
    found = proxies.client(PROXY, dict.fromkeys(names, value))
    assert peer_of((found, 1)) == found
    assert len(proxies.reached_by(dict.fromkeys(names, value))) == 2


def test_peers_are_addresses_without_ports_and_zones() -> None:
    assert peer_of(("::ffff:192.0.2.1", 80, 0, 0)) == "192.0.2.1"
    assert peer_of(("fe80::1%eth0", 80, 0, 2)) == "fe80::1"
    assert peer_of("") == peer_of(None) == HERE
