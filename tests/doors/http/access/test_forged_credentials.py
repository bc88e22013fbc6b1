"""What somebody tries with a credential that is not his: forged tokens, signatures used again, requests within
requests, and names that look as if they were in his scope. At both doors, and where another process is the owner."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.doors.http.access.waiting import until
from tests.doors.s3p.client import OK, Client, Error, s3p_port
from tests.support.guarded import Guarded, bearer, code, guarded
from tests.support.http import ConnectionEnded, encode_request
from tests.support.node import HOST

SECRET = b"the secret of the shop"
TEXT = {"Content-Type": "text/plain"}
OURS, ANOTHER = (RSAKey.generate_key(2048, {"kid": "ours"}) for _ in range(2))
FAR_S = 4_000_000_000
CLAIMS = {"iss": "https://id.example", "aud": "headwater", "sub": "ada", "exp": FAR_S, "scope": "read:shop"}
NAMES = [f"shop/spread-{number}" for number in range(8)]
"""In groups of several workers."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.full, id="one worker"), pytest.param(3, id="three workers")],
)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("node")
    (folder / "jwks").write_text(json.dumps({"keys": [OURS.as_dict(private=False)]}))
    tokens = ("--jwt-keys", str(folder / "jwks"), "--jwt-issuer", CLAIMS["iss"], "--jwt-audience", CLAIMS["aud"])
    doors = ("--s3p", f"{HOST}:0", "--workers", str(request.param))
    with guarded(folder, flags=(*tokens, *doors)) as made:
        for name in ("shop/secret", "shop/eu/1", *NAMES):
            body = b"fine" if name == "shop/eu/1" else SECRET
            assert made.ask(made.admin, "PUT", f"/v1/stream/{name}", body, TEXT).status == 201
        yield made


# ---- tokens -----------------------------------------------------------------------------------------------------


def part(value: object) -> bytes:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def signed(key: Any, claims: dict[str, Any], **header: Any) -> bytes:
    return jwt.encode({"alg": "RS256", "kid": "ours", **header}, claims, key).encode()


def with_mac(secret: bytes, algorithm: str = "HS256") -> bytes:
    said = part({"alg": algorithm, "kid": "ours"}) + b"." + part(CLAIMS)
    return said + b"." + urlsafe_b64encode(hmac.digest(secret, said, "sha256")).rstrip(b"=")


def forged() -> dict[str, bytes]:
    good = signed(OURS, CLAIMS)
    head, body, end = good.split(b".")
    admin = part({**CLAIMS, "scope": "admin"})
    public = OURS.public_key
    key = {name: value for name, value in ANOTHER.as_dict(private=False).items() if name != "kid"}
    return {
        "no signature": head + b"." + body + b".",
        "two parts": head + b"." + body,
        "truncated": good[:-1],
        "cut to half": good[: len(good) // 2],
        "other claims": head + b"." + admin + b"." + end,
        "alg none": part({"alg": "none"}) + b"." + admin + b".",
        "alg None with a signature": part({"alg": "None", "kid": "ours"}) + b"." + admin + b"." + end,
        "no alg": part({"kid": "ours"}) + b"." + admin + b"." + end,
        "the public key as a secret": with_mac(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)),
        "the set as a secret": with_mac(json.dumps(OURS.as_dict(private=False)).encode()),
        "no secret": with_mac(b""),
        "another key of that name": signed(ANOTHER, CLAIMS),
        "a key it brings itself": signed(ANOTHER, CLAIMS, jwk=key),
        "a set it names itself": signed(ANOTHER, CLAIMS, jku=f"http://{HOST}:1/jwks", x5u=f"http://{HOST}:1/x"),
        "a key that is a path": signed(ANOTHER, CLAIMS, kid="../../../../dev/null"),
        "over": signed(OURS, {**CLAIMS, "exp": 1}),
        "for another": signed(OURS, {**CLAIMS, "aud": "another"}),
        "of another": signed(OURS, {**CLAIMS, "iss": "https://id.example.evil"}),
    }


@pytest.mark.parametrize("kind", sorted(forged()))
def test_no_forged_token_opens_a_door(node: Guarded, kind: str) -> None:
    token = forged()[kind]
    for path in ("/v1/stream/shop/secret?offset=-1", f"/v1/stream/{NAMES[0]}?offset=-1", "/__headwater/tokens"):
        answer = node.node.request("GET", path, {"Authorization": f"Bearer {token.decode()}"})
        assert (answer.status, code(answer)) == (401, "credential_refused"), answer
    with Client(s3p_port(node.node)) as client:
        refused = client.call(b"AUTH", token)
        assert isinstance(refused, Error) and refused.code == "ERR_UNAUTHENTICATED"
        assert isinstance(client.read(b"shop/secret"), Error)
    assert token not in node.node.stderr().encode()


