"""`headwater pipeline run backup` and `restore`, and `headwater pipeline prune`.
Owns their options. Never does the work: the jobs do."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from headwater.cli.cluster_options import ClusterCredentials, ClusterMonitors, ClusterName, ClusterReplicas
from headwater.cli.pipeline.common import URL_DEFAULT, DryRun, Master, Token, Url, ended, run, show, sparked, telling
from headwater.cli.progress import progress
from headwater.client.connection import printable

Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="S3 server of the backups, if not Amazon's.")
]
Region = Annotated[str | None, typer.Option("--region", metavar="NAME", help="Region of the bucket of the backups.")]
Keep = Annotated[int, typer.Option("--keep", metavar="N", min=0, max=10_000, help="Keep the newest so many.")]
KeepDaily = Annotated[
    int,
    typer.Option("--keep-daily", metavar="N", min=0, max=10_000, help="Keep the newest of each of so many days (UTC)."),
]
KeepWeekly = Annotated[
    int,
    typer.Option("--keep-weekly", metavar="N", min=0, max=10_000, help="Keep the newest of each of so many weeks."),
]


def register(app: typer.Typer) -> None:
    """Adds this module's commands to `headwater pipeline run`."""
    app.command()(backup)
    app.command()(restore)


def backup(
    to: Annotated[
        str,
        typer.Option("--to", metavar="PLACE", help="A directory or s3://bucket/prefix; holds any number of backups."),
    ],
    url: Url = URL_DEFAULT,
    token: Token = None,
    master: Master = None,
    endpoint: Endpoint = None,
    region: Region = None,
    hold_ms: Annotated[
        int,
        typer.Option(
            "--hold-ms",
            metavar="MS",
            min=10_000,
            max=86_400_000,
            help="How long the node waits for a job that went away.",
        ),
    ] = 3_600_000,
    keep: Keep = 0,
    keep_daily: KeepDaily = 0,
    keep_weekly: KeepWeekly = 0,
) -> None:
    """Copy all of a node to another place while it serves. What an earlier backup there holds is not copied again.

    With --keep, --keep-daily or --keep-weekly the backups that none of them
    keeps are deleted afterwards, as `prune` does it.
    """

    def job(spark: Any, node: Any, tell: Any) -> dict[str, object]:
        from headwater.spark.backup_keeping import Keep
        from headwater.spark.jobs.backup import backup
        from headwater.spark.lake_place import Place

        keeping = Keep(keep, keep_daily, keep_weekly)
        return backup(spark, node, to=Place(to, endpoint, region), hold_ms=hold_ms, keep=keeping, progress=tell)

    summary = run("backup", url, token, master, job)
    if "prune_refused" in summary:
        typer.echo(printable(f"error: no backup was deleted: {summary['prune_refused']}"), err=True)
    ended(summary)


