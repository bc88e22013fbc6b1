"""Secrets are compared in constant time, everywhere: by what the modules say, not by a clock."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.cluster import introduction
from headwater.security import keys, signed_urls
from headwater.subscriptions.keys import Keys

PACKAGE = Path(headwater.__file__).parent
ROOMS = ("security", "subscriptions", "cluster", "doors")
SECRET = re.compile(r"(^|_)(secret|token|password|credential|authorization|proof|mac|signature|hash)$")
HARMLESS = {
    # The same connection said it before: whoever sends it knows both.
    ("doors/http/access.py", "raw == identity.credential"),
}


def compared(source: str) -> Iterator[str]:
    """Comparisons with == and the like of what has a secret's name. Whether it is there at all tells nothing."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        if all(isinstance(one, ast.Is | ast.IsNot | ast.Lt | ast.Gt | ast.LtE | ast.GtE) for one in node.ops):
            continue
        if any(isinstance(side, ast.Constant) and not isinstance(side.value, bytes) for side in sides):
            continue
        if any(isinstance(side, ast.Call) and ast.unparse(side.func) == "len" for side in sides):
            continue
        names = [one.id for side in sides for one in ast.walk(side) if isinstance(one, ast.Name)]
        names += [one.attr for side in sides for one in ast.walk(side) if isinstance(one, ast.Attribute)]
        if any(SECRET.search(name) for name in names):
            yield ast.unparse(node)


def test_no_secret_is_compared_byte_by_byte() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), text)
        for room in ROOMS
        for path in (PACKAGE / room).rglob("*.py")
        for text in compared(path.read_text())
    }
    assert found == HARMLESS


@pytest.mark.parametrize("check", [keys.is_it, signed_urls.checked, Keys.holds, introduction.wanted_door])
def test_what_judges_a_credential_compares_digests(check: object) -> None:
    assert "hmac.compare_digest" in inspect.getsource(check)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("given == secret", 1),
        ("self._token_secret != x", 1),
        ("a.hash in (b, c)", 1),
        ("mac(x) == found[4]", 1),
        ("token is None", 0),
        ("hmac.compare_digest(a.hash, b)", 0),
        ("secret == ''", 0),
        ("signature == b'x'", 1),
        ("len(tokens_left) > 3", 0),
        ("name == other", 0),
    ],
)
def test_the_rule_finds_what_it_is_about(source: str, count: int) -> None:
    assert len(list(compared(source))) == count
