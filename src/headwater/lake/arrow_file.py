"""Bytes that lie elsewhere as a file that Arrow reads (`pa.PythonFile`), and how a Parquet file is opened.

Owns the place that is read from, and what every reader of Parquet asks of Arrow. Never fetches anything: a subclass
says what lies where.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.lake.store import Data


def open_parquet(
    source: PyFile | pa.NativeFile, footer: pq.FileMetaData | None = None, ahead: bool = False
) -> pq.ParquetFile:
    """Pages are held against their checksums. Raises pa.ArrowException, OSError.

    `ahead` has Arrow fetch what it will need, in a thread that calls back into Python, also while that ends, which ends
    the process with an abort: not for a node.
    """
    if isinstance(source, PyFile):
        source = pa.PythonFile(source, mode="r")
    return pq.ParquetFile(source, metadata=footer, pre_buffer=ahead, page_checksum_verification=True)


class PyFile:
    closed = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def fetched(self, start: int, length: int) -> Data | pa.Buffer:
        """The bytes from `start` on; at least one, none after the end.

        Raises OSError and nothing else: Arrow would lose any other exception.
        """
        raise NotImplementedError

    def read_buffer(self, length: int = -1) -> pa.Buffer:
        length = self._size - self._at if length < 0 else min(length, self._size - self._at)
        if length <= 0:
            return pa.py_buffer(b"")
        at, self._at = self._at, self._at + length
        found = self.fetched(at, length)
        return found if isinstance(found, pa.Buffer) else pa.py_buffer(found)

    def read(self, length: int = -1) -> bytes:
        content: bytes = self.read_buffer(length).to_pybytes()
        return content

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is held open."""

    def flush(self) -> None:
        """Nothing is written."""