def prune(
    place: Annotated[str, typer.Argument(metavar="PLACE", help="Where the backups are.")],
    keep: Keep = 0,
    keep_daily: KeepDaily = 0,
    keep_weekly: KeepWeekly = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Delete backups that no rule keeps, and what only they needed. Needs neither a node nor Spark.

    What any of the rules keeps is kept: the newest so many, and the newest of
    each of so many days and weeks that have one. Nothing is deleted while a
    backup is made there, or when one there cannot be read.

        headwater pipeline prune /mnt/backups --keep-daily 7 --keep-weekly 4
    """
    if not (keep or keep_daily or keep_weekly):
        raise typer.BadParameter("say which backups are kept: give --keep, --keep-daily or --keep-weekly")
    with telling():
        from headwater.spark.backup_keeping import Keep
        from headwater.spark.jobs.prune import prune
        from headwater.spark.lake_place import Place

        with progress() as tell:
            rules = Keep(keep, keep_daily, keep_weekly)
            summary = prune(Place(place, endpoint, region), rules, dry_run=dry_run, progress=tell)
        show("prune", summary)


def restore(
    source: Annotated[str, typer.Option("--from", metavar="PLACE", help="Where the backups are.")],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Data directory to make.", show_default=False)
    ] = None,
    lake: Annotated[
        str, typer.Option("--lake", metavar="PLACE", help="Lake to fill, as the setting of a node; auto: DATA/lake.")
    ] = "auto",
    backup: Annotated[
        str | None, typer.Option("--backup", metavar="ID", help="Which backup; the newest by default.")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only show the backups that are there.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Only read all that the backups need, or --backup, and compare it with digests."),
    ] = False,
    master: Master = None,
    endpoint: Endpoint = None,
    region: Region = None,
    lake_endpoint: Annotated[
        str | None, typer.Option("--lake-endpoint", metavar="URL", help="S3 server of the lake, if not Amazon's.")
    ] = None,
    lake_region: Annotated[
        str | None, typer.Option("--lake-region", metavar="NAME", help="Region of the lake's bucket.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="URL", help="Begin a cluster with it: where its logs are to be."),
    ] = None,
    cluster_name: ClusterName = "headwater",
    cluster_replicas: ClusterReplicas = 3,
    cluster_monitors: ClusterMonitors = "auto",
    cluster_credentials: ClusterCredentials = "auto",
    dry_run: DryRun = False,
) -> None:
    """Make a data directory and a lake from a backup, and check them. Both must be empty; then start a node on them.
    With --cluster both are those of a cluster, whose nodes are started then."""
    with telling():
        from headwater.spark.jobs.restore import planned, restore
        from headwater.spark.lake_place import Place

        place = Place(source, endpoint, region)
        if list_only:
            _show_list(place)
            return
        if check and dry_run:
            raise typer.BadParameter("--check changes nothing anyway: leave it out, or --dry-run")
        if check:
            _check(place, backup, master)
            return
        if data is None:
            raise typer.BadParameter("name the data directory to make", param_hint="--data")
        if lake == "auto" and (lake_endpoint or lake_region):
            raise typer.BadParameter("only a lake at s3://… has an endpoint or a region", param_hint="--lake")
        if lake == "auto" and cluster is not None:
            raise typer.BadParameter("name the lake that all nodes of the cluster share", param_hint="--lake")
        target = lake if lake == "auto" else Place(lake, lake_endpoint, lake_region)
        planned(place, data, target, backup)  # before Spark is started: what cannot be done is told at once
        with sparked("restore", master) as spark, progress() as tell:
            summary = restore(spark, source=place, data=data, lake=target, backup=backup, progress=tell)
        show("restore", summary)
        if dry_run:
            return
        where = "" if lake == "auto" else f" --lake {lake}"
        if cluster is None:
            typer.echo(printable(f"start it with: headwater serve --data {data}{where}"), err=True)
            return
        flags = {
            "cluster": cluster,
            "cluster_name": cluster_name,
            "cluster_replicas": str(cluster_replicas),
            "cluster_monitors": cluster_monitors,
            "cluster_credentials": cluster_credentials,
            "lake": lake,
            "lake_endpoint": lake_endpoint or "auto",
            "lake_region": lake_region or "auto",
        }
        _begin_cluster(data, flags)


def _begin_cluster(data: Path, flags: dict[str, str]) -> None:
    from headwater.cli.begin_cluster import begin
    from headwater.cli.stopped_node import NotBegun

    try:
        with progress() as tell:
            begun = begin(str(data), None, flags, tell)
    except NotBegun as why:
        typer.echo(printable(f"error: {why}"), err=True)
        place = f"--cluster {flags['cluster']} --lake {flags['lake']}"
        again = f"headwater lake into-cluster --data {data} {place}"
        typer.echo(printable(f"  {data} is restored; go on from there with: {again}"), err=True)
        raise typer.Exit(1) from None
    show("into-cluster", msgspec.to_builtins(begun))
    place = f"--cluster {flags['cluster']} --lake {flags['lake']}"
    typer.echo(printable(f"start its nodes with: headwater serve {place} …"), err=True)


def _check(place: Any, backup: str | None, master: str | None) -> None:
    from headwater.spark.jobs.check_backups import check_backups

    with sparked("check-backups", master) as spark, progress() as tell:
        summary: dict[str, Any] = check_backups(spark, source=place, backup=backup, progress=tell)
    show("check-backups", summary)
    for finding in summary["findings"]:
        typer.echo(printable(f"{finding['backup']}: {finding['what']}"), err=True)
    ended(summary)


def _show_list(place: Any) -> None:
    from headwater.spark.jobs.restore import listed

    found = listed(place)
    for one in found:
        if not sys.stdout.isatty():
            typer.echo(json.dumps(one))
        elif "damage" in one:
            typer.echo(printable(f"{one['backup']}  {one['damage']}"))
        else:
            made = datetime.fromtimestamp(one["made_ms"] / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            facts = (
                f"{one['streams']} streams  {one['records']} records  {one['objects']} objects  {one['bytes']} bytes"
            )
            typer.echo(printable(f"{one['backup']}  {made}  {facts}"))
    if not found:
        where = place.url
        typer.echo(printable(f"there is no backup in {where}; name the place that backups were made to"), err=True)
        raise typer.Exit(1)
