"""What tests of the pipeline share: one Spark session for the whole run, nodes, and a real standalone cluster.
It decides nothing about a test's content and leaves no process behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import class_archive
from tests.support.node import Node
from tests.support.spark import JAVA_QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import Cluster

QUICK = ["--flush-interval-ms", "600000", "--checkpoint-interval-ms", "500"]
"""Nothing settles by itself: tests say when."""


@pytest.fixture(scope="session", autouse=True)
def small_jvms() -> Iterator[None]:
    """For every JVM that a test has started, by whatever command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", f"{JAVA_QUICK} -Dspark.sql.shuffle.partitions=2")
        patch.setenv("SPARK_LAUNCHER_OPTS", class_archive.QUICK)  # what Spark asks for the command line of each JVM
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tests.support.spark import local_session

    session = local_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from tests.support.spark import Cluster

    with Cluster.started(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=QUICK) as running:
        yield running
