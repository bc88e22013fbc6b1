"""Which path a name means, and which code a failure has: the two tables of the S3P door, both ways.
The names are also looked up over HTTP, where the path is what counts."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.doors.s3p.names import first_owner, key_of, path_of
from headwater.doors.s3p.outcomes import failed
from headwater.errors import TABLE, BadName, RequestTimeout, TooManyProducers
from headwater.model import names
from tests.doors.s3p.client import Client
from tests.support.http import Connection
from tests.support.node import Node

# ---- names and failures -----------------------------------------------------------------------------------


def name_of(path: str) -> bytes:
    """The name that means a path: the rule of `names`, backwards."""
    if path.startswith("~~"):
        shorter = path.lstrip("~")
        if name_of("~" + shorter) != ("~" + shorter).encode():
            return path[1:].encode()
    elif path.startswith("~"):
        try:
            raw = bytes.fromhex(path[1:])
        except ValueError:
            return path.encode()
        if raw and raw.hex() == path[1:] and path_of(raw) == path:
            return raw
    return path.encode()


@given(st.binary(min_size=1, max_size=40), st.binary(max_size=20), st.sampled_from([b"CREATE", b"append", b"Read"]))
def test_the_stream_of_a_connections_first_command_is_found_as_soon_as_its_name_is_there(
    name: bytes, more: bytes, verb: bytes
) -> None:
    begun = b"*%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (3, len(verb), verb, len(name), name)
    assert first_owner(begun + more) == key_of(name)
    for size in range(len(begun)):
        assert first_owner(begun[:size]) is None


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01",
        b"*3\r\n$4\r\nREAD\r\n$1\r\nsomething\r\n",
        b"*3\r\n$4\r\nREAD\r\n$0\r\n\r\n",
    ],
)
def test_bytes_that_are_no_command_are_about_no_stream(first: bytes) -> None:
    assert first_owner(first) is None


odd_names = st.binary(min_size=1, max_size=12) | st.text("~/.ab0129f", min_size=1, max_size=8).map(str.encode)


@settings(max_examples=500)
@given(odd_names)
@example(b"~2f")
@example(b"~~2f")
@example(b"~~61")
@example(b"__ds/x")
def test_a_name_can_be_told_from_its_path(name: bytes) -> None:
    path = path_of(name)
    assert name_of(path) == name
    assert key_of(name) == names.flat_key(path, 1 << 20)


@settings(max_examples=500)
@given(st.text("~/.ab0129f", min_size=1, max_size=8))
def test_every_path_has_a_name(path: str) -> None:
    try:
        names.flat_key(path, 100)
    except BadName:
        return
    assert path_of(name_of(path)) == path


@pytest.mark.parametrize("name", [b"plain", b"bucket/deep/er", "größe".encode(), b"a/", b"..", b"\xff\x00", b"~2f"])
def test_a_stream_is_found_over_http_under_the_path_of_its_name(plain_node: Node, name: bytes) -> None:
    with Client.of(plain_node) as client:
        client.create(name)
        client.append(name, b"found")
    quoted = "".join(f"%{byte:02X}" if byte != 0x2F else "/" for byte in path_of(name).encode())
    with Connection("127.0.0.1", plain_node.port) as http:
        assert http.request("GET", f"/v1/stream/{quoted}").body == b"found"


@pytest.mark.parametrize("failure", TABLE, ids=lambda one: one.__name__)
def test_no_failure_of_an_understood_command_closes_the_connection(failure: type) -> None:
    made = failure.__new__(failure)
    made.message = lambda: "facts of its own"
    made.expected, made.member, made.needed = "application/json", 1, "a key"
    code = failed(b"s", made).split()[0]
    assert code not in (b"-ERR_BAD_FORMAT", b"-ERR_LIMITS")


def test_failures_that_pass_say_that_trying_again_may_help() -> None:
    assert failed(b"s", TooManyProducers(3)).startswith(b"-ERR_UNAVAILABLE ")
    assert failed(b"s", RequestTimeout()).startswith(b"-ERR_UNAVAILABLE ")
    assert failed(b"s", BadName("x")).startswith(b"-ERR_CONFLICT ")
