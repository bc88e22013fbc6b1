"""Programs that a local cluster needs: found, or named with what to install."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from headwater.cluster_dev.binaries import NATS_SERVER, PACKAGES, WEED, program, require_nats_client
from headwater.cluster_dev.child import CannotRun
from headwater.cluster_dev.local_cluster import LocalCluster


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    monkeypatch.setenv("PATH", str(bin_directory))
    return bin_directory


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_program_is_told_with_its_package(nothing_installed: Path, name: str) -> None:
    with pytest.raises(CannotRun, match=rf"{name} is not installed .*: pip install {PACKAGES[name]}$"):
        program(name)


def test_a_program_is_found_on_path(nothing_installed: Path) -> None:
    found = nothing_installed / WEED
    found.touch(0o755)
    assert program(WEED) == str(found)


def test_a_program_beside_python_comes_first(nothing_installed: Path, tmp_path: Path) -> None:
    (nothing_installed / WEED).touch(0o755)
    beside = tmp_path / "venv" / "bin" / WEED
    beside.parent.mkdir(parents=True)
    beside.touch(0o755)
    assert program(WEED) == str(beside)


def test_a_missing_nats_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> Any:
        assert name == "nats"
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(CannotRun, match="the NATS client is not installed: pip install nats-py"):
        require_nats_client()


def test_a_cluster_asks_only_for_what_it_needs(nothing_installed: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match=NATS_SERVER):
        LocalCluster(tmp_path / "a", s3=False)
    with pytest.raises(CannotRun, match=WEED):
        LocalCluster(tmp_path / "a", log="objects")
    assert not (tmp_path / "a").exists()
    LocalCluster(tmp_path / "a", log="objects", s3=False).close()
