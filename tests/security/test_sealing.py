"""The node's own secrets, encrypted with the operator's key: taken over, rotated, and refused without it."""

from __future__ import annotations

import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.config import Settings
from headwater.ports import SystemRng
from headwater.security import url_key
from headwater.security.kept_secret import kept_secret
from headwater.security.name_hash import NameHash
from headwater.security.sealing import NOT_SEALED, Sealing, sealing_of
from headwater.start_refused import CannotStart
from headwater.subscriptions.keys import Keys
from tests.support.node import Node, NotReady

OLD, NEW = "o" * 43, "n" * 43
RNG = SystemRng()
SECRETS: list[tuple[str, Callable[[Path, Sealing], object]]] = [
    ("webhook-keys", lambda folder, sealing: Keys.kept(folder, RNG, sealing).jwks()),
    ("url-key", lambda folder, sealing: url_key.kept(folder, RNG, sealing)),
    ("receipt-key", lambda folder, sealing: NameHash.kept(folder, RNG, sealing).of("shop/1")),
]


def key_file(folder: Path, *lines: str) -> Path:
    path = folder / "secrets-key"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(("name", "kept"), SECRETS)
def test_every_secret_is_taken_over_and_encrypted_and_stays_the_same(
    name: str, kept: Callable[[Path, Sealing], object], tmp_path: Path
) -> None:
    first = kept(tmp_path, NOT_SEALED)
    plain = (tmp_path / name).read_text()
    for lines in ([OLD], [OLD], [NEW, OLD], [NEW]):
        assert kept(tmp_path, Sealing(lines)) == first
        text = (tmp_path / name).read_text()
        assert not any(line in text for line in plain.splitlines()[1:])
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("name", "kept"), SECRETS)
def test_a_new_secret_is_never_on_disk_as_it_is(
    name: str, kept: Callable[[Path, Sealing], object], tmp_path: Path
) -> None:
    first = kept(tmp_path, Sealing([OLD]))
    sealed = (tmp_path / name).read_text()
    assert sealed.startswith("headwater-sealed 1 ") and OLD not in sealed
    assert kept(tmp_path, Sealing([OLD])) == first and (tmp_path / name).read_text() == sealed


def test_without_the_key_or_with_another_one_it_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "url-key"
    url_key.kept(tmp_path, RNG, Sealing([OLD]))
    before = path.read_text()
    with pytest.raises(CannotStart, match=r"url-key is encrypted: give the secrets_key_file"):
        url_key.kept(tmp_path, RNG)
    with pytest.raises(CannotStart, match=r"not in /keys: put that key there too"):
        url_key.kept(tmp_path, RNG, Sealing([NEW], "/keys"))
    assert path.read_text() == before


def test_what_is_sealed_is_bound_to_its_name_and_cannot_be_changed(tmp_path: Path) -> None:
    sealing = Sealing([OLD])
    sealed = sealing.seal("url-key", "text", RNG)
    assert sealing.open("url-key", sealed, "x") == ("text", True)
    for changed in (sealed[:-6] + "AAAA=\n", sealed[:-3] + "\n", sealed.replace("\n", "\nAA", 1), sealed[:40]):
        with pytest.raises(CannotStart, match=r"damaged|not in"):
            sealing.open("url-key", changed, "x")
    with pytest.raises(CannotStart, match="damaged"):
        sealing.open("webhook-keys", sealed, "x")


def test_processes_that_encrypt_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    kept_secret(path, "the secret\n", NOT_SEALED, RNG)
    with ThreadPoolExecutor(8) as pool:
        for lines in ([OLD], [NEW, OLD]):
            sealing = Sealing(lines)
            found = list(pool.map(lambda _: kept_secret(path, "another\n", sealing, RNG), range(64)))  # noqa: B023
            assert set(found) == {"the secret\n"}
    assert kept_secret(path, "another\n", Sealing([NEW]), RNG) == "the secret\n"
    assert [one.name for one in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "holds 0 keys"),
        ([""], "holds 0 keys"),
        (["short"], "fewer than 32"),
        ([OLD, "short"], "fewer than 32"),
        ([OLD] * 17, "holds 17 keys"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_refused(lines: list[str], why: str, tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=why) as refused:
        sealing_of(Settings(secrets_key_file=str(key_file(tmp_path, *lines))))
    assert "openssl rand" in str(refused.value) and OLD not in str(refused.value)


def test_a_key_file_that_is_not_there_or_no_text_is_refused_and_one_that_others_may_read_is_closed(
    tmp_path: Path,
) -> None:
    with pytest.raises(CannotStart, match="No such file"):
        sealing_of(Settings(secrets_key_file=str(tmp_path / "none")))
    (tmp_path / "bytes").write_bytes(b"\xff" * 40)
    with pytest.raises(CannotStart, match="it is no text"):
        sealing_of(Settings(secrets_key_file=str(tmp_path / "bytes")))
    path = key_file(tmp_path, OLD)
    path.chmod(0o644)
    sealing_of(Settings(secrets_key_file=str(path)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("workers", ["1", pytest.param("3", marks=pytest.mark.full)])
def test_a_node_encrypts_what_it_had_and_starts_with_no_other_key(tmp_path: Path, workers: str) -> None:
    jwks = "/v1/stream/__ds/jwks.json"
    auth = ("--auth", "on", "--workers", workers)
    with Node.started(tmp_path, flags=auth) as node:
        plain = {name: (node.data_directory / name).read_text() for name, _ in SECRETS}
        shown = node.request("GET", jwks).body
        node.terminate()
        node.flags = [*auth, "--secrets-key-file", str(key_file(tmp_path, OLD))]
        node.start()
        assert node.request("GET", jwks).body == shown
        for name, text in plain.items():
            sealed = (node.data_directory / name).read_text()
            assert sealed.startswith("headwater-sealed 1 ") and text.splitlines()[-1] not in sealed
        node.terminate()
        key_file(tmp_path, NEW)
        with pytest.raises(NotReady, match="put that key there too"):
            node.start()
        key_file(tmp_path, NEW, OLD)
        node.start()
        assert node.request("GET", jwks).body == shown
        assert OLD not in node.output() + node.stderr()
        node.terminate()
        key_file(tmp_path, NEW)
        node.start()
        assert node.request("GET", jwks).body == shown
        node.terminate()
        node.flags = list(auth)
        with pytest.raises(NotReady, match="give the secrets_key_file"):
            node.start()
