"""Clients and https: whom they trust, what they are told when they do not, and a certificate of their own."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli.main import app
from headwater.client import AsyncHeadwater, Headwater, TlsFiles, Unavailable
from headwater.client.retries import NO_RETRIES
from headwater.spark.node import Node as SparkNode
from headwater.spark.node import NodeError
from tests.support.certificates import Authority
from tests.support.node import HOST, Node


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[str]:
    pair = authority.server()
    flags = ("--tls-client-ca", str(authority.file), "--tls-client-certificates", "optional")
    with Node.started(tmp_path_factory.mktemp("node"), memory=True, flags=(*pair.flags, *flags)) as node:
        yield f"https://{HOST}:{node.port}"
        assert "Traceback" not in node.stderr(), node.output()


@pytest.fixture
def files(authority: Authority) -> TlsFiles:
    client = authority.client("reader")
    return TlsFiles(str(authority.file), str(client.certificate), str(client.key))


def test_the_blocking_client_and_the_awaited_one_speak_https(url: str, files: TlsFiles) -> None:
    with Headwater(url, tls=files) as client:
        client.stream("spoken").create(content_type="application/json")
        for n in range(3):
            client.stream("spoken").append({"n": n})

    async def read() -> list[object]:
        async with AsyncHeadwater(url, tls=files) as awaited:
            await awaited.stream("spoken").append({"n": 3})
            return [message async for chunk in awaited.stream("spoken").read() for message in chunk.messages]

    assert len(asyncio.run(read())) == 4


def failure(url: str, tls: TlsFiles) -> str:
    with Headwater(url, tls=tls, retries=NO_RETRIES) as client, pytest.raises(Unavailable) as why:
        client.stream("unseen").head()

    async def awaited() -> str:
        async with AsyncHeadwater(url, tls=tls, retries=NO_RETRIES) as other:
            with pytest.raises(Unavailable) as again:
                await other.stream("unseen").head()
            return str(again.value)

    assert asyncio.run(awaited()) == str(why.value)
    return str(why.value)


def test_each_failure_says_what_to_do(url: str, authority: Authority, tmp_path: Path) -> None:
    assert "HEADWATER_CA_FILE" in failure(url, TlsFiles())
    assert "HEADWATER_CA_FILE" in failure(url, TlsFiles(str(Authority(tmp_path, "another").file)))
    assert "missing" in failure(url, TlsFiles(str(tmp_path / "missing")))
    junk = tmp_path / "junk"
    junk.write_text("junk")
    assert str(junk) in failure(url, TlsFiles(str(junk)))
    assert str(junk) in failure(url, TlsFiles(str(authority.file), str(junk)))


def test_a_certificate_for_another_name_is_told(authority: Authority, tmp_path: Path) -> None:
    pair = authority.server("elsewhere", "elsewhere.example")
    with Node.started(tmp_path, memory=True, flags=pair.flags) as node:
        said = failure(f"https://{HOST}:{node.port}", TlsFiles(str(authority.file)))
        assert f"is not for {HOST}" in said


def test_plain_http_to_an_address_with_tls_and_the_other_way_round_are_told(url: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["stream", "ls", "--url", url.replace("https", "http")])
    assert found.exit_code == 1 and "https://" in found.output
    with Node.started(tmp_path, memory=True) as plain:
        found = CliRunner().invoke(app, ["stream", "ls", "--url", f"https://{HOST}:{plain.port}"])
        assert found.exit_code == 1 and "does not speak TLS" in found.output


def test_the_command_line_and_spark_take_the_files_from_the_environment(
    url: str, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWATER_CA_FILE", raising=False)
    with pytest.raises(NodeError, match="HEADWATER_CA_FILE"):
        SparkNode(url, patience_s=0).groups()
    names = ("HEADWATER_CA_FILE", "HEADWATER_CLIENT_CERTIFICATE", "HEADWATER_CLIENT_KEY")
    for name, path in zip(names, files, strict=True):
        monkeypatch.setenv(name, path)
    made = CliRunner().invoke(app, ["stream", "create", "by-hand", "--url", url])
    assert made.exit_code == 0, made.output
    node = SparkNode(url)
    for name in names:
        monkeypatch.delenv(name)
    assert SparkNode(url, tls=files).groups() == pickle.loads(pickle.dumps(node)).groups() == [0]
