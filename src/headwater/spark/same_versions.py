"""What driver and executors must have in common, looked at before a task opens anything that the driver made.

Owns which versions these are, and the seal: a value that is unpickled only where they are the same. Never looks at
libraries that may differ: what travels is plain values and Arrow's own format.

    driver    a reader, a task's function --pickled--> (versions of the driver, bytes of it)
    executor  versions compared, and only then the bytes opened: classes of another version would fail in some odd way
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

import headwater
from headwater.spark.node import NodeError

Work = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


class OtherVersions(NodeError):
    """An executor has another version than the driver; the message names both, and what to do."""


class _Sealed:
    """A function for executors. It travels by Spark's own pickles: a user's function may be among what it holds."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __reduce__(self) -> tuple[Any, ...]:
        from pyspark import cloudpickle

        return _opened, (versions(), cloudpickle.dumps(self.work))


def for_executors(work: Work) -> Work:
    """The same function, which raises OtherVersions where it is opened with other versions than the driver's."""
    return partial(_run, _Sealed(work))


def _run(sealed: _Sealed, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return sealed.work(batches)


class Checked:
    """What Spark itself pickles, and sends to executors: readers, writers, partitions."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (versions(), type(self), pickle.dumps(self.__dict__))


def versions() -> dict[str, str]:
    """Of what travels in pickled form, whole: a patch may add a field. Of PySpark what Spark calls one version."""
    import pyspark

    return {"headwater": headwater.__version__, "pyspark": ".".join(pyspark.__version__.split(".")[:2])}


def check(driver: Mapping[str, str]) -> None:
    """Raises OtherVersions when these are not the versions here."""
    here = versions()
    other = [name for name in driver if driver[name] != here.get(name)]
    if other:
        said = "; ".join(f"{name} {driver[name]} on the driver and {here.get(name)} here" for name in other)
        raise OtherVersions(
            f"the executor on {socket.gethostname()} has other versions than the driver: {said}. Install the same ones "
            "wherever Spark runs Python: pip install "
            + " ".join(f"'{name}=={driver[name]}{'.*' if name == 'pyspark' else ''}'" for name in other)
        )


def _opened(driver: Mapping[str, str], body: bytes) -> _Sealed:
    check(driver)
    return _Sealed(pickle.loads(body))


def _made(driver: Mapping[str, str], kind: type[Any], body: bytes) -> Any:
    check(driver)
    made = object.__new__(kind)
    made.__dict__.update(pickle.loads(body))
    return made
