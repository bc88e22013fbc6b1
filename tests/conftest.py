"""What every test run shares: Hypothesis' profile, and which tests need strace.
It starts no server and decides nothing about any test's content."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from tests.support.faults import why_not_traceable

# Machines differ too much for a deadline per example; a new seed per run would make a red build unrepeatable.
settings.register_profile("headwater", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headwater")

# The tests start hundreds of processes; each would compile the product again, which doubles the time of its start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "traced: needs strace to be able to inject faults on this machine")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("traced"):
        reason = why_not_traceable()
        if reason is not None:
            pytest.skip(reason)
