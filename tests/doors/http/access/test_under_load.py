"""Keys and signing keys that change while producers write: no request with a good credential fails."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.doors.http.access.waiting import until
from tests.support.guarded import Guarded, bearer, guarded

JSON = {"Content-Type": "application/json"}
OLD, NEW = (RSAKey.generate_key(2048, {"kid": kid}) for kid in ("old", "new"))


class Writer:
    """A producer with a credential that may be exchanged; it tells of every answer that is no success."""

    def __init__(self, node: Guarded, name: str, token: str) -> None:
        self.token = token
        self.failed: list[object] = []
        self.count = 0
        self._node = node
        self._path = f"/v1/stream/load/{name}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._node.node.connect(60.0) as connection:
            while not self._stop.is_set():
                answer = connection.request("POST", self._path, {**JSON, **bearer(self.token)}, b"1")
                if answer.status not in (200, 204):
                    self.failed.append((answer.status, answer.body))
                self.count += 1

    def passes(self, more: int = 20) -> None:
        wanted = self.count + more
        until(lambda: self.count >= wanted)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60.0)


@contextmanager
def writing(node: Guarded, tokens: list[str]) -> Iterator[list[Writer]]:
    writers = []
    try:
        for number, token in enumerate(tokens):
            node.call("PUT", f"/v1/stream/load/{number}")
            writers.append(Writer(node, str(number), token))
        yield writers
    finally:
        for writer in writers:
            writer.stop()


def published(*keys: RSAKey) -> str:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]})


def token(key: RSAKey) -> str:
    claims = {"iss": "id", "aud": "headwater", "sub": "p", "exp": int(time.time()) + 3_600, "scope": "append:load"}
    return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key, ["RS256"])


def asked(node: Guarded, key: RSAKey) -> int:
    return node.ask(token(key), "POST", "/v1/stream/load/0", b"1").status


@pytest.fixture(scope="module", params=[1, 3], ids=["one worker", "three workers"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("node")
    (folder / "keys.json").write_text(published(OLD))
    flags = ("--jwt-keys", str(folder / "keys.json"), "--jwt-issuer", "id", "--jwt-audience", "headwater")
    with guarded(folder, flags=("--workers", str(request.param), *flags)) as made:
        yield made


def test_no_good_request_fails_while_keys_are_rotated_made_and_revoked(node: Guarded) -> None:
    made = [node.made("append:load") for _ in range(3)]
    with writing(node, [key["token"] for key in made]) as writers:
        for _ in range(3):
            for number, writer in enumerate(writers):
                writer.passes()
                new = node.call("POST", f"/__headwater/tokens/{made[number]['id']}/rotate", {"overlap_s": 600})
                writer.token = new["token"]
                writer.passes()
                node.call("DELETE", f"/__headwater/tokens/{made[number]['id']}")
                made[number] = new
                spare = node.made("read:load")
                node.call("DELETE", f"/__headwater/tokens/{spare['id']}")
        for writer in writers:
            writer.passes()
        assert [writer.failed for writer in writers] == [[], [], []]
        # And a revoked key is refused on connections that it has used all the time.
        node.call("DELETE", f"/__headwater/tokens/{made[0]['id']}")
        until(lambda: bool(writers[0].failed))
        writers[1].passes()
        assert writers[1].failed == [] and writers[0].failed[0][0] == 401  # type: ignore[index]


def test_no_good_request_fails_while_signing_keys_are_rotated(node: Guarded) -> None:
    keys = node.node.directory / "keys.json"
    with writing(node, [token(OLD)] * 3) as writers:
        for writer in writers:
            writer.passes()
        keys.write_text(published(OLD, NEW))
        until(lambda: all(asked(node, NEW) in (200, 204) for _ in range(12)))
        for writer in writers:
            writer.token = token(NEW)
            writer.passes()
        keys.write_text(published(NEW))
        until(lambda: all(asked(node, OLD) == 401 for _ in range(12)))
        for writer in writers:
            writer.passes()
        assert [writer.failed for writer in writers] == [[], [], []]


def test_keys_outlive_a_restart_and_no_second_first_key_is_made(tmp_path: Path) -> None:
    with guarded(tmp_path, memory=False) as made:
        made.call("PUT", "/kept")
        made.call("PUT", "/__headwater/buckets/kept/public")
        key, gone = made.key("read:kept"), made.made("admin")
        made.call("DELETE", f"/__headwater/tokens/{gone['id']}")
        made.node.restart()
        assert "first admin key" not in made.node.output()
        assert made.ask(key, "GET", "/kept").status == made.ask(made.admin, "GET", "/__headwater/tokens").status == 200
        assert made.ask(gone["token"], "GET", "/__headwater/tokens").status == 401
        assert made.ask(None, "GET", "/kept/streams").status == 200
        assert made.node.terminate() == 0
