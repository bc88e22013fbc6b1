"""`python -m tests.lake.measure`: prints what puts, commits and cold reads cost here, and what each codec would.
Medians of one run; for a person to read. It asserts nothing and is no test."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.lake import writer
from headwater.lake.cache import MemoryCache
from headwater.lake.local import LocalStore
from headwater.lake.reader import Reader
from headwater.lake.s3 import S3Store
from headwater.lake.store import MemoryStore, ObjectStore
from headwater.lake.table import LakeTable
from headwater.model.extents import Run
from tests.lake.rows import run
from tests.lake.test_table import NOW_MS, fake
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, seaweed, weed_binary


def json_runs(streams: int, records: int, size: int) -> list[Run]:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(2_000)]

    def one(index: int) -> bytes:
        text = " ".join(rng.choices(words, k=max(1, size // 7)))
        return f'{{"id":{index},"user":"user-{rng.randint(0, 999)}","text":"{text}'.encode()[: size - 2] + b'"}'

    return [
        run(f"bucket/{number:06d}", number, [one(index) for index in range(records)], position=number * 1_000)
        for number in range(streams)
    ]


def median_ms(act: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


class Heartbeat:
    """How long a thread that only wants the GIL has to wait for it, meanwhile."""

    def __enter__(self) -> Heartbeat:
        self._gaps: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()
        return self

    def _beat(self) -> None:
        while not self._stop.is_set():
            began = time.perf_counter()
            time.sleep(0.0002)
            self._gaps.append((time.perf_counter() - began) * 1000)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def __str__(self) -> str:
        gaps = sorted(self._gaps)
        return f"GIL wait p99 {gaps[int(len(gaps) * 0.99)]:.1f} ms, max {gaps[-1]:.1f} ms"


def codecs() -> None:
    print("codec: ms to build, ms to read one row group cold, share of the raw size")
    for size in (100, 1_000):
        runs = json_runs(8, 4_096, size)
        raw = sum(one.ends[-1] for one in runs)
        readers: dict[str, tuple[Reader, writer.Built]] = {}
        for codec in ("none", "lz4", "snappy", "zstd"):
            writer._CODEC = codec
            built = writer.build(runs, 0, "t")
            store = MemoryStore()
            store.put(built.file.path, built.data)
            readers[codec] = Reader(store, MemoryCache(0)), built
        reads: dict[str, list[float]] = {codec: [] for codec in readers}
        for _ in range(15):  # codecs alternate, so that they share whatever else the machine does
            for codec, (reader, built) in readers.items():
                footer = reader._footer(built.file.path)
                reader._footer = lambda file, footer=footer: footer  # type: ignore[method-assign]
                reads[codec].append(median_ms(lambda r=reader, b=built: r._load_group(b.file.path, 2), 3))
        for codec, (_, built) in readers.items():
            writer._CODEC = codec
            building_ms = median_ms(lambda runs=runs: writer.build(runs, 0, "t"), 3)
            rows = pq.read_metadata(pa.BufferReader(b"".join(built.data))).row_group(2).num_rows
            figures = f"build {building_ms:6.1f} ms   read {statistics.median(reads[codec]):.3f} ms"
            print(f"  {size:5} B x {rows} rows  {codec:7} {figures}   size {built.file.size_bytes / raw:.2f}")
    writer._CODEC = "lz4"


def building() -> None:
    print("build of one file")
    for name, runs in {
        "1 stream x 100,000 records of 100 B": json_runs(1, 100_000, 100),
        "1,000 streams x 100 records of 100 B": json_runs(1_000, 100, 100),
        "50,000 streams x 1 record of 100 B": json_runs(50_000, 1, 100),
        "64 streams x 500 records of 1 KB": json_runs(64, 500, 1_000),
    }.items():
        raw = sum(one.ends[-1] for one in runs)
        with Heartbeat() as heartbeat:
            taken = median_ms(lambda runs=runs: writer.build(runs, 0, "t"), 3)
        print(f"  {name:38} {taken:7.1f} ms  {raw / taken / 1000:6.1f} MB/s  {heartbeat}")


def show(label: str, taken_ms: float, heartbeat: object = "") -> None:
    print(f"  {label:28} {taken_ms:8.3f} ms  {heartbeat}")


def store_figures(name: str, store: ObjectStore) -> None:
    print(name)
    small, large = b"x" * 4_096, random.Random(2).randbytes(8 << 20)
    numbers = iter(range(10_000))
    for label, data in (("put 4 KB", small), ("put 8 MB", large)):
        with Heartbeat() as heartbeat:
            taken = median_ms(lambda data=data: store.put(f"figures/{next(numbers)}", data), 8)
        show(label, taken, heartbeat)
    show("put_if_absent 4 KB", median_ms(lambda: store.put_if_absent(f"figures/{next(numbers)}", small), 8))

    table = LakeTable(store)

    def commit() -> None:
        table.commit([fake(f"{next(numbers)}")], [], NOW_MS)

    with Heartbeat() as heartbeat:
        taken = median_ms(commit, 70)
    show("commit (checkpoints in 70: 2)", taken, heartbeat)
    for number in range(10):
        table.commit([fake(f"many-{number}-{index}") for index in range(1_000)], [], NOW_MS)
    show("commit beside 10,000 files", median_ms(commit, 20))
    show("files() of 10,000", median_ms(table.files, 3))

    built = writer.build(json_runs(64, 4_096, 100), 0, "t")
    store.put(built.file.path, built.data)
    extents = iter(built.extents * 10)

    def cold(reader: Reader) -> None:
        extent = next(extents)
        reader.stretch(extent, extent.start, extent.end, False)

    show("cold read, footer and group", median_ms(lambda: cold(Reader(store, MemoryCache(1 << 30))), 40))
    reader = Reader(store, MemoryCache(1 << 30))
    cold(reader)
    with Heartbeat() as heartbeat:
        taken = median_ms(lambda: cold(reader), 60)
    show("cold read, group alone", taken, heartbeat)
    extent = built.extents[-1]
    reader.stretch(extent, extent.start, extent.end, False)
    show("the same from memory", median_ms(lambda: reader.stretch(extent, extent.start, extent.end, False), 99))


def main() -> None:
    codecs()
    building()
    with tempfile.TemporaryDirectory() as folder:
        store_figures("local directory", LocalStore(Path(folder) / "lake"))
        if weed_binary() is not None:
            with seaweed(Path(folder) / "weed") as server:
                server.make_bucket("lake")
                keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
                store_figures(
                    "S3 on loopback", S3Store("lake", "p", endpoint=server.endpoint, region="us-east-1", **keys)
                )


if __name__ == "__main__":
    main()
