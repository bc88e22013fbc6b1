"""Where a webhook may go: every spelling of a local or private address is refused, before and after resolving.
It owns the table of addresses; it resolves nothing for real."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.subscriptions import targets
from headwater.subscriptions.targets import Target, TargetRefused, parse, resolve, why_never

PRIVATE = ["10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1"]
LOCAL = ["127.0.0.1", "127.1.2.3", "0.0.0.0", "0.1.2.3", "169.254.0.1", "169.254.169.254"]
OTHER_V4 = [
    "100.64.0.1",  # carrier-grade NAT
    "100.100.100.200",  # metadata of a cloud, inside it
    "168.63.129.16",  # metadata of another, in public space
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
]
V6 = [
    "::",
    "::1",
    "::7f00:1",  # IPv4-compatible loopback
    "::10.0.0.1",
    "::ffff:127.0.0.1",  # IPv4-mapped
    "::ffff:10.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",  # IPv4-translated
    "64:ff9b::7f00:1",  # NAT64
    "64:ff9b::808:808",
    "64:ff9b:1::a00:1",
    "100::1",
    "2001::1",  # Teredo
    "2001:0:7f00:1::",
    "2001:db8::1",
    "2002:7f00:1::",  # 6to4
    "2002:a00:1::1",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "2606:4700::5efe:a00:1",  # ISATAP
    "2606:4700::200:5efe:7f00:1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.215.14", "172.15.0.1", "172.32.0.1", "100.128.0.1"]
PUBLIC += ["2606:4700::1111", "2a00::1"]


@pytest.mark.parametrize("address", PRIVATE + LOCAL + OTHER_V4)
def test_an_ipv4_address_that_is_not_public_is_refused(address: str) -> None:
    assert why_never(ip_address(address))
    for allow_local in (False, True):
        with pytest.raises(TargetRefused):
            parse(f"https://{address}/hook", allow_local)


@pytest.mark.parametrize("address", V6)
def test_an_ipv6_address_that_is_not_public_is_refused_in_every_form(address: str) -> None:
    whole = ip_address(address).exploded
    for spelling in (address, whole, whole.upper()):
        for allow_local in (False, True):
            with pytest.raises(TargetRefused):
                parse(f"https://[{spelling}]/hook", allow_local)
            with pytest.raises(TargetRefused):
                parse(f"http://[{spelling}]/hook", allow_local)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_taken(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    assert parse(f"https://{host}/hook?x=1", False) == Target("https", address, 443, "/hook?x=1")


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",  # 127.0.0.1 as one number
        "0x7f000001",
        "0x7f.0.0.1",
        "0X7F.1",
        "017700000001",
        "0177.0.0.1",
        "127.1",
        "127.0.1",
        "10.1",
        "192.168.257",
        "00000000000000000000177.0.0.1",
        "134744072",  # a public one is no better spelt like this
        "08.8.8.8",
        "8.8.8.08",
        "8.8.8.8.8",
        "8.8.8.256",
        "1.2.3.0x",
        "example.1",
        "example.0x7f",
        "[::1%25lo]",
        "[::1%lo]",
        "[fe80::1%25eth0]",
        "[::1]x",
        "[::1",
        "::1",
        "127。0。0。1",
        "１２７.0.0.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "a.localhost",
        "ex ample.com",
        "example..com",
        "-example.com",
        "exam%70le.com",
        "user@example.com",
        "user:pass@example.com",
        "example.com@127.0.0.1",
        "example.com#@127.0.0.1",
        "example.com\\@127.0.0.1",
        "example.com:0",
        "example.com:65536",
        "example.com:",
        "example.com:80:80",
        "example.com:x",
        "",
        "ex\tample.com",
        "ex\nample.com",
        "exämple.com",
        "a" * 64 + ".com",
        ".".join(["a" * 60] * 5),
    ],
)
def test_a_host_in_a_doubtful_spelling_is_refused(host: str) -> None:
    for url in (f"https://{host}/hook", f"http://{host}/hook"):
        with pytest.raises(TargetRefused):
            parse(url, False)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/hook",
        "//example.com/hook",
        "example.com/hook",
        "http://example.com/hook",
        "ftp://example.com/hook",
        "file:///etc/passwd",
        "gopher://example.com/",
        "https:example.com",
        "https:/example.com",
        "https:///example.com",
        "https:\\\\example.com",
        "https://example.com/#part",
        "https://example.com/a b",
        "https://example.com/a\r\nHost: other",
        "https://example.com/" + "x" * targets.URL_BYTES_MAX,
        "https://example.com/\x00",
    ],
)
def test_what_is_not_a_plain_https_url_is_refused(url: str) -> None:
    for allow_local in (False, True):
        with pytest.raises(TargetRefused):
            parse(url, allow_local)


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "localhost.", "127.0.0.1", "127.0.0.255"])
def test_the_development_setting_lets_http_reach_this_machine_and_nothing_else_does(host: str) -> None:
    assert parse(f"http://{host}:8080/hook", True).port == 8080
    with pytest.raises(TargetRefused):
        parse(f"http://{host}:8080/hook", False)
    with pytest.raises(TargetRefused):
        parse(f"https://{host}:8080/hook", True)


@pytest.mark.parametrize(
    "host",
    ["127.1.0.1", "127.0.1.1", "127.0.0.256", "127.0.0.01", "127.1", "2130706433", "10.0.0.1", "0.0.0.0", "[::1]"],
)
def test_the_development_setting_covers_only_127_0_0_x_spelt_plainly(host: str) -> None:
    with pytest.raises(TargetRefused):
        parse(f"http://{host}/hook", True)


@given(st.ip_addresses(v=4))
def test_ipv4_agrees_with_the_standard_librarys_idea_of_global(address) -> None:
    if not address.is_global or address.is_multicast:
        assert why_never(address)


@given(st.ip_addresses(v=6))
def test_ipv6_agrees_with_the_standard_librarys_idea_of_global(address) -> None:
    if not address.is_global or address.is_multicast or address.ipv4_mapped or address.sixtofour or address.teredo:
        assert why_never(address)


@given(st.text(max_size=80), st.booleans())
def test_no_text_breaks_the_parser_or_slips_a_local_address_through(text: str, allow_local: bool) -> None:
    for url in (text, f"https://{text}", f"http://{text}/"):
        try:
            target = parse(url, allow_local)
        except TargetRefused:
            continue
        if target.scheme == "http":
            assert allow_local
            assert target.host == "localhost" or target.host.startswith("127.0.0.")
        else:
            assert not target.host.startswith("127.")


# ---- after resolving ----------------------------------------------------------------------------------------------


def resolved(host: str, addresses: list[str], allow_local: bool = False, scheme: str = "https") -> list[str]:
    async def resolver(name: str, port: int) -> list[str]:
        assert (name, port) == (host, 443)
        return addresses

    return asyncio.run(resolve(Target(scheme, host, 443, "/"), resolver, allow_local))


@pytest.mark.parametrize("address", PRIVATE + LOCAL + OTHER_V4 + V6)
def test_a_name_that_resolves_to_such_an_address_is_refused(address: str) -> None:
    for addresses in ([address], ["1.1.1.1", address], [address, "1.1.1.1"]):
        for allow_local in (False, True):
            with pytest.raises(TargetRefused):
                resolved("hook.example", addresses, allow_local)


def test_a_name_with_public_addresses_gives_exactly_these() -> None:
    assert resolved("hook.example", ["1.1.1.1", "2606:4700::1111"]) == ["1.1.1.1", "2606:4700::1111"]


def test_a_name_with_no_address_or_too_many_is_not_called() -> None:
    with pytest.raises(OSError, match="no address"):
        resolved("hook.example", [])
    with pytest.raises(TargetRefused):
        resolved("hook.example", ["1.1.1.1"] * (targets.ADDRESSES_MAX + 1))


@pytest.mark.parametrize("address", ["10.0.0.1", "1.1.1.1", "169.254.169.254", "fe80::1"])
def test_localhost_must_mean_this_machine_even_in_development(address: str) -> None:
    assert resolved("localhost", ["127.0.0.1", "::1"], allow_local=True, scheme="http") == ["127.0.0.1", "::1"]
    with pytest.raises(TargetRefused):
        resolved("localhost", ["127.0.0.1", address], allow_local=True, scheme="http")
    with pytest.raises(TargetRefused):
        resolved("localhost", ["127.0.0.1"], allow_local=False, scheme="http")
