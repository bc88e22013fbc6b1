"""`headwater token …` against a real node: keys are made, listed, rotated and revoked, and printed once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.security.guard import file_key_of
from tests.support.guarded import Guarded, code, guarded
from tests.support.http import request
from tests.support.node import Node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("node")) as made:
        made.call("PUT", "/v1/stream/shop/cart")
        yield made


def ran(node: Guarded, *words: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "HEADWATER_URL": node.node.url}
    if token is not None:
        environ["HEADWATER_TOKEN"] = token
    command = [sys.executable, "-m", "headwater", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)


def test_a_key_is_made_listed_rotated_and_revoked(node: Guarded) -> None:
    made = ran(node, "token", "create", "reader", "--scope", "read:shop/*", "--expires", "90d", token=node.admin)
    assert made.returncode == 0 and "shown this once" in made.stderr
    key = made.stdout.strip()
    assert node.ask(key, "HEAD", "/v1/stream/shop/cart").status == 200
    listed = ran(node, "token", "list", token=node.admin)
    assert "reader" in listed.stdout and "read:shop" in listed.stdout and key not in listed.stdout
    new = ran(node, "token", "rotate", "reader", "--overlap", "0s", token=node.admin).stdout.strip()
    assert new != key and node.ask(new, "HEAD", "/v1/stream/shop/cart").status == 200
    assert node.ask(key, "HEAD", "/v1/stream/shop/cart").status == 401
    ended = ran(node, "token", "revoke", "reader", "--json", token=node.admin)
    assert json.loads(ended.stdout)["state"] == "revoked"
    assert node.ask(new, "HEAD", "/v1/stream/shop/cart").status == 401
    assert ran(node, "token", "revoke", "reader", token=node.admin).returncode == 2


def test_commands_send_the_key_that_they_were_given(node: Guarded, tmp_path: Path) -> None:
    key = node.key("read:shop")
    refused = ran(node, "stream", "read", "shop/cart")
    assert refused.returncode == 1 and "needs read" in refused.stderr
    assert ran(node, "stream", "read", "shop/cart", token=key).returncode == 0
    assert ran(node, "topic", "show", "shop/cart", token=key).returncode == 0
    (tmp_path / "key").write_text(key + "\n")
    assert ran(node, "--token", f"@{tmp_path / 'key'}", "stream", "read", "shop/cart").returncode == 0
    assert ran(node, "--token", "@nowhere", "stream", "read", "shop/cart").returncode == 2
    narrow = ran(node, "token", "list", token=key)
    assert narrow.returncode == 1 and "admin key" in narrow.stderr and key not in narrow.stderr + narrow.stdout
    assert ran(node, "token", "create", "x", "--scope", "all", token=node.admin).returncode == 1
    assert ran(node, "token", "create", "x", "--scope", "admin", "--expires", "soon", token=node.admin).returncode == 2


def test_a_signed_url_is_printed_ready_to_be_put_behind_one(node: Guarded) -> None:
    signed = ran(node, "token", "sign", "shop/cart", "--expires", "10m", token=node.key("read:shop")).stdout.strip()
    assert request(node.node.port, "GET", f"/v1/stream/shop/cart?offset=-1&{signed}").status == 200
    prefix = ran(node, "token", "sign", "--prefix", "shop/c", token=node.key("read:shop")).stdout.strip()
    assert request(node.node.port, "GET", f"/v1/stream/shop/cart?offset=-1&{prefix}").status == 200
    assert ran(node, "token", "sign", token=node.admin).returncode == 2


def test_an_operator_who_is_locked_out_comes_in_by_a_file(node: Guarded, tmp_path: Path) -> None:
    new = ran(node, "token", "new").stdout.strip()
    assert file_key_of(new) is not None
    file = tmp_path / "key"
    file.write_text(new)
    flags = ("--auth", "on", "--admin-key-file", str(file))
    with Node.started(tmp_path / "node", memory=True, flags=flags) as server:
        assert "first admin key" not in server.output()
        found = Guarded(server, new)
        made = found.made("read:a")
        assert found.ask(made["token"], "GET", "/v1/stream/a/x").status == 404
        assert code(found.ask(new[:-1], "GET", "/__headwater/tokens")) == "credential_refused"
        assert found.call("POST", "/__headwater/sign", {"stream": "a/x"})["query"]
        assert file.stat().st_mode & 0o077 == 0
    file.write_text("not a key")
    failed = Node(tmp_path / "other", memory=True, flags=flags)
    with pytest.raises(Exception, match="holds no key"):
        failed.start()
