"""Where clients reach the server: what of a request is believed, by the settings `public_url` and `trusted_proxies`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.config import Settings
from headwater.doors.http.origin import Origin

DIRECT = Settings()
BEHIND = Settings(trusted_proxies="10.0.0.0/8")
PROXIED = {
    b"host": b"node:4437",
    b"x-forwarded-for": b"203.0.113.5",
    b"x-forwarded-proto": b"https",
    b"x-forwarded-host": b"streams.example",
}


def base_url(headers: dict[bytes, bytes], settings: Settings = BEHIND) -> str | None:
    return Origin(settings).base_url(headers)


def test_forwarding_headers_count_only_where_proxies_are_named() -> None:
    assert base_url(PROXIED, DIRECT) == "http://node:4437"
    assert base_url(PROXIED) == "https://streams.example"
    assert base_url(PROXIED, replace(BEHIND, public_url="forwarded")) == "https://streams.example"
    assert base_url(PROXIED, replace(BEHIND, public_url="https://given.example/base")) == "https://given.example/base"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({b"host": b"a:1"}, "http://a:1"),
        ({b"host": b"a:1", b"x-forwarded-proto": b"HTTPS"}, "https://a:1"),
        ({b"host": b"a:1", b"x-forwarded-proto": b"gopher"}, "http://a:1"),
        ({b"host": b"a:1", b"x-forwarded-host": b"[::1]:8443"}, "http://[::1]:8443"),
        ({b"host": b"a", b"x-forwarded-host": b""}, "http://a"),
        ({b"host": b"a", b"forwarded": b"for=1.2.3.4;proto=https;host=b"}, "http://a"),
    ],
)
def test_what_one_proxy_says_is_taken(headers: dict[bytes, bytes], expected: str) -> None:
    assert base_url(headers) == expected


@pytest.mark.parametrize("host", [b"", b"a b", b"evil.example/path", b"a@b", b"a:b", b"a\xff"])
def test_what_is_no_host_is_not_made_one(host: bytes) -> None:
    assert base_url({b"host": host}, DIRECT) is None
    assert base_url({b"host": b"a", b"x-forwarded-host": host}) == (None if host else "http://a")


def test_what_a_client_wrote_before_a_proxy_added_its_own_does_not_count() -> None:
    headers = {
        b"host": b"a",
        b"x-forwarded-for": b"10.9.9.9, 203.0.113.5",
        b"x-forwarded-proto": b"http, https",
        b"x-forwarded-host": b"evil.example, streams.example",
    }
    assert base_url(headers) == "https://streams.example"


def test_of_several_trusted_proxies_the_one_that_the_client_met_counts() -> None:
    hops = b"evil.example, 203.0.113.5, 10.0.0.2"
    added = {b"x-forwarded-proto": b"gopher, https, http", b"x-forwarded-host": b"evil, outer.example, inner"}
    assert base_url({b"host": b"a", b"x-forwarded-for": hops, **added}) == "https://outer.example"
    kept = {b"x-forwarded-proto": b"https", b"x-forwarded-host": b"outer.example"}
    assert base_url({b"host": b"a", b"x-forwarded-for": hops, **kept}) == "https://outer.example"


def test_the_forwarded_header_is_read_where_the_settings_say_so() -> None:
    settings = replace(BEHIND, trusted_proxy_headers="forwarded")
    said = b'host=evil;proto=gopher, for="[2001:db8::1]:99";proto=https;host="streams.example:8443"'
    assert base_url({b"host": b"a", b"forwarded": said}, settings) == "https://streams.example:8443"
    assert base_url({**PROXIED, b"forwarded": b"for=1.2.3.4"}, settings) == "http://node:4437"


def test_a_redirect_is_a_path_unless_the_public_url_may_put_something_before_it() -> None:
    assert Origin(DIRECT).redirect("/b/s") == Origin(BEHIND).redirect("/b/s") == "/b/s"
    assert Origin(Settings(public_url="https://a.example/base")).redirect("/b/s") == "https://a.example/base/b/s"
