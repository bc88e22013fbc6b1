"""What an executor opens only with the driver's versions: readers, partitions, writers and the functions of jobs. Where
they differ the first task says which, on both sides, and nothing of the value was opened."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headwater
from headwater.spark.chunks import Chunk
from headwater.spark.options import for_batch
from headwater.spark.rows import schema_of
from headwater.spark.same_versions import OtherVersions, for_executors
from headwater.spark.sink import stream_writer
from headwater.spark.source import Partition, Reader
from headwater.spark.stream_source import StreamReader
from tests.spark.reads import fill
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES = Path(headwater.__file__).parent / "spark"
GIVEN = {"url": "http://127.0.0.1:1", "where": "bucket = 'orders'"}


def sink() -> Any:
    from pyspark.sql.types import StringType, StructType

    return stream_writer(StructType().add("stream", StringType()).add("payload", StringType()), False, GIVEN_OF_SINK)


GIVEN_OF_SINK = {"url": "http://127.0.0.1:1"}
MADE = {
    "reader": lambda: Reader(GIVEN, schema_of(False)),
    "streaming reader": lambda: StreamReader(GIVEN, schema_of(False)),
    "partition": lambda: Partition(for_batch(GIVEN), []),  # type: ignore[arg-type]
    "writer": sink,
    "function": lambda: for_executors(lambda batches: batches),
}


def dumped(value: object) -> bytes:
    from pyspark import cloudpickle

    found: bytes = cloudpickle.dumps(value)
    return found


@pytest.mark.parametrize("made", MADE)
def test_it_is_opened_by_the_same_version_alone_and_another_one_says_both(
    made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = MADE[made]()
    sent = dumped(value)
    assert type(pickle.loads(sent)) is type(value)
    monkeypatch.setattr(headwater, "__version__", "9.9.9")
    with pytest.raises(OtherVersions) as raised:
        pickle.loads(sent)
    said = str(raised.value)
    assert "headwater 0.1.0 on the driver and 9.9.9 here" in said.replace(headwater_version(), "0.1.0")
    assert "pip install 'headwater==" in said and "pyspark" not in said


def headwater_version() -> str:
    found = re.search(r'__version__ = "([^"]+)"', Path(headwater.__file__).read_text())
    assert found is not None
    return found[1]


def test_another_pyspark_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    sent = dumped(for_executors(lambda batches: batches))
    first, second = pyspark.__version__.split(".")[:2]
    monkeypatch.setattr(pyspark, "__version__", f"{first}.{second}.99")
    pickle.loads(sent)
    monkeypatch.setattr(pyspark, "__version__", f"{first}.99.0")
    with pytest.raises(OtherVersions, match=rf"pyspark {first}\.{second} on the driver and {first}\.99 here"):
        pickle.loads(sent)


def test_what_cannot_be_opened_by_another_version_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that has another shape there would fail with an error that says nothing of versions."""
    sent = dumped(for_executors(lambda batches: [Chunk("s", "t", 0, [], 0)]))
    monkeypatch.setattr(headwater, "__version__", "9.9.9")
    monkeypatch.setattr("headwater.spark.chunks.Chunk", None)
    with pytest.raises(OtherVersions):
        pickle.loads(sent)


def test_every_function_for_executors_goes_this_way() -> None:
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        for found in re.finditer(r"\.mapInArrow\(\s*(\w+)", text):
            handed = found[1]
            named = re.search(rf"\b{handed} = for_executors\(", text)
            assert handed == "for_executors" or named, f"{path.name}: {found[0]}"
        assert "mapInPandas(" not in text and "applyInArrow(" not in text, path


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_first_task_of_a_job_names_both_versions(
    spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwater.spark.native_read import read_lake

    with node.connect() as connection:
        fill(connection, ["orders/a"], 2)
    assert read_lake(spark, node.url).count() == 2
    # The driver's: the processes of the tasks have the real one.
    monkeypatch.setattr(headwater, "__version__", "9.9.9")
    with pytest.raises(Exception, match=rf"headwater 9\.9\.9 on the driver and {re.escape(headwater_version())} here"):
        read_lake(spark, node.url).count()
