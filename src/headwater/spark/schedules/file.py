"""A schedule file: which jobs run when, with which options.

Owns the file's shape and everything that can be wrong with it: all complaints are told at once, each with file, entry
and key. Never runs anything, and knows no job: whether one takes its options, its caller says.

    name = "nightly"            of the schedule; the file's name without it
    url, master, timezone       for all jobs
    lease = "2m"
    [spark]                     settings of the session
    [[job]]                     name, job, at or every, timezone, timeout, retries, backoff, on_missed, only_after
    [job.options]               the job's own, as on the command line
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headwater.spark.job_runs import JobRefused
from headwater.spark.schedules.times import BadTime, Moments, cron, duration_ms, every, zone

JOBS_MAX = 100
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
LEASE_MS, LEASE_MS_MIN, LEASE_MS_MAX = 120_000, 10_000, 3_600_000
TIMEOUT_MS, TIMEOUT_MS_MAX = 86_400_000, 30 * 86_400_000
RETRIES, RETRIES_MAX = 2, 20
BACKOFF_MS, BACKOFF_MS_MAX = 60_000, 86_400_000
RUN, SKIP = "run", "skip"
_TOP: Mapping[str, type] = {
    **{"name": str, "url": str, "master": str, "timezone": str, "lease": str},
    **{"spark": dict, "job": list},
}
_JOB: Mapping[str, type] = {
    **{"name": str, "job": str, "at": str, "every": str, "timezone": str, "timeout": str, "retries": int},
    **{"backoff": str, "on_missed": str, "only_after": list, "options": dict},
}
_CALLED = {str: "a text", dict: "a table", list: "a list", int: "a whole number"}

Check = Callable[[str, Mapping[str, Any]], Iterable[str]]
"""What is wrong with a job of that kind and its options."""


class Entry(NamedTuple):
    name: str
    job: str
    moments: Moments
    when: str
    """As the file says it: another text is another rhythm."""
    timeout_ms: int
    retries: int
    backoff_ms: int
    run_missed: bool
    only_after: tuple[str, ...]
    options: dict[str, Any]


class Schedule(NamedTuple):
    name: str
    file: str
    url: str | None
    master: str | None
    lease_ms: int
    spark: dict[str, str]
    entries: tuple[Entry, ...]


def load(file: str | Path, check: Check) -> Schedule:
    """Raises JobRefused with every complaint."""
    path = Path(file)
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise JobRefused(f"{file} cannot be read: {error.strerror}", "name the file of a schedule") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobRefused(f"{path.name} is not TOML: {error}") from None
    complaints: list[str] = []
    schedule = _schedule(document, path, check, complaints)
    if complaints:
        told = "; ".join(f"{path.name}: {one}" for one in complaints)
        raise JobRefused(told, "correct it, and nothing has been run")
    return schedule


def _schedule(document: dict[str, Any], path: Path, check: Check, complaints: list[str]) -> Schedule:
    given = _known(document, _TOP, "schedule", complaints)
    name = given.get("name", path.stem)
    if NAME.fullmatch(name) is None:
        complaints.append(f"schedule: name: {name!r} is not made of a-z, 0-9, _ and -, at most 64")
    lease_ms = _duration(given, "lease", LEASE_MS, LEASE_MS_MIN, LEASE_MS_MAX, "schedule", complaints)
    spark = given.get("spark", {})
    complaints += [f"spark: {key}: write the value as a text" for key, one in spark.items() if not isinstance(one, str)]
    tables = given.get("job", [])
    if not tables:
        complaints.append("schedule: it does nothing: write a [[job]]")
    if len(tables) > JOBS_MAX:
        complaints.append(f"schedule: it has {len(tables)} jobs, more than {JOBS_MAX}")
    entries: list[Entry] = []
    for number, table in enumerate(tables):
        if not isinstance(table, dict):
            complaints.append(f"job number {number + 1}: write [[job]], once for each")
            continue
        named = table.get("name")
        called = f"job {named}" if isinstance(named, str) else f"job number {number + 1}"
        found = _entry(table, called, given.get("timezone", "UTC"), check, complaints)
        if found is not None:
            entries.append(found)
    complaints += _together(entries, [table.get("name") for table in tables if isinstance(table, dict)])
    return Schedule(name, path.name, given.get("url"), given.get("master"), lease_ms, spark, tuple(entries))


def _entry(table: dict[str, Any], called: str, timezone: str, check: Check, complaints: list[str]) -> Entry | None:
    before = len(complaints)
    given = _known(table, _JOB, called, complaints)
    name, job = given.get("name", ""), given.get("job", "")
    if NAME.fullmatch(name) is None:
        complaints.append(f"{called}: name: write one of a-z, 0-9, _ and -, at most 64")
    zone_name = given.get("timezone", timezone)
    moments = _moments(given, zone_name, called, complaints)
    missed = given.get("on_missed", RUN)
    if missed not in (RUN, SKIP):
        complaints.append(f"{called}: on_missed: {missed!r} is neither {RUN} nor {SKIP}")
    retries = given.get("retries", RETRIES)
    if not 0 <= retries <= RETRIES_MAX:
        complaints.append(f"{called}: retries: {retries} is not 0 to {RETRIES_MAX}")
    after = given.get("only_after", [])
    if not all(isinstance(one, str) for one in after):
        complaints.append(f"{called}: only_after: write names of jobs")
    timeout_ms = _duration(given, "timeout", TIMEOUT_MS, 1_000, TIMEOUT_MS_MAX, called, complaints)
    backoff_ms = _duration(given, "backoff", BACKOFF_MS, 1_000, BACKOFF_MS_MAX, called, complaints)
    options = given.get("options", {})
    if "job" not in given:
        complaints.append(f"{called}: job: say which one it is")
    else:
        complaints += [f"{called}: {one}" for one in check(job, options)]
    if len(complaints) > before or moments is None:
        return None
    when = f"{given.get('at') or given.get('every')} {zone_name}"
    return Entry(name, job, moments, when, timeout_ms, retries, backoff_ms, missed == RUN, tuple(after), options)


def _known(table: dict[str, Any], keys: Mapping[str, type], called: str, complaints: list[str]) -> dict[str, Any]:
    """What is there under a known key and of its type."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        wanted = keys.get(key)
        if wanted is None:
            complaints.append(f"{called}: {key}: there is no such key; there are {', '.join(keys)}")
        elif not isinstance(value, wanted) or isinstance(value, bool):
            complaints.append(f"{called}: {key}: write {_CALLED[wanted]}")
        else:
            found[key] = value
    return found


