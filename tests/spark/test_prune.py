"""Which backups are kept, and that no kept one ever lacks anything. No Spark and no node: backups are made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headwater.cli.main import app
from headwater.lake.s3 import S3Store
from headwater.lake.store import MemoryStore, ObjectStore, StoreUnavailable
from headwater.spark import backup_locks, backup_store
from headwater.spark.backup_keeping import Keep, kept
from headwater.spark.backup_locks import ALONE, LOCK_MS, LOCKS, SHARED, Lock, locked
from headwater.spark.backup_store import Contents, Document, Item, Manifest, digest
from headwater.spark.job_runs import JobRefused
from headwater.spark.jobs import prune as job
from headwater.spark.jobs.prune import act, planned, prune
from headwater.spark.lake_place import Place
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY

DAY_MS = 86_400_000
FIRST_MS = int(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()) * 1_000
"""A Monday."""


class Clocked(MemoryStore):
    def __init__(self) -> None:
        self.ms = 0
        super().__init__(lambda: self.ms)


def make(store: ObjectStore, made_ms: int, objects: dict[str, bytes]) -> str:
    """A backup, whole: its objects lie where others may have put them already."""
    name = backup_store.new_id(made_ms)
    items = []
    for key, data in objects.items():
        store.put(f"objects/{key}", data)
        items.append(Item(key, len(data), digest(data)))
    part = f"backups/{name}/catalog/0.db.000000"
    store.put(part, name.encode())
    documents = [Document("catalog/0.db", [Item(part, len(name), digest(name.encode()))])]
    contents = Contents(1, 1, 1, 1, "x")
    backup_store.write(store, Manifest(2, name, made_ms, "0", [1], contents, [], documents, items))
    return name


def whole(store: ObjectStore, name: str) -> bool:
    manifest = backup_store.read(store, name)
    parts = [part for document in manifest.documents for part in document.parts]
    items = [Item(f"objects/{item.key}", item.bytes, item.digest) for item in manifest.objects]
    there = {stored.key for stored in store.list()}
    return all(item.key in there and digest(store.get(item.key)) == item.digest for item in parts + items)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    """Three backups: the second shares with both others."""
    found = Clocked()
    monkeypatch.setattr(job, "opened", lambda place: found)
    for number in range(3):
        make(found, FIRST_MS + number * DAY_MS, {f"data/{n}": b"%d" % n for n in range(number, number + 2)})
    return found


def test_what_only_dropped_backups_needed_is_deleted(store: Clocked) -> None:
    store.put("backups/20260101T000000.000Z-00000000/catalog/0.db.000000", b"of a run that was killed")
    store.put("objects/data/orphan", b"the same")
    names = backup_store.names(store)
    told = prune("x", Keep(last=2), dry_run=True)
    assert told["backups_dropped"] == names[:1] and told["dry_run"]
    assert backup_store.names(store) == names and store.head("objects/data/orphan")
    done = prune("x", Keep(last=2))
    assert {name for name in told if told[name] != done.get(name)} - {"inputs", "seconds"} == {"dry_run"}
    assert done["backups_kept"] == [{"backup": name, "kept_by": ["last"]} for name in names[1:]]
    assert backup_store.names(store) == names[1:]
    assert all(whole(store, name) for name in names[1:])
    assert {stored.key for stored in store.list("objects")} == {f"objects/data/{n}" for n in (1, 2, 3)}
    assert {stored.key.split("/")[1] for stored in store.list("backups")} == set(names[1:])
    again = prune("x", Keep(last=2))
    assert (again["backups_dropped"], again["objects_deleted"], again["bytes_deleted"]) == ([], 0, 0)
    assert list(store.list(LOCKS)) == []


def test_wherever_a_run_is_cut_off_each_backup_that_is_there_is_whole(
    store: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_THREADS", 1)
    plan = planned(store, Keep(last=1))
    steps = len(plan.drop) + len(plan.keys)
    content = {stored.key: store.get(stored.key) for stored in store.list()}

    class CutOff(Exception):
        pass

    for left in range(steps):
        other = Clocked()
        for key, data in content.items():
            other.put(key, data)
        count = iter(range(left))
        delete = other.delete

        def cut(key: str, delete=delete, count: Iterator[int] = count) -> None:
            if next(count, None) is None:
                raise CutOff
            delete(key)

        monkeypatch.setattr(other, "delete", cut)
        lock = Lock(other, ALONE, lambda: 0.0)
        with pytest.raises(CutOff):
            act(other, plan, lock)
        monkeypatch.setattr(other, "delete", delete)
        names = backup_store.names(other)
        assert set(plan.keep) <= set(names) and all(whole(other, name) for name in names)
        act(other, planned(other, Keep(last=1)), lock)
        assert {stored.key for stored in other.list()} == set(content) - set(plan.keys) - {
            backup_store.manifest_key(name) for name in plan.drop
        }


def test_nothing_is_deleted_when_a_backup_cannot_be_read(store: Clocked) -> None:
    _, middle, _ = backup_store.names(store)
    key = backup_store.manifest_key(middle)
    manifest = store.get(key)
    store.put(key, manifest[:-10])
    before = {stored.key for stored in store.list()}
    with pytest.raises(JobRefused, match="is damaged"):
        prune("x", Keep(last=1))
    store.put(key, manifest.replace(b'"format":2', b'"format":9'))
    with pytest.raises(JobRefused):
        prune("x", Keep(last=1))
    assert {stored.key for stored in store.list()} == before
    store.delete(key)
    assert prune("x", Keep(last=2))["backups_dropped"] == []


def test_what_makes_no_sense_is_refused(store: Clocked, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobRefused, match="no rule"):
        prune("x", Keep())
    monkeypatch.setattr(job, "opened", lambda place: Clocked())
    with pytest.raises(JobRefused, match="there is no backup"):
        prune("x", Keep(last=1))


def test_one_that_deletes_is_alone_and_backups_are_not(store: Clocked) -> None:
    with locked(store, SHARED), locked(store, SHARED):
        with pytest.raises(JobRefused, match="a backup is being made"):
            prune("x", Keep(last=1))
        assert len(list(store.list(LOCKS))) == 2
    with locked(store, ALONE):
        with pytest.raises(JobRefused, match="backups are being deleted"), locked(store, SHARED):
            pass
        with pytest.raises(JobRefused, match="backups are being deleted"):
            prune("x", Keep(last=1))
    assert list(store.list(LOCKS)) == []
    assert len(backup_store.names(store)) == 3


def test_a_lock_that_a_crash_left_counts_for_an_hour_by_the_clock_of_the_store(store: Clocked) -> None:
    store.put(f"{LOCKS}/{SHARED}-0123", b"")
    store.ms += LOCK_MS
    with pytest.raises(JobRefused, match="a backup is being made"):
        prune("x", Keep(last=1))
    store.ms += 1
    prune("x", Keep(last=1))
    assert list(store.list(LOCKS)) == []


def test_whoever_could_not_renew_its_lock_changes_nothing_any_more(store: Clocked) -> None:
    now_s = 0.0
    lock = Lock(store, ALONE, lambda: now_s)
    lock.write()
    now_s = backup_locks.HELD_S
    lock.require()
    lock.write()
    now_s += backup_locks.HELD_S + 1
    before = {stored.key for stored in store.list()}
    for _ in range(2):
        with pytest.raises(JobRefused, match="could not be renewed"):
            act(store, planned(store, Keep(last=1)), lock)
        lock.write()  # too late: others may have been here meanwhile
    assert {stored.key for stored in store.list()} == before


def test_a_store_that_fails_leaves_no_lock_that_could_be_deleted(store: Clocked) -> None:
    def fails(prefix: str = "") -> object:
        raise StoreUnavailable("down")

    store.list = fails  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreUnavailable), locked(store, ALONE):
        pass
    del store.list
    assert list(store.list(LOCKS)) == []


# ---- which are kept ----------------------------------------------------------------------------------------------


def slow(made: dict[str, int], keep: Keep) -> set[str]:
    """Rule by rule, from the newest: a backup is kept by a rule when fewer than so many spans are newer."""

    def day(name: str) -> int:
        return made[name] // DAY_MS

    def week(name: str) -> int:
        return (day(name) + 3) // 7  # 1970 began on a Thursday

    def newer(name: str) -> list[str]:
        return [other for other in made if (made[other], other) > (made[name], name)]

    found = set()
    for name in made:
        found |= {name} if len(newer(name)) < keep.last else set()
        for count, span in ((keep.daily, day), (keep.weekly, week)):
            spans = {span(other) for other in newer(name)}
            found |= {name} if span(name) not in spans and len(spans) < count else set()
    return found


counts = st.integers(0, 6)


@given(st.lists(st.integers(0, 60 * 24), max_size=25), st.builds(Keep, counts, counts, counts))
def test_rules_keep_what_a_slow_reading_of_them_keeps(hours: list[int], keep: Keep) -> None:
    made = {f"b{number:02d}": FIRST_MS + hour * 3_600_000 for number, hour in enumerate(hours)}
    if not keep.asks:
        with pytest.raises(ValueError, match="no rule"):
            kept(made, keep)
        return
    found = kept(made, keep)
    assert set(found) == slow(made, keep)
    assert list(found) == sorted(found, key=lambda name: (made[name], name))
    assert not made or max(made, key=lambda name: (made[name], name)) in found


@pytest.mark.full
def test_backups_on_s3_are_pruned_and_locked_as_those_in_a_directory(s3: S3) -> None:
    s3.make_bucket("pruned")
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    store = S3Store("pruned", "x", endpoint=s3.endpoint, region="us-east-1", **keys)
    names = [make(store, FIRST_MS + n * DAY_MS, {f"data/{n}": b"x", "data/all": b"y"}) for n in range(3)]
    with locked(store, SHARED), pytest.raises(JobRefused, match="a backup is being made"), locked(store, ALONE):
        pass
    with locked(store, ALONE) as lock:
        act(store, planned(store, Keep(last=1)), lock)
    assert backup_store.names(store) == names[2:]
    assert {stored.key for stored in store.list("objects")} == {"objects/data/2", "objects/data/all"}
    assert list(store.list(LOCKS)) == []


def lines(command: list[str], exits: int = 0) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == exits, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_command_says_what_it_would_delete_and_deletes_it(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "backups"))
    names = [make(place.store(), FIRST_MS + number * DAY_MS, {"data/x": b"x"}) for number in range(9)]
    command = ["pipeline", "prune", str(tmp_path / "backups"), "--keep-daily", "2", "--keep-weekly", "2"]
    (told,) = lines([*command, "--dry-run"])
    assert [one["backup"] for one in told["backups_kept"]] == [names[6], *names[7:]]
    (done,) = lines(command)
    assert (done["job"], done["outcome"], done["backups_dropped"]) == ("prune", "done", names[:6])
    assert backup_store.names(place.store()) == names[6:]
    assert done["objects_deleted"] == 12
    lines(command[:3], exits=2)
