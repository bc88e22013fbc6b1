"""The catalog's table of marks: what settled records can be found by.

Owns its rows. Never decides when they are written: a checkpoint does, within its transaction.

Marks of what was let go of go in bounded steps, one with each checkpoint: `unmarked` says of which streams some are
still to go, so a restart loses nothing of that. Meanwhile whoever finds such a mark knows by the record's number that
it is gone; ids of streams are never given out again.
"""

from __future__ import annotations

import sqlite3

from headwater.ports import Change

PRUNED_MAX = 20_000
"""Rows removed by one step: about 50 ms of the checkpoint's thread."""
_EVERYTHING = 1 << 62


def write(db: sqlite3.Connection, change: Change) -> None:
    """Takes the marks of a change, and forgets some of those that it makes needless."""
    db.executemany(
        "insert or replace into marks (sid, mark, number, begin, end) values (?, ?, ?, ?, ?)",
        (row for run in change.marks for row in run.rows()),
    )
    gone = [*change.cuts, *((sid, _EVERYTHING) for _, sid in change.gone)]
    db.executemany(
        "insert into unmarked (sid, end) select ?1, ?2 where exists (select 1 from marks where sid = ?1 and end <= ?2)"
        " on conflict (sid) do update set end = max(end, excluded.end)",
        gone,
    )
    prune(db)


def prune(db: sqlite3.Connection) -> bool:
    """One step; False when none is left to do."""
    room = PRUNED_MAX
    while room > 0:
        found = db.execute("select sid, end from unmarked limit 1").fetchone()
        if found is None:
            return False
        removed = db.execute(
            "delete from marks where (sid, mark, number) in"
            " (select sid, mark, number from marks where sid = ? and end <= ? limit ?)",
            (*found, room),
        ).rowcount
        if removed < room:
            db.execute("delete from unmarked where sid = ?", (found[0],))
        room -= removed
    return True


def marked(
    db: sqlite3.Connection, sid: int, mark: str, first: int, last: int, count_max: int
) -> list[tuple[int, int, int]]:
    return db.execute(
        "select number, begin, end from marks where sid = ? and mark = ? and number >= ? and number < ?"
        " order by number limit ?",
        (sid, mark, first, last, count_max),
    ).fetchall()


def marked_between(
    db: sqlite3.Connection, sid: int, after: tuple[str, int], high: str, count_max: int
) -> list[tuple[str, int, int, int]]:
    return db.execute(
        "select mark, number, begin, end from marks where sid = ? and (mark, number) > (?, ?) and mark < ?"
        " order by mark, number limit ?",
        (sid, *after, high, count_max),
    ).fetchall()