def _moments(given: Mapping[str, Any], zone_name: str, called: str, complaints: list[str]) -> Moments | None:
    if ("at" in given) == ("every" in given):
        complaints.append(f'{called}: at: say when: either at = "0 3 * * *" or every = "15m"')
        return None
    try:
        place = zone(zone_name)
    except BadTime as error:
        complaints.append(f"{called}: timezone: {error}")
        return None
    key = "at" if "at" in given else "every"
    try:
        return cron(given["at"], place) if key == "at" else every(given["every"])
    except BadTime as error:
        complaints.append(f"{called}: {key}: {error}")
        return None


def _duration(
    given: Mapping[str, Any], key: str, default: int, low: int, high: int, called: str, complaints: list[str]
) -> int:
    if key not in given:
        return default
    try:
        found = duration_ms(given[key])
    except BadTime as error:
        complaints.append(f"{called}: {key}: {error}")
        return default
    if not low <= found <= high:
        complaints.append(f"{called}: {key}: {given[key]} is not from {low // 1_000}s to {high // 1_000}s")
    return found


def _together(entries: list[Entry], names: list[Any]) -> Iterator[str]:
    """What no entry is wrong about by itself."""
    for name in sorted({name for name in names if isinstance(name, str) and names.count(name) > 1}):
        yield f"job {name}: name: there is more than one"
    for entry in entries:
        for other in entry.only_after:
            if other not in names:
                yield f"job {entry.name}: only_after: there is no job {other}"
    left = {entry.name: set(entry.only_after) for entry in entries}
    while first := next((name for name, after in left.items() if not after & left.keys()), None):
        del left[first]
    for name in left:
        yield f"job {name}: only_after: the jobs wait for each other in a circle"
