"""`headwater bucket schema` against a real node: shown, put where it is of a version, and removed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.node import Node


def ran(node: Node, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headwater", "bucket", "schema", *words]
    environ = {"PATH": "/usr/bin:/bin", "HEADWATER_URL": node.url}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, input=stdin)


def test_a_schema_is_put_shown_and_removed(tmp_path: Path) -> None:
    document = {"type": "object", "properties": {"n": {"type": "integer"}}}
    (tmp_path / "schema.json").write_text(json.dumps(document))
    with Node.started(tmp_path / "node") as node:
        node.request("PUT", "/orders")
        missing = ran(node, "orders")
        assert missing.returncode == 1 and "has no schema" in missing.stderr
        made = ran(node, "orders", "--put", str(tmp_path / "schema.json"), "--if-version", "0")
        assert (made.returncode, made.stdout) == (0, "") and "version 1" in made.stderr
        assert json.loads(ran(node, "orders").stdout) == document
        stale = ran(node, "orders", "--put", "-", "--if-version", "0", stdin=json.dumps(document))
        assert stale.returncode == 1 and "present state" in stale.stderr
        wrong = ran(node, "orders", "--put", "-", stdin='{"type": "object", "properties": {"n": {"type": "int"}}}')
        assert wrong.returncode == 1 and "/properties/n/type" in wrong.stderr
        assert ran(node, "orders", "--put", "nowhere.json").returncode == 2
        assert ran(node, "orders", "--if-version", "1").returncode == 2
        assert ran(node, "orders", "--remove").returncode == 0
        assert ran(node, "orders").returncode == 1