def test_the_token_that_they_were_made_from_is_good(node: Guarded) -> None:
    answer = node.node.request("GET", "/v1/stream/shop/secret?offset=-1", bearer(signed(OURS, CLAIMS).decode()))
    assert (answer.status, answer.body) == (200, SECRET)
    with Client(s3p_port(node.node)) as client:
        assert client.call(b"AUTH", signed(OURS, CLAIMS)) == OK
        assert not isinstance(client.read(b"shop/secret"), Error)


# ---- signatures -------------------------------------------------------------------------------------------------


def test_a_signed_url_is_used_again_until_it_ends_and_never_after(node: Guarded) -> None:
    made = node.made("read:shop")

    def sign(seconds: int) -> str:
        body = json.dumps({"stream": NAMES[1], "expires_in_s": seconds}).encode()
        return str(json.loads(node.ask(made["token"], "POST", "/__headwater/sign", body).body)["signed"])

    path = f"/v1/stream/{NAMES[1]}?offset=-1&signed="
    short, long = sign(1), sign(600)
    assert {node.ask(None, "GET", path + long).status for _ in range(3)} == {200}
    until(lambda: node.ask(None, "GET", path + short).status == 401)
    for again in (short, f"{long}&signed={short}", short.replace(short.split(".")[1], long.split(".")[1])):
        assert code(node.ask(None, "GET", path + again)) == "credential_refused"
    for header in (f"Bearer {long}", f"Signed {long}", long):
        assert node.node.request("GET", path, {"Authorization": header}).status == 401
    with Client(s3p_port(node.node)) as client:
        assert isinstance(client.call(b"AUTH", long.encode()), Error)
    node.call("DELETE", f"/__headwater/tokens/{made['id']}")
    until(lambda: node.ask(None, "GET", path + long).status == 401)


def test_a_signature_of_another_server_is_none_here(node: Guarded, tmp_path: Path) -> None:
    with guarded(tmp_path) as other:
        signed_there = other.call("POST", "/__headwater/sign", {"stream": "shop/secret", "expires_in_s": 600})["query"]
    answer = node.ask(None, "GET", f"/v1/stream/shop/secret?offset=-1&{signed_there}")
    assert code(answer) == "credential_refused"


# ---- requests within requests -----------------------------------------------------------------------------------


def within(head: str, body: bytes) -> bytes:
    return head.replace("\n", "\r\n").encode("latin-1") + body


def smuggled(target: str, authorization: str) -> list[bytes]:
    """Requests on one stream with another one in them, which would delete a stream if anybody took it for one."""
    inner = b"DELETE /v1/stream/shop/secret HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner)
    begin = f"POST /v1/stream/{target} HTTP/1.1\nHost: a\nContent-Type: text/plain\nAuthorization: {authorization}\n"
    size = len(inner)
    heads = [
        ("Content-Length: 0\nContent-Length: {size}\n\n", inner),
        ("Content-Length: {size}\nContent-Length: 0\n\n", inner),
        ("Content-Length: 0, {size}\n\n", inner),
        ("Content-Length: +0\n\n", inner),
        ("Content-Length: 0x0\n\n", inner),
        ("Content-Length: -1\n\n", inner),
        ("Content-Length : 0\n\n", inner),
        ("Content-Length: 0\nTransfer-Encoding: chunked\n\n", chunk),
        ("Transfer-Encoding: chunked\nContent-Length: 0\n\n", chunk),
        ("Transfer-Encoding: xchunked\n\n", chunk),
        ("Transfer-Encoding: chunked, identity\n\n", chunk),
        ("Transfer-Encoding: \x0bchunked\n\n", chunk),
        ("Transfer-Encoding\t: chunked\n\n", chunk),
        ("Transfer-Encoding: chunked\nTransfer-Encoding: identity\n\n", chunk),
        ("X: a\n Transfer-Encoding: chunked\n\n", inner),
        ("X: a\rContent-Length: 0\n\n", inner),
        ("X: a\x00b\nContent-Length: 0\n\n", inner),
        ("Transfer-Encoding: chunked\n\n", b"0\r\nHeadwater-Placed: 0/1\r\nContent-Length: 9\r\n\r\n" + inner),
        ("Transfer-Encoding: chunked\n\n", b"0;a=\r\n\r\n" + inner),
        ("Transfer-Encoding: chunked\n\n", b"00000000000000000000000000000000001\r\nx\r\n0\r\n\r\n" + inner),
        ("Transfer-Encoding: chunked\n\n", b"1\nx\n0\n\n" + inner),
        ("Content-Length: {size}\nConnection: content-length\n\n", inner),
        ("Content-Length: {size}\nConnection: close, authorization\n\n", inner),
        ("Content-Length: {size}\nHeadwater-Placed: 0/1\n\n", inner),
        ("Content-Length: {size}\nUpgrade: headwater-http\nConnection: upgrade\n\n", inner),
        ("Content-Length: {size}\nExpect: 100-continue\n\n", inner),
    ]
    return [within(begin + head.format(size=size), body) for head, body in heads]


