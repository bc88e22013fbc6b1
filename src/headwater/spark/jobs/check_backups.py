"""Whether backups can be restored: every object and part that they need is read and held against its digest.

Owns what a finding is: an object that is missing or not what was copied, or a manifest that cannot be read. Never
writes anything. What backups share is read once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.lake.store import ObjectMissing
from headwater.spark import backup_store
from headwater.spark.backup_store import OBJECTS, Damaged, Item, Manifest
from headwater.spark.job_runs import DONE, FINDINGS, JobRefused, Progress, recorded, silent
from headwater.spark.jobs.prune import opened
from headwater.spark.lake_place import Place
from headwater.spark.object_copies import Wanted, move

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOLD_MAX = 200


@recorded("check-backups")
def check_backups(
    spark: SparkSession, *, source: Place | str, backup: str | None = None, progress: Progress = silent
) -> dict[str, object]:
    """Looks at the backup of that id, or at all of them. Raises JobRefused when there is none."""
    origin = Place(source) if isinstance(source, str) else source
    store = opened(origin)
    there = backup_store.names(store)
    names = [name for name in there if backup in (None, name)]
    if not names:
        raise JobRefused(
            f"there is no backup {'' if backup is None else backup + ' '}in {store.uri}",
            f"there are {', '.join(there[-10:])}" if there else "name the place that backups were made to",
        )
    findings: list[dict[str, str]] = []
    needed: dict[Wanted, list[str]] = {}
    for name in names:
        try:
            manifest = backup_store.read(store, name)
        except (Damaged, ObjectMissing, JobRefused) as why:
            findings.append({"backup": name, "what": str(why)})
            continue
        for item in _items(manifest):
            needed.setdefault(Wanted(item.key, item.bytes, item.digest), []).append(name)
    wanted = sorted(needed)
    looked = move(spark, wanted, origin, "", None, "", progress)
    for key, problem in sorted({(one.key, one.problem) for one in looked if one.problem is not None}):
        for name in sorted({name for one in wanted if one.key == key for name in needed[one]}):
            findings.append({"backup": name, "what": problem})
    return {
        "outcome": FINDINGS if findings else DONE,
        "backups": len(names),
        "backups_damaged": len({finding["backup"] for finding in findings}),
        "objects": len(wanted),
        "bytes": sum(one.bytes for one in wanted),
        "findings_count": len(findings),
        "findings": findings[:TOLD_MAX],
    }


def _items(manifest: Manifest) -> list[Item]:
    parts = [part for document in manifest.documents for part in document.parts]
    return parts + [Item(f"{OBJECTS}/{item.key}", item.bytes, item.digest) for item in manifest.objects]
