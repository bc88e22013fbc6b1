"""What somebody tries who has no key, or a narrow one: other spellings of paths, headers of other processes, heads that
were seen before, signatures of other URLs, and names of things that he may not know of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from tests.doors.http.access.waiting import until
from tests.support.guarded import Guarded, bearer, code, guarded
from tests.support.http import encode_request

SECRET = b"the secret of the shop"
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture(scope="module", params=[1, 3], ids=["one worker", "three workers"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("node"), flags=("--workers", str(request.param))) as made:
        for name in ("shop/secret", "shop/eu", "_default/secret", "shop/EU/1", "shop/eu-2"):
            assert made.ask(made.admin, "PUT", f"/v1/stream/{name}", SECRET, TEXT).status == 201
        for name in ("shop/eu/1", "shop/eu/1/x"):
            assert made.ask(made.admin, "PUT", f"/v1/stream/{name}", b"fine", TEXT).status == 201
        made.call("PUT", "/shop")
        yield made


PATHS = [
    "/v1/stream/shop/eu/../secret",
    "/v1/stream/shop/eu/%2e%2e/secret",
    "/v1/stream/shop/eu/%2e%2e%2fsecret",
    "/v1/stream/shop/eu/..%2fsecret",
    "/v1/stream/shop/eu/%252e%252e/secret",
    "/v1/stream/shop/eu%2f..%2fsecret",
    "/v1/stream/shop%2fsecret",
    "/v1/stream/shop/secret/",
    "/v1/stream//shop/secret",
    "/v1/stream/shop//secret",
    "/v1/stream/shop/eu",
    "/v1/stream/shop/eu/",
    "/v1/stream/shop/EU/1",
    "/v1/stream/SHOP/eu/1",
    "/v1/stream/shop/eu-2",
    "/v1/stream/shop/e%75-2",
    "/v1/stream/shop/%73ecret",
    "/v1/stream/shop/secret?x=/eu/",
    "/v1/stream/shop/secret;/eu/",
    "/v1/stream/shop/eu/1%00/../secret",
    "/v1/stream/shop/%65u/../secret",
    "/shop/secret",
    "/shop/%73ecret",
    "/ds/shop/secret",
    "/shop/eu%2F..%2Fsecret",
    "/v0/topics/shop/secret/diff",
    "/v0/topics/shop%2Fsecret/diff",
    "/v0/topics/shop/eu/..%2Fsecret/diff",
    "/__headwater/tail?stream=shop/secret&from=start",
    "/__headwater/tail?stream=shop/eu/1&stream=/shop/secret&from=start",
    "/__headwater/tail?bucket=shop&from=start",
    "/__headwater/tail?bucket=shop&prefix=e&from=start",
    "/__headwater/groups/0/feed?from=0",
    "/v0/sse?topics=shop%2Fsecret&from=shop%2Fsecret:0",
    "/v0/sse?topics=shop/eu/1,shop/secret",
    "http://elsewhere/v1/stream/shop/secret",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_spelling_of_a_path_leaves_the_scope(node: Guarded, path: str) -> None:
    for token in (node.key("read:shop/eu/*"), None):
        for method in ("GET", "HEAD"):
            with node.node.connect() as connection:
                headers = {} if token is None else bearer(token)
                connection.send(encode_request(method, path, headers, None, connection.authority))
                head = connection.read_head()
                assert head.status in (400, 401, 403, 404, 405), (path, head)
                assert SECRET not in b"".join(connection.body_pieces(head, method))


def test_every_spelling_of_a_stream_within_the_scope_is_that_stream(node: Guarded) -> None:
    token = node.key("read:shop/eu/*")
    for path in (
        "/v1/stream/shop/eu/1",
        "/v1/stream/shop%2Feu%2F1",
        "/v1/stream/%73hop/%65u/1",
        "/v1/stream/shop/eu/1/x",
    ):
        answer = node.ask(token, "GET", f"{path}?offset=-1")
        assert (answer.status, answer.body) == (200, b"fine")


def test_no_header_makes_a_client_a_process_of_the_node(node: Guarded) -> None:
    for headers in (
        {"Headwater-Placed": "0/1"},
        {"Headwater-Proof": "0" * 64, "Upgrade": "headwater-http"},
        {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"},
        {"Connection": "Authorization"},
        {"Headwater-To": "node", "X-Internal": "true"},
    ):
        assert node.ask(None, "GET", "/v1/stream/shop/secret", headers=headers).status == 401
        assert node.ask(None, "POST", "/__headwater/members/access_copy", b"\x90", headers).status == 404
        assert node.ask(node.admin, "POST", "/__headwater/members/access_copy", b"\x90", headers).status == 404
        assert node.ask(node.key("read:shop/eu/*"), "GET", "/v1/stream/shop/secret", headers=headers).status == 403


def test_two_credentials_in_one_request_are_refused(node: Guarded) -> None:
    with node.node.connect() as connection:
        lines = [f"Authorization: Bearer {token}" for token in (node.admin, "x")]
        connection.send("\r\n".join(["GET /v1/stream/shop/secret HTTP/1.1", "Host: a", *lines, "", ""]).encode())
        assert connection.read_response().status == 400


def test_a_head_that_was_allowed_is_judged_again_when_its_key_ends(node: Guarded) -> None:
    """The quick way of appends and of forwarded requests."""
    made = node.made("append:shop/*")
    for name in range(6):  # in groups of several workers
        node.call("PUT", f"/v1/stream/shop/quick-{name}")
    with node.node.connect() as first, node.node.connect() as second:
        for connection in (first, second):
            for name in range(6):
                for _ in range(3):
                    headers = {"Content-Type": "application/json", **bearer(made["token"])}
                    answer = connection.request("POST", f"/v1/stream/shop/quick-{name}", headers, b"1")
                    assert answer.status in (200, 204)
        node.call("DELETE", f"/__headwater/tokens/{made['id']}")
        for connection in (first, second):
            for name in range(6):
                asked = partial(connection.request, "POST", f"/v1/stream/shop/quick-{name}", headers, b"1")
                until(lambda: asked().status == 401)  # noqa: B023


def test_requests_of_several_principals_on_one_connection_are_judged_one_by_one(node: Guarded) -> None:
    good, narrow = node.key("read:shop"), node.key("read:elsewhere")
    with node.node.connect() as connection:
        for token, status in ((good, 200), (narrow, 403), (None, 401), (good, 200), ("hw_x", 401), (node.admin, 200)):
            headers = {} if token is None else bearer(token)
            assert connection.request("GET", "/v1/stream/shop/secret?offset=-1", headers).status == status
        sent = b""
        for token in (good, narrow, good, None):
            headers = {} if token is None else bearer(token)
            sent += encode_request("GET", "/v1/stream/shop/secret?offset=-1", headers, None, connection.authority)
        connection.send(sent)
        assert [connection.read_response().status for _ in range(4)] == [200, 403, 200, 401]


def test_a_missing_stream_and_a_hidden_one_are_answered_alike(node: Guarded) -> None:
    token = node.key("read:elsewhere")
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        for path in (
            "/v1/stream/shop/{}",
            "/shop/{}",
            "/ds/shop/{}",
            "/v0/topics/shop/{}",
            "/shop/{}/snapshot",
            "/shop/{}/x",
        ):
            answers = [node.ask(token, method, path.format(name)) for name in ("secret", "nowhere")]
            said = [(one.status, one.body.replace(b"nowhere", b"secret")) for one in answers]
            assert said[0] == said[1]
    for path in ("/shop", "/nobucket"):
        assert node.ask(token, "GET", path).status == 403
    answers = [node.ask(token, "GET", f"/{bucket}/streams") for bucket in ("shop", "shup")]
    assert answers[0].status == 403 and answers[0].body == answers[1].body.replace(b"shup", b"shop")


def test_a_cache_in_front_does_not_hand_to_others_what_somebody_was_allowed_to_read(node: Guarded) -> None:
    for number in range(6):
        path = f"/v1/stream/shop/cached-{number}"
        node.ask(node.admin, "PUT", path, b"some", {**TEXT, "Stream-Closed": "true"})
        answer = node.ask(node.key("read:shop"), "GET", f"{path}?offset=-1")
        assert str(answer.header("cache-control")).startswith("private, max-age=60")


def test_a_signed_url_reads_what_it_was_made_for_and_nothing_else(node: Guarded) -> None:
    token = node.key("read:shop")
    body = json.dumps({"stream": "shop/eu/1", "expires_in_s": 600}).encode()
    signed = json.loads(node.ask(token, "POST", "/__headwater/sign", body).body)["query"]
    assert node.ask(None, "GET", f"/v1/stream/shop/eu/1?offset=-1&{signed}").body == b"fine"
    assert node.ask(None, "HEAD", f"/shop/eu%2F1?{signed}").status in (200, 400)
    for method, path in (
        ("GET", "/v1/stream/shop/eu/1/x"),
        ("GET", "/v1/stream/shop/secret"),
        ("GET", "/v0/topics"),
        ("POST", "/v1/stream/shop/eu/1"),
        ("PUT", "/v1/stream/shop/eu/1"),
        ("DELETE", "/v1/stream/shop/eu/1"),
        ("POST", "/__headwater/sign"),
        ("GET", "/__headwater/tokens"),
        ("GET", "/metrics"),
    ):
        assert node.ask(None, method, f"{path}?{signed}", b"x", TEXT).status in (401, 403), (method, path)
    expires = signed.split(".")[1]
    for changed in (signed.replace(expires, str(int(expires) + 1)), signed[:-1], signed + "A", signed[:-3] + "AAA"):
        assert code(node.ask(None, "GET", f"/v1/stream/shop/eu/1?{changed}")) == "credential_refused"
    assert node.ask(node.key("append:shop"), "POST", "/__headwater/sign", body).status == 403
    assert node.ask(token, "POST", "/__headwater/sign", b'{"prefix":"*"}').status == 400


def test_a_fork_needs_its_source_and_a_creation_with_records_appends(node: Guarded) -> None:
    fork = {**TEXT, "Stream-Forked-From": "/v1/stream/shop/secret"}
    token = node.key("create,append,read:mine")
    assert node.ask(token, "PUT", "/v1/stream/mine/fork", None, fork).status == 403
    assert (
        node.ask(token, "PUT", "/v1/stream/mine/fork", None, {**TEXT, "Stream-Forked-From": "/shop/%73ecret"}).status
        == 403
    )
    both = node.made("create,append,read:mine", "read:shop/secret")["token"]
    assert node.ask(both, "PUT", "/v1/stream/mine/fork", None, fork).status == 201
    assert node.ask(both, "GET", "/v1/stream/mine/fork?offset=-1").body == SECRET
    creates = node.key("create:mine")
    assert node.ask(creates, "PUT", "/v1/stream/mine/with", b"x", TEXT).status == 403
    assert node.ask(creates, "PUT", "/v1/stream/mine/without", None, TEXT).status == 201


def test_entries_of_a_bulk_append_are_judged_one_by_one(node: Guarded) -> None:
    node.call("PUT", "/v1/stream/mine/there")
    body = json.dumps(
        [
            {"stream": "mine/there", "records": [1]},
            {"stream": "shop/secret", "records": [1]},
            {"stream": "mine/new", "records": [1], "create": True},
            {"stream": "/shop/secret", "records": [1]},
        ]
    ).encode()
    answer = node.ask(node.key("append:mine"), "POST", "/__headwater/append", body)
    assert answer.status == 200
    entries = json.loads(answer.body)
    assert [entry["status"] for entry in entries] == [200 if entries[0]["status"] == 200 else 204, 403, 403, 403]
    assert node.ask(node.admin, "HEAD", "/v1/stream/mine/new").status == 404


def test_listings_show_what_may_be_read(node: Guarded) -> None:
    token = node.made("read:shop/eu/*", "read:shop/eu-2")["token"]
    found = json.loads(node.ask(token, "GET", "/shop/streams").body)
    assert [one["stream_id"] for one in found["streams"]] == ["eu-2", "eu/1", "eu/1/x"]
    assert found["bucket_streams"] is None
    pages, after = [], ""
    while True:
        page = json.loads(node.ask(token, "GET", f"/shop/streams?limit=1&after={after}").body)
        pages += [one["stream_id"] for one in page["streams"]]
        if not page["has_more"]:
            break
        after = page["next_cursor"]
    assert pages == ["eu-2", "eu/1", "eu/1/x"]
    topics = json.loads(node.ask(token, "GET", "/v0/topics?bucket=shop").body)
    assert [one["topic"] for one in topics["topics"]] == ["shop/eu-2", "shop/eu/1", "shop/eu/1/x"]
    assert node.ask(token, "GET", "/shop/streams?prefix=s").status == 403


SUBSCRIPTION = "/v1/stream/__ds/subscriptions/{}"


def test_a_subscription_is_there_for_whoever_could_have_made_it(node: Guarded) -> None:
    node.call("PUT", "/v1/stream/shop/wakes")
    wish = {"type": "pull-wake", "pattern": "shop/eu/*", "wake_stream": "shop/wakes"}
    body = json.dumps(wish).encode()
    path = SUBSCRIPTION.format("eu")
    narrow, exact = node.key("read:shop/eu/1", "append:shop"), node.key("read:shop/eu/*", "append:shop/wakes")
    assert node.ask(narrow, "PUT", path, body).status == 403
    assert node.ask(node.key("read:shop/eu/*"), "PUT", path, body).status == 403
    assert node.ask(exact, "PUT", path, body).status == 201
    for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/claim"), ("DELETE", "/streams/shop/eu/1")):
        hidden = node.ask(narrow, method, path + rest, b'{"worker":"w"}')
        missing = node.ask(narrow, method, SUBSCRIPTION.format("no") + rest, b'{"worker":"w"}')
        assert (hidden.status, hidden.body) == (missing.status, missing.body) == (404, hidden.body)
    assert node.ask(exact, "GET", path).status == 200
    # The same head with another body is another request.
    with node.node.connect() as connection:
        headers = {"Content-Type": "application/json", **bearer(exact)}
        for pattern, status in (("shop/eu/*", 200), ("shop/*/a*", 403), ("shop/eu/*", 200), ("shop/*/aa", 403)):
            said = json.dumps({**wish, "pattern": pattern.ljust(9)[:9]}).encode()
            assert connection.request("PUT", path, headers, said).status == status
    assert node.ask(exact, "POST", path + "/streams", b'{"streams":["shop/secret"]}').status == 403
    acked = node.ask(None, "POST", path + "/ack", b"{}", {"Authorization": "Bearer made-up"})
    assert code(acked) not in ("not_authenticated", "credential_refused", "forbidden")
    assert node.ask(exact, "DELETE", path).status == 204


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        ("shop/eu/*", ["read:shop/eu/*"]),
        ("shop/**", ["read:shop", "read:_default/shop"]),
        ("shop/*", ["read:shop"]),
        ("*", ["read:_default"]),
        ("**", ["read:*"]),
        ("*/eu", ["read:*"]),
        ("shop/eu/1", ["read:shop/eu/1"]),
    ],
)
def test_a_pattern_needs_all_that_it_can_match(node: Guarded, pattern: str, allowed: list[str]) -> None:
    body = json.dumps({"type": "pull-wake", "pattern": pattern, "wake_stream": "waking/x"}).encode()
    path = SUBSCRIPTION.format("pattern")
    for less in [allowed[:at] + allowed[at + 1 :] for at in range(len(allowed))] + [["read:shop/x*"], ["read:shop/eu"]]:
        if less != allowed:
            assert node.ask(node.key("append:waking", *less), "PUT", path, body).status == 403
    assert node.ask(node.key("append:waking", *allowed), "PUT", path, body).status in (200, 201)
    node.ask(node.admin, "DELETE", path)


def test_a_router_is_there_for_whoever_could_have_made_it(node: Guarded) -> None:
    for name in ("shop/from", "shop/to"):
        node.call("PUT", f"/v0/topics/{name}")
    body = json.dumps({"source": "shop/from", "dest": "shop/to"}).encode()
    enough, less = node.key("read:shop/from", "append,create:shop/to"), node.key("read:shop", "append:shop")
    assert node.ask(less, "PUT", "/v0/routers/r", body).status == 403
    assert node.ask(enough, "PUT", "/v0/routers/r", body).status == 201
    for method in ("GET", "DELETE"):
        assert code(node.ask(less, method, "/v0/routers/r")) == code(node.ask(less, method, "/v0/routers/no")) != ""
    assert json.loads(node.ask(less, "GET", "/v0/routers").body)["routers"] == []
    assert len(json.loads(node.ask(enough, "GET", "/v0/routers").body)["routers"]) == 1
    assert node.ask(enough, "DELETE", "/v0/routers/r").status == 200


def test_a_subscription_is_never_of_whoever_says_not_who_he_is(node: Guarded) -> None:
    node.call("PUT", "/everybody")
    node.call("PUT", "/__headwater/buckets/everybody/public")
    until(lambda: node.ask(None, "GET", "/everybody/streams").status == 200)
    hook = {"type": "webhook", "pattern": "everybody/*", "webhook": {"url": "https://1.1.1.1/the-secret-path"}}
    body, path = json.dumps(hook).encode(), SUBSCRIPTION.format("hook")
    reader = node.key("read:everybody")
    assert node.ask(reader, "PUT", path, body).status == 201
    for asked in (path, SUBSCRIPTION.format("no")):
        for method, rest in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("POST", "/claim"), ("POST", "/streams")):
            answer = node.ask(None, method, asked + rest, body)
            assert (answer.status, code(answer)) == (401, "not_authenticated")
    asks = json.dumps({"prefix": "everybody/"}).encode()
    query = json.loads(node.ask(reader, "POST", "/__headwater/sign", asks).body)["query"]
    assert node.ask(None, "GET", f"/everybody/streams?{query}").status == 200
    for asked in (path, SUBSCRIPTION.format("no")):
        answer = node.ask(None, "GET", f"{asked}?{query}")
        assert (answer.status, code(answer)) == (403, "forbidden")
    assert node.ask(reader, "DELETE", path).status == 204


def test_without_the_token_of_a_wake_nobody_learns_whether_there_is_a_subscription(node: Guarded) -> None:
    node.call("PUT", "/v1/stream/shop/wakes")
    wishes = {
        "pulled": {"type": "pull-wake", "pattern": "shop/eu/*", "wake_stream": "shop/wakes"},
        "called": {"type": "webhook", "pattern": "shop/eu/*", "webhook": {"url": "https://1.1.1.1/"}},
    }
    for name, wish in wishes.items():
        node.call("PUT", SUBSCRIPTION.format(name), wish)
    said = json.dumps({"wake_id": "w", "generation": 1, "acks": [], "done": True}).encode()
    made_up = {"Authorization": "Bearer made-up"}
    for action in ("ack", "release", "callback"):
        for headers, status in ((made_up, 409), ({}, 401)):
            answers = [
                node.ask(None, "POST", f"{SUBSCRIPTION.format(name)}/{action}", said, headers)
                for name in (*wishes, "nowhere")
            ]
            assert {(answer.status, answer.body) for answer in answers} == {(status, answers[0].body)}
    for name in wishes:
        assert node.ask(node.admin, "DELETE", SUBSCRIPTION.format(name)).status == 204


def test_a_cycle_of_routers_names_no_topic_that_may_not_be_read(node: Guarded) -> None:
    way = ["mine/b", "hidden/x", "hidden/y", "mine/a"]
    for at in range(3):
        node.call("PUT", f"/v0/routers/way-{at}", {"source": way[at], "dest": way[at + 1]})
    body = json.dumps({"source": "mine/a", "dest": "mine/b"}).encode()
    for token, cycle in (
        (node.key("read,append,create:mine"), ["mine/a", "mine/b", None, "mine/a"]),
        (node.key("read:mine/a", "append,create:mine/b"), ["mine/a", "mine/b", None, "mine/a"]),
        (node.key("read,append,create:mine", "read:hidden"), ["mine/a", *way]),
        (node.admin, ["mine/a", *way]),
    ):
        answer = node.ask(token, "PUT", "/v0/routers/closing", body)
        assert (answer.status, code(answer)) == (409, "router_cycle")
        assert json.loads(answer.body)["error"]["detail"]["cycle"] == cycle
        assert (b"hidden" in answer.body) == (None not in cycle)
    for at in range(3):
        node.call("DELETE", f"/v0/routers/way-{at}")


def test_dead_letters_go_where_whoever_configures_the_queue_may_write(node: Guarded) -> None:
    token = node.key("read,append,create,manage:mine")
    for dead, status in (("shop/secret", 403), ("mine/dead", 201), ("shop%2Fsecret", 403)):
        body = json.dumps({"queue": {"dead_letter": dead}}).encode()
        assert node.ask(token, "PUT", f"/v0/topics/mine/jobs-{status}-{len(dead)}", body).status == status
    path = "/v0/topics/mine/jobs-201-9"
    for method in ("PATCH", "PUT"):
        body = json.dumps({"queue": {"dead_letter": "shop/eu"}}).encode()
        assert code(node.ask(token, method, path, body)) == "forbidden"


def test_a_public_bucket_may_be_read_until_it_is_made_anew(node: Guarded) -> None:
    node.call("PUT", "/news")
    assert node.ask(node.admin, "PUT", "/v1/stream/news/a", b"news", TEXT).status == 201
    assert node.ask(None, "GET", "/v1/stream/news/a?offset=-1").status == 401
    assert node.ask(node.key("read:news"), "PUT", "/__headwater/buckets/news/public").status == 403
    node.call("PUT", "/__headwater/buckets/news/public")
    until(lambda: node.ask(None, "GET", "/v1/stream/news/a?offset=-1").body == b"news")
    assert node.ask(None, "GET", "/news/streams").status == 200
    assert node.ask(None, "POST", "/v1/stream/news/a", b"x", TEXT).status == 401
    assert node.ask(None, "GET", "/v1/stream/news2/a").status == 401
    node.ask(node.admin, "DELETE", "/v1/stream/news/a")
    assert node.ask(node.admin, "DELETE", "/news").status == 204
    node.call("PUT", "/news")
    assert node.ask(node.admin, "PUT", "/v1/stream/news/a", b"secret", TEXT).status == 201
    until(lambda: node.ask(None, "GET", "/v1/stream/news/a?offset=-1").status == 401)
    assert node.ask(node.admin, "PUT", "/__headwater/buckets/nowhere/public").status == 404


def test_no_secret_is_told_anywhere(node: Guarded) -> None:
    made = node.made("read:shop")
    body = json.dumps({"stream": "shop/eu/1"}).encode()
    signed = json.loads(node.ask(made["token"], "POST", "/__headwater/sign", body).body)["signed"]
    node.ask(made["token"], "GET", "/v1/stream/shop/eu/1")
    node.ask(None, "GET", f"/v1/stream/shop/eu/1?signed={signed}")
    pages = [
        node.ask(node.admin, "GET", path).body
        for path in ("/__headwater/tokens", "/__headwater/config", "/metrics", "/__headwater/metrics", "/readyz")
    ]
    told = b"".join(pages) + node.node.stderr().encode()
    for secret in (made["token"][20:], node.admin[20:], signed.rpartition(".")[2]):
        assert len(secret) > 20 and secret.encode() not in told


def test_a_key_is_rotated_with_an_overlap(node: Guarded) -> None:
    old = node.made("read:shop", expires_in_s=3_600)
    answer = node.call("POST", f"/__headwater/tokens/{old['id']}/rotate", {"overlap_s": 600})
    assert answer["follows"] == old["id"] and answer["scopes"] == ["read:shop"]
    path = "/v1/stream/shop/eu/1?offset=-1"
    assert node.ask(old["token"], "GET", path).status == node.ask(answer["token"], "GET", path).status == 200
    assert node.call("GET", f"/__headwater/tokens/{old['id']}")["expires_at"] is not None
    again = node.call("POST", f"/__headwater/tokens/{answer['id']}/rotate", {"overlap_s": 0})
    until(lambda: node.ask(answer["token"], "GET", path).status == 401)
    assert node.ask(again["token"], "GET", path).status == 200
    assert node.ask(node.admin, "POST", f"/__headwater/tokens/{answer['id']}/rotate", b"{}").status == 400
    for bad in ({"name": "", "scopes": ["admin"]}, {"name": "x", "scopes": []}, {"name": "x", "scopes": ["all"]}):
        assert node.ask(node.admin, "POST", "/__headwater/tokens", json.dumps(bad).encode()).status == 400