def test_no_request_is_taken_for_two_where_it_arrives_or_where_it_is_sent_on(node: Guarded) -> None:
    """Between processes nobody is asked who he is: a request that became two there would be anybody's."""
    token = node.key("append:shop")
    for name in NAMES[:4]:
        for data in smuggled(name, f"Bearer {token}"):
            with node.node.connect() as connection:
                # A well-formed one first, so that a connection to the owner is there to be used again.
                first = {**TEXT, **bearer(token)}
                assert connection.request("POST", f"/v1/stream/{name}", first, b"x").status in (200, 204)
                connection.send(data)
                connection.send(encode_request("GET", "/healthz", {"Connection": "close"}, None, "a"))
                statuses = []
                try:
                    while not connection.ended():
                        statuses.append(connection.read_response().status)
                except ConnectionEnded:
                    pass
                # What was refused ends the connection; the inner request is never done in anybody's name.
                assert statuses and set(statuses) <= {
                    100,
                    200,
                    204,
                    400,
                    401,
                    403,
                    404,
                    405,
                    411,
                    413,
                    417,
                    426,
                    501,
                }, data
    assert node.ask(node.admin, "GET", "/v1/stream/shop/secret?offset=-1").body == SECRET


# ---- names ------------------------------------------------------------------------------------------------------

NARROW = "read,append,create,manage:shop/eu/*"
TRICKS = [
    "shop/secret",
    "shop/eu/../secret",
    "shop/eu/%2e%2e/secret",
    "shop/eu/..%2fsecret",
    "shop%2fsecret",
    "shop/eu",
    "shop/EU/1",
    "Shop/eu/1",
    "shop//eu/1",
    "/shop/eu/1",
    " shop/eu/1",
    "shop/eu\x00/1",
    "./shop/secret",
    "shop/./secret",
    "shop/eu/1/../../secret",
    "../shop/secret",
    "shop/secret/",
    "shop/secreT",
    "shop\\secret",
    "shop/e\u0443/1",
    "shop/eu/1\r\n*3\r\n$6\r\nDELETE\r\n$11\r\nshop/secret\r\n*0\r\n",
    "shop/eu/1 HTTP/1.1\r\nHost: a\r\n\r\nDELETE /v1/stream/shop/secret",
]


@pytest.mark.parametrize("name", TRICKS)
def test_no_name_within_a_body_or_a_command_leaves_the_scope(node: Guarded, name: str) -> None:
    token = node.key(NARROW)
    raw = name.encode()
    with Client(s3p_port(node.node)) as client:
        assert client.call(b"AUTH", token.encode()) == OK
        found = client.read(raw)
        assert isinstance(found, Error) or not found
    for asked in (
        [{"stream": name, "records": [1]}],
        [{"stream": name, "records": ["eA=="], "encoding": "base64", "content_type": "text/plain", "create": True}],
    ):
        answer = node.ask(token, "POST", "/__headwater/append", json.dumps(asked).encode())
        assert SECRET not in answer.body
    for path in ("/__headwater/sign", "/__headwater/erase"):
        answer = node.ask(token, "POST", path, json.dumps({"stream": name}).encode())
        if answer.status == 200:  # the name is one within the scope, whatever it looks like
            assert json.loads(answer.body)["scope"].startswith("read:shop/eu/")
    made = node.ask(token, "PUT", "/v0/routers/trick", json.dumps({"source": name, "dest": "shop/eu/copy"}).encode())
    if made.status < 300:
        config = json.loads(node.ask(token, "GET", "/v0/routers/trick").body)
        assert json.dumps(config).count("shop/eu/") >= 2
        node.ask(node.admin, "DELETE", "/v0/routers/trick")
    assert node.ask(node.admin, "GET", "/v1/stream/shop/secret?offset=-1").body == SECRET
