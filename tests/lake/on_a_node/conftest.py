"""What these tests share: a quick disk for groups, one S3 for the run, and a proxy before it.
It decides nothing about a test's content."""

from __future__ import annotations

from tests.engine.conftest import quick_disk as quick_disk
from tests.lake.conftest import proxy as proxy
from tests.lake.conftest import s3 as s3
