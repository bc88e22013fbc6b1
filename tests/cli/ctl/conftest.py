"""What the tests of `headwater ctl` share: a pretended cluster, and commands typed against it.

Waits are short, so that a test takes as long as what it tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from headwater.cli.ctl import cluster as asking
from headwater.cli.ctl import common, verify
from headwater.cli.main import app
from tests.cli.ctl.pretended import Pretended, pretended


class Typed:
    """Runs `headwater ctl …` against a cluster."""

    def __init__(self, cluster: Pretended) -> None:
        self.cluster = cluster

    def __call__(self, *args: str, code: int = 0, url: str | None = None) -> Result:
        environment = {"HEADWATER_URL": self.cluster.urls if url is None else url}
        result = CliRunner().invoke(app, ["ctl", *args], env=environment)
        assert result.exit_code == code, result.output
        return result


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    monkeypatch.setattr(common, "LOOK_S", 0.01)
    monkeypatch.setattr(verify, "LOOK_S", 0.01)
    monkeypatch.setattr(asking, "AGAIN_S", 0.01)
    with pretended() as cluster:
        yield cluster


@pytest.fixture
def ctl(cluster: Pretended) -> Typed:
    return Typed(cluster)
