"""Of which shared log a catalog is, kept in the catalog's file while nobody serves it.

Owns the reading and the writing of it. Never looks at a log.

A shared log is known by the first incarnation that its catalog has gone through, unless it continues another one: then
the lineage goes on, so that whoever knows positions of it is still understood, and the catalog says itself of which log
it is. A catalog of the log before, which may be ahead of where the new one began, is told from it by that.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from headwater.catalog.sqlite import SqliteCatalog, prepare
from headwater.model.lineage import DOMAIN, IDENTITY


class CatalogFacts(NamedTuple):
    position: int
    log_floor: int
    identity: str
    """Of the log that it is of; "" when it is of none."""


def read_facts(path: Path) -> CatalogFacts:
    """Raises sqlite3.Error, CatalogMismatch."""
    with closing(SqliteCatalog(path)) as catalog:
        kept = catalog.thing(DOMAIN, IDENTITY)
        incarnations = catalog.incarnations()
        first = incarnations[0][0] if incarnations else ""
        return CatalogFacts(catalog.position, catalog.log_floor, first if kept is None else kept.decode())


def write_identity(path: Path, identity: str) -> None:
    """On return the catalog is of that log, and that is on stable storage. Raises sqlite3.Error."""
    with closing(sqlite3.connect(path)) as db, db:
        prepare(db)
        db.execute(
            "insert into things (domain, name, row) values (?, ?, ?)"
            " on conflict (domain, name) do update set row = excluded.row",
            (DOMAIN, IDENTITY, identity.encode()),
        )
