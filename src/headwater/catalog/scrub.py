"""Traces of a name that left the catalog: free pages, unused parts of pages, and SQLite's own log.

Owns the search for them and the writing anew that removes them. Never touches a row.

Rows are overwritten with zeros when they are deleted (`secure_delete`). That leaves copies: in the log until it is
emptied, in pages that were split while the row was in one of them, and in a file that was written before rows were.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from headwater.catalog.sqlite import BUSY_S_MAX, prepare
from headwater.ports import SYSTEM_CLOCK, pause

_READ_BYTES = 1 << 20
_NEEDLE_BYTES_MAX = 200
"""A longer name may lie in two pages; its beginning and its end are each in one."""
_PAUSE_S = 0.05


def scrub(catalog: Path, name: str | None) -> bool:
    """On return the name is nowhere in the catalog's files but in rows; None: nor is any other name. Returns whether
    the file was written anew.

    Blocks for as long as the catalog takes to read, and to write if a trace was found. Nobody may write to it
    meanwhile. Raises OSError; then traces may be left, and trying again may help.
    """
    try:
        with closing(sqlite3.connect(catalog, timeout=BUSY_S_MAX, isolation_level=None)) as db:
            prepare(db)
            _empty_log(db)
            if name is not None and not holds(catalog, name):
                return False
            # The name may also be part of a longer one: that is found here, too, and costs this once.
            db.execute("vacuum")
            _empty_log(db)
            return True
    except sqlite3.Error as error:
        raise OSError(f"the catalog could not be written anew ({error})") from error


def holds(file: Path, name: str) -> bool:
    """True when the name is anywhere in the file, in a row or not."""
    whole = name.encode()
    needles = {whole[:_NEEDLE_BYTES_MAX], whole[-_NEEDLE_BYTES_MAX:]}
    kept = b""
    with file.open("rb", buffering=0) as source:
        while block := source.read(_READ_BYTES):
            data = kept + block
            if any(needle in data for needle in needles):
                return True
            kept = data[-_NEEDLE_BYTES_MAX:]
    return False


def _empty_log(db: sqlite3.Connection) -> None:
    """Moves SQLite's log into the file and cuts it to nothing. A reader's long look may be in the way for a while."""
    give_up_s = SYSTEM_CLOCK.monotonic_s() + BUSY_S_MAX
    while db.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
        if SYSTEM_CLOCK.monotonic_s() > give_up_s:
            raise OSError("somebody has been reading the catalog for too long")
        pause(_PAUSE_S)
