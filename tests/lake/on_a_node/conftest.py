"""What these tests share: a quick disk for groups, beside what all tests of the lake share.
It decides nothing about a test's content."""

from __future__ import annotations

from tests.engine.conftest import quick_disk as quick_disk
