"""The audit log of a node: what it tells, who may read it, and that nobody writes into it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doors.s3p.client import OK, Client, Error, s3p_port
from tests.support.guarded import Guarded, bearer, code, guarded
from tests.support.node import HOST, Node
from tests.support.waiting import until

PATH = "/v1/stream/_headwater/audit"


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, id="one worker"), pytest.param(3, marks=pytest.mark.full, id="three workers")],
)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("node"), flags=("--workers", str(request.param))) as made:
        yield made


def told(node: Guarded) -> list[dict[str, Any]]:
    answer = node.ask(node.admin, "GET", f"{PATH}?offset=-1")
    return [] if answer.status == 404 else list(json.loads(answer.body))


def found(node: Guarded, **facts: object) -> list[dict[str, Any]]:
    """Records with these facts, as soon as there is one."""

    def matching() -> list[dict[str, Any]]:
        return [one for one in told(node) if all(one[name] == value for name, value in facts.items())]

    return list(until(matching, what=lambda: told(node)))


def id_of(token: str) -> str:
    return token.split("_")[1]


def test_the_life_of_a_key_is_told_and_never_the_key(node: Guarded) -> None:
    assert found(node, action="key.make", who_kind="server")[0]["what"].endswith("first-admin: admin")
    made = node.made("read:shop")
    (record,) = found(node, action="key.make", what=f"{made['id']} test: read:shop")
    assert (record["who_kind"], record["who_id"], record["who"]) == ("key", id_of(node.admin), "first-admin")
    assert (record["outcome"], record["code"], record["address"], record["door"]) == ("done", "201", HOST, "http")
    rotated = node.call("POST", f"/__headwater/tokens/{made['id']}/rotate", {})
    node.call("POST", "/__headwater/sign", {"stream": "shop/cart", "expires_in_s": 60})
    node.call("DELETE", f"/__headwater/tokens/{rotated['id']}")
    assert found(node, action="key.rotate", what=f"{made['id']} to {rotated['id']} test: read:shop")
    assert found(node, action="key.revoke", what=f"{rotated['id']} test: read:shop")
    assert found(node, action="url.sign")[0]["what"].startswith("read:shop/cart until ")
    log = json.dumps(told(node))
    for token in (node.admin, made["token"], rotated["token"]):
        assert token.rpartition("_")[2] not in log


def test_what_is_ended_is_told_with_the_request_and_what_was_only_written_is_not(node: Guarded) -> None:
    for number in range(3):
        node.ask(node.admin, "PUT", f"/v1/stream/ended/{number}", b"1", {"Content-Type": "text/plain"})
    for number in range(3):
        name = {"X-Request-Id": f"end-{number}"}
        answer = node.ask(node.admin, "DELETE", f"/v1/stream/ended/{number}", headers=name)
        assert answer.status == 204 and answer.header("x-request-id") == f"end-{number}"
        assert [one["what"] for one in found(node, request_id=f"end-{number}")] == [f"ended/{number}"]
    answer = node.ask(node.admin, "PUT", "/named-bucket")
    assert found(node, request_id=answer.header("x-request-id"))[0]["action"] == "bucket.make"
    assert node.ask(node.admin, "DELETE", "/v1/stream/ended/0").status == 404
    actions = [one["action"] for one in told(node) if one["what"] == "ended/0"]
    assert actions == ["stream.delete"]


def test_refusals_are_told_by_client_and_reason(node: Guarded) -> None:
    narrow = node.made("read:shop")
    answer = node.ask(narrow["token"], "POST", "/v1/stream/other/one", b"1")
    (record,) = found(node, outcome="denied", who_id=narrow["id"], code="forbidden")
    assert (record["action"], record["what"]) == ("post", "/v1/stream/other/one")
    assert record["needs"] == "append on the stream other/one"
    assert record["request_id"] == answer.header("x-request-id")
    node.ask("hw_made-up", "GET", "/v1/stream/other/two", headers={"X-Request-Id": "forged"})
    (record,) = found(node, request_id="forged")
    assert (record["code"], record["who_kind"], record["who_id"]) == ("credential_refused", "unknown", "")
    node.ask(None, "DELETE", "/__headwater/tokens/aaaaaaaaaaaaaaaa", headers={"X-Request-Id": "nobody"})
    (record,) = found(node, request_id="nobody")
    assert (record["action"], record["code"], record["needs"]) == (
        "key.revoke",
        "not_authenticated",
        "admin on everything",
    )
    assert "made-up" not in json.dumps(told(node))


def test_refusals_within_an_answer_and_hidden_ones_are_told(node: Guarded) -> None:
    narrow = node.made("append:shop")
    entries = json.dumps([{"stream": f"hidden/{number}", "records": [1]} for number in range(50)]).encode()
    assert node.ask(narrow["token"], "POST", "/__headwater/append", entries).status == 200
    assert sum(one["count"] for one in found(node, who_id=narrow["id"], action="post")) == 50
    wish = {"type": "pull-wake", "pattern": "hidden/*", "wake_stream": "hidden-wakes/x"}
    path = "/v1/stream/__ds/subscriptions/hidden"
    node.call("PUT", path, wish)
    hidden, missing = (node.ask(narrow["token"], "GET", one) for one in (path, path + "-not"))
    assert hidden.status == missing.status == 404 and hidden.body == missing.body
    assert {name.lower() for name, _ in hidden.headers} == {name.lower() for name, _ in missing.headers}
    (record,) = found(node, who_id=narrow["id"], action="get")
    assert (record["what"], record["code"]) == (path, "forbidden")
    node.call("DELETE", path)


def test_a_flood_of_forged_keys_is_a_handful_of_records(node: Guarded) -> None:
    with node.node.connect() as connection:
        for number in range(600):
            headers = bearer(f"hw_flood{number}")
            assert connection.request("GET", f"/v1/stream/flood/{number}", headers).status == 401
    flood = lambda: [one for one in told(node) if one["what"].startswith("/v1/stream/flood/")]  # noqa: E731
    until(lambda: sum(one["count"] for one in flood()) == 600, what=flood)
    seconds = {one["at"][:19] for one in flood()}
    assert len(flood()) <= 3 * (len(seconds) + 1)


def test_only_an_admin_does_more_than_read_it(node: Guarded) -> None:
    found(node, who_kind="server")
    everything = node.key("read,append,create,manage:*")
    ours = node.key("read,append,create,manage:_headwater", "manage:_headwater/audit")
    for token in (everything, ours):
        assert node.ask(token, "GET", f"{PATH}?offset=-1").status == 200
        for method, path, body in (
            ("POST", PATH, b'{"forged":true}'),
            ("POST", "/ds/_headwater/audit", b"{}"),
            ("POST", "/v1/stream/%5fheadwater%2Faudit", b"{}"),
            ("POST", "/v0/topics/_headwater/audit/records", b'{"records":[{"data":1}]}'),
            ("PUT", PATH, None),
            ("DELETE", PATH, None),
            ("DELETE", "/v0/topics/_headwater%2Faudit", None),
            ("PATCH", "/v0/topics/_headwater/audit", b'{"cap_records":1}'),
            ("POST", "/v0/topics/_headwater/audit/delete", b'{"before_seq":3}'),
            ("PUT", "/__headwater/buckets/_headwater/public", None),
            ("PUT", "/_headwater/audit/snapshot/00000000000000000000", b"x"),
            ("PUT", "/v0/routers/into", b'{"source":"shop/a","dest":"_headwater/audit"}'),
        ):
            answer = node.ask(token, method, path, body)
            assert code(answer) == "forbidden", (method, path, answer)
        entry = json.dumps([{"stream": "_headwater/audit", "records": [1]}]).encode()
        assert json.loads(node.ask(token, "POST", "/__headwater/append", entry).body)[0]["status"] == 403
    assert node.ask(node.key("read:_headwater/metrics"), "GET", PATH).status == 403
    assert node.ask(node.key("read:_headwater/audit"), "GET", PATH).status == 200
    assert not any("forged" in one for one in told(node))


def test_it_is_kept_as_long_as_the_setting_says_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    with guarded(tmp_path, memory=False) as made:
        node = made.node
        made.call("PUT", "/first-bucket")
        node.terminate()  # at once: what was noted is appended before the end
        node.start()
        assert found(made, what="first-bucket")
        topic = "/v0/topics/_headwater/audit"
        assert made.call("GET", topic)["config"]["ttl_ms"] == 400 * 86_400_000
        made.call("PATCH", topic, {"cap_bytes": 1 << 30})
        node.flags = [*node.flags, "--audit-age-ms", "7200000"]
        node.restart()
        made.call("PUT", "/second-bucket")
        assert found(made, what="second-bucket")
        config = made.call("GET", topic)["config"]
        assert (config["ttl_ms"], config["cap_bytes"]) == (7_200_000, 1 << 30)
        ids = [one["id"] for one in told(made)]
        assert len(ids) == len(set(ids))
        made.ask(made.admin, "DELETE", PATH)
        assert found(made, action="stream.delete", what="_headwater/audit")[0]["who"] == "first-admin"
        assert made.call("GET", topic)["config"]["ttl_ms"] == 7_200_000


def test_it_is_off_where_authentication_is_off_unless_asked_for(tmp_path: Path) -> None:
    with Node.started(tmp_path / "off", memory=True) as off:
        off.request("PUT", "/some-bucket")
        assert off.request("GET", "/_headwater/streams").status == 404
    with guarded(tmp_path / "told-off", flags=("--audit", "off")) as quiet:
        quiet.call("PUT", "/some-bucket")
        assert quiet.ask(quiet.admin, "GET", PATH).status == 404
    with Node.started(tmp_path / "on", memory=True, flags=("--audit", "on")) as on:
        asked = Guarded(on, "none")
        on.request("PUT", "/some-bucket")
        (record,) = found(asked, what="some-bucket")
        assert (record["who_kind"], record["who"], record["address"]) == ("open", "everyone", HOST)


@pytest.mark.parametrize("workers", ["1", pytest.param("3", marks=pytest.mark.full)])
def test_it_tells_of_s3p(tmp_path: Path, workers: str) -> None:
    with guarded(tmp_path, flags=("--workers", workers, "--s3p", f"{HOST}:0")) as made:
        narrow = made.made("read:shop")
        with Client(s3p_port(made.node)) as client:
            assert isinstance(client.delete(b"shop/a"), Error)
            assert isinstance(client.call(b"AUTH", b"hw_made-up"), Error)
            assert client.call(b"AUTH", narrow["token"].encode()) == OK
            assert isinstance(client.append(b"shop/a", b"1"), Error)
            assert client.call(b"AUTH", made.admin.encode()) == OK
            client.create(b"shop/a")
            assert not isinstance(client.delete(b"shop/a"), Error)
        s3p = {"door": "s3p", "address": HOST}
        assert found(made, **s3p, code="not_authenticated")[0]["action"] == "delete"
        (record,) = found(made, **s3p, code="credential_refused")
        assert (record["action"], record["who_kind"]) == ("auth", "unknown")
        assert found(made, **s3p, code="forbidden", who_id=narrow["id"])[0]["what"] == "shop/a"
        assert found(made, **s3p, outcome="allowed")[0]["what"] == "shop/a"
        assert "made-up" not in json.dumps(told(made))
