"""Where clients reach the server: what of a request is believed, by the setting `public_url`."""

from __future__ import annotations

import pytest

from headwater.doors.http.origin import base_url, redirect

PROXIED = {
    b"host": b"127.0.0.1:4437",
    b"x-forwarded-proto": b"https",
    b"x-forwarded-host": b"streams.example",
}


def test_a_request_is_believed_its_host_alone_unless_a_proxy_is_trusted() -> None:
    assert base_url(PROXIED, "auto") == "http://127.0.0.1:4437"
    assert base_url(PROXIED, "forwarded") == "https://streams.example"
    assert base_url(PROXIED, "https://public.example/streams") == "https://public.example/streams"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({b"host": b"a:1"}, "http://a:1"),
        ({b"host": b"a:1", b"x-forwarded-proto": b"HTTPS"}, "https://a:1"),
        ({b"host": b"a:1", b"x-forwarded-proto": b"gopher"}, "http://a:1"),
        ({b"host": b"a:1", b"x-forwarded-host": b"[::1]:8443"}, "http://[::1]:8443"),
        ({b"host": b"a", b"x-forwarded-proto": b"https, http", b"x-forwarded-host": b"b, c"}, "https://b"),
        ({b"host": b"a", b"x-forwarded-host": b""}, "http://a"),
    ],
)
def test_a_trusted_proxy_says_scheme_and_host(headers: dict[bytes, bytes], expected: str) -> None:
    assert base_url(headers, "forwarded") == expected


@pytest.mark.parametrize(
    "host", [b"", b"a b", b"a/b", b"user@a", b"a\\b", b"a:port", b"\xff", b"a" * 254, b"a?b", b"a#b"]
)
def test_a_host_that_cannot_stand_in_a_url_is_none(host: bytes) -> None:
    assert base_url({b"host": host}, "auto") is None
    assert base_url({b"host": b"a", b"x-forwarded-host": host}, "forwarded") == (None if host else "http://a")


def test_a_redirect_is_a_path_unless_the_public_url_may_put_something_before_it() -> None:
    assert redirect("/b/s", "auto") == redirect("/b/s", "forwarded") == "/b/s"
    assert redirect("/b/s", "https://public.example/streams") == "https://public.example/streams/b/s"
