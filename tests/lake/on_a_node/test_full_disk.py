"""A local lake whose disk is full: appends go on until the ceiling, nothing is lost, and room heals it.
The disk is a small tmpfs where one may be mounted; elsewhere these tests are skipped."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lake.on_a_node.surface import TEXT, append, assert_table_is_http, content, create, flush, metric, path_of
from tests.lake.on_a_node.test_s3 import eventually, ready
from tests.support.node import Node

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]

DISK_BYTES = 2 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode(errors='replace').strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_of_the_lake_loses_nothing_and_room_heals_it(small_disk: Path, tmp_path: Path) -> None:
    place = small_disk / "lake"
    ballast = small_disk / "ballast"
    small = ("--flush-bytes", "64KiB", "--lake-file-bytes", "64KiB", "--hot-bytes-max", "4MiB")
    times = ("--flush-interval-ms", "100", "--checkpoint-interval-ms", "50")
    with Node.started(tmp_path / "node", flags=("--lake", str(place), *small, *times)) as node:
        with node.connect() as connection:
            create(connection, "disk/a")
            append(connection, "disk/a", b"before")
            flush(node)
            with ballast.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"." * 4096)
                except OSError:
                    pass
            accepted, refusal = 0, None
            while refusal is None and accepted < 200:
                # Bytes that do not compress: they have to fit when there is room again, and not before.
                answer = connection.request("POST", path_of("disk/a"), TEXT, bytes(range(256)) * 200)
                if answer.status == 204:
                    accepted += 1
                else:
                    refusal = answer
            assert refusal is not None and refusal.status == 503, refusal
            assert (refusal.header("retry-after") or "").isdigit(), refusal
            eventually(lambda: ready(node).status == 503, lambda: ready(node))
            assert "disk is full" in str(ready(node).json()), ready(node).body
            expected = b"before" + bytes(range(256)) * 200 * accepted
            assert content(node, "disk/a") == expected
            ballast.unlink()
            eventually(lambda: metric(node, "hot_bytes") == 0, lambda: node.output())
            eventually(lambda: ready(node).status == 200, lambda: ready(node))
        node.restart()
        assert content(node, "disk/a") == expected
        assert_table_is_http(node, ("disk/a",), place)
