"""`headwater lake …`: what is in the lake, whether catalog, table and objects agree, and what gc would remove.
Owns arguments, output and exit codes; never decides what is right or what goes: `lake.verify` and `lake.gc` do.
Exit codes: 0 clean or done, 1 findings or a refusal, 2 the command was wrong."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from headwater import config
from headwater.cli import client as http
from headwater.cli.client import Client, ClientError
from headwater.cli.cluster_options import ClusterCredentials, ClusterMonitors, ClusterName, ClusterReplicas
from headwater.cli.progress import progress

if TYPE_CHECKING:
    from headwater.lake.gc import Plan

app = typer.Typer(help="Look at the lake, check it, and remove what nothing refers to.", no_args_is_help=True)

Data = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="Data directory of the node; also HEADWATER_DATA.", show_default=False),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with the node's settings.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Ask a running node instead of reading its files.", show_default=False),
]


@app.command()
def info(data: Data = None, url: Url = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show what the lake holds. Beside a running node the figures are those of its last checkpoint."""
    with _telling():
        if url is not None:
            if data is not None:
                raise http.BadUsage("--url and --data exclude each other", "leave out one of them")
            with closing(Client(url)) as client:
                facts = json.loads(client.request("GET", "/__headwater/lake").body)
        else:
            facts = _info(_settings(data, config_file))
        if as_json:
            typer.echo(json.dumps(facts))
            return
        groups = facts.pop("groups", [])
        _show(("", ""), [(name.replace("_", " "), _cell(name, value)) for name, value in facts.items()])
        if groups:
            _show(list(groups[0]), [[_cell(name, value) for name, value in group.items()] for group in groups])


@app.command()
def stats(data: Data = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show what the table tells of its files: sizes, columns, buckets and times. May run beside the node."""
    with _telling():
        from headwater.lake.table_statistics import summed_up

        facts = summed_up(_store(_settings(data, config_file)))
        if as_json:
            typer.echo(json.dumps(facts))
            return
        tables = [facts.pop(name, []) for name in ("columns", "buckets")]
        _show(("", ""), [(name.replace("_", " "), _cell(name, value)) for name, value in facts.items()])
        for rows in tables:
            if rows:
                _show(list(rows[0]), [[_cell(name, value) for name, value in row.items()] for row in rows])


@app.command()
def verify(
    data: Data = None,
    config_file: ConfigFile = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every row, not only the files' footers.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check that catalog, Delta log and objects agree. The node must be stopped."""
    with _telling():
        from headwater.cli.stopped_node import opened
        from headwater.lake.info import read_table
        from headwater.lake.verify import verify as check

        settings = _settings(data, config_file)
        with opened(Path(settings.data), settings.log_file_bytes) as stopped, progress() as tell:
            store = _store(settings)
            found = read_table(store)
            report = check(store, {} if found is None else found[1], stopped, deep, tell)
        if as_json:
            typer.echo(json.dumps(msgspec.to_builtins(report)))
        else:
            for finding in report.findings:
                typer.echo(http.printable(f"{finding.kind}: {finding.subject}: {finding.what}"), err=True)
            facts = msgspec.to_builtins(report)
            facts["findings"] = facts.pop("findings_count")
            _show(("", ""), [(name, _cell(name, value)) for name, value in facts.items()])
        if report.findings_count:
            raise typer.Exit(1)


@app.command()
def contents(data: Data = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Count and hash what the streams hold, to tell whether two copies are the same. The node must be stopped."""
    with _telling():
        from headwater.cli.lake_contents import count

        settings = _settings(data, config_file)
        found = count(Path(settings.data), settings.log_file_bytes)
        if as_json:
            typer.echo(json.dumps(msgspec.to_builtins(found)))
            return
        facts = msgspec.to_builtins(found) | {"files": len(found.files), "blobs": len(found.blobs)}
        _show(("", ""), [(name, _cell(name, value)) for name, value in facts.items()])


@app.command()
def gc(
    data: Data = None,
    config_file: ConfigFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    grace_ms: Annotated[
        int | None,
        typer.Option(
            "--grace-ms", metavar="MS", min=0, help="Instead of the setting lake_grace_ms.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove what nothing refers to. A running node does that by itself: the node must be stopped."""
    with _telling():
        from headwater.cli.stopped_node import opened
        from headwater.lake import gc as collector
        from headwater.lake.info import read_table
        from headwater.lake.lake import DeltaLake
        from headwater.lake.table import LakeTable
        from headwater.ports import SystemClock, SystemRng, Writer

        settings = _settings(data, config_file)
        grace = settings.lake_grace_ms if grace_ms is None else grace_ms
        now_ms = SystemClock().now_ms()
        with opened(Path(settings.data), settings.log_file_bytes) as stopped:
            store = _store(settings)

            def committed() -> dict[str, int]:
                found = read_table(store)
                return {} if found is None else {name: info.modified_ms for name, info in found[1].items()}

            def leave_table(names: list[str]) -> None:
                LakeTable(store).commit([], names, now_ms)

            def cut_log(below: int) -> None:
                LakeTable(store).cut_log(below)

            rows: list[tuple[str, str, str]] = []
            for group in stopped.groups:
                if not dry_run:
                    group.follow(DeltaLake(store, 1 << 20, SystemClock(), SystemRng()))
                listing = collector.survey(store, group.number, committed, now_ms - grace, _go_on)
                plan = collector.plan(
                    listing, Writer(group.number), group.lake_files, group.pending(), now_ms - grace, _go_on
                )
                if not dry_run:
                    collector.carry_out(plan, store, leave_table, cut_log, group.lake_files, now_ms, _go_on)
                    _forget_parts(Path(settings.data) / "cache", [*plan.dead, *(one.key for one in plan.orphans)])
                rows += _planned(plan)
        if as_json:
            shown = [{"what": what, "name": name, "bytes": int(size) if size else None} for what, name, size in rows]
            typer.echo(json.dumps({"dry_run": dry_run, "removed": shown}))
            return
        _show(("what", "name", "bytes"), rows)
        typer.echo(f"{len(rows)} {'would go' if dry_run else 'done'}", err=True)


@app.command("place-forks")
def place_forks(data: Data = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """After a restore: make groups that were cut at different times agree about forks. The node must be stopped."""
    with _telling():
        import asyncio

        from headwater.cli.stopped_node import writable
        from headwater.engine.restored_forks import place_forks as mend

        settings = _settings(data, config_file)

        async def run() -> Any:
            async with writable(Path(settings.data), settings.log_file_bytes) as groups:
                return await mend(groups)

        _show_facts(asyncio.run(run()), as_json)


@app.command("into-cluster")
def into_cluster(
    cluster: Annotated[str, typer.Option("--cluster", metavar="URL", help="Where the cluster's logs are to be.")],
    lake: Annotated[
        str, typer.Option("--lake", metavar="PLACE", help="The directory's lake, which all nodes of the cluster share.")
    ],
    data: Data = None,
    config_file: ConfigFile = None,
    cluster_name: ClusterName = "headwater",
    cluster_replicas: ClusterReplicas = 3,
    cluster_monitors: ClusterMonitors = "auto",
    cluster_credentials: ClusterCredentials = "auto",
    lake_endpoint: Annotated[
        str, typer.Option("--lake-endpoint", metavar="URL", help="S3 server of the lake, if not Amazon's.")
    ] = "auto",
    lake_region: Annotated[
        str, typer.Option("--lake-region", metavar="NAME", help="Region of the lake's bucket.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Begin a cluster with what a stopped node holds. No node of the cluster has been started yet."""
    with _telling():
        flags = {
            "cluster": cluster,
            "cluster_name": cluster_name,
            "cluster_replicas": str(cluster_replicas),
            "cluster_monitors": cluster_monitors,
            "cluster_credentials": cluster_credentials,
            "lake": lake,
            "lake_endpoint": lake_endpoint,
            "lake_region": lake_region,
        }
        from headwater.cli.begin_cluster import begin

        with progress() as tell:
            begun = begin(data, config_file, flags, tell)
        _show_facts(begun, as_json)
        typer.echo(f"start its nodes with: headwater serve --cluster {cluster} --lake {lake} …", err=True)


def _show_facts(found: Any, as_json: bool) -> None:
    facts = msgspec.to_builtins(found)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _show(("", ""), [(name.replace("_", " "), _cell(name, value)) for name, value in facts.items()])


def _planned(plan: Plan) -> list[tuple[str, str, str]]:
    """What becomes of what, and its size where that goes with it."""
    rows = [("leaves the table", name, "") for name in plan.leaving]
    rows += [("grace period begins", name, "") for name in plan.dying if name not in plan.leaving]
    rows += [("dead file", name, "") for name in plan.dead]
    for what, objects in (("orphan", plan.orphans), ("snapshot", plan.snapshots), ("leftover", plan.leftovers)):
        rows += [(what, stored.key, str(stored.size_bytes)) for stored in objects]
    if plan.erasure is not None:
        rows.append(("log of the table", f"before version {plan.erasure.version}", ""))
    return rows


def _forget_parts(cache: Path, gone: list[str]) -> None:
    """What the node's workers keep at hand of files that are gone goes too."""
    from headwater.lake.cache import DiskCache

    for directory in cache.glob("*/"):
        DiskCache(directory, 1 << 62).forget(gone)


def _go_on() -> None:
    """Nothing stops a run from the command line but Ctrl-C."""


def _settings(data: str | None, config_file: Path | None) -> config.Settings:
    flags = {} if data is None else {"data": data}
    settings = config.resolve(flags, config.process_environment(), config_file).settings
    if settings.memory:
        raise http.BadUsage("a node with memory = true has no lake", "name the data directory of another")
    return settings


def _store(settings: config.Settings) -> Any:
    from headwater.lake_location import lake_url, open_lake

    return open_lake(settings, lake_url(settings))


def _info(settings: config.Settings) -> dict[str, Any]:
    from headwater.catalog.lake_files import LakeFiles
    from headwater.cli.stopped_node import check_there
    from headwater.data_directory import DataDirectory
    from headwater.lake.info import describe

    directory = DataDirectory(Path(settings.data))
    groups_count = check_there(directory)
    with ExitStack() as held:
        # SQLite lets others read beside the node; what the node logged since its last checkpoint is not seen.
        catalogs = [
            held.enter_context(closing(LakeFiles(directory.catalog_as_found(number), read_only=True)))
            for number in range(groups_count)
        ]
        counts = {number: catalog.counts() for number, catalog in enumerate(catalogs)}
        return {**describe(_store(settings), counts), "served": directory.is_in_use()}


@contextmanager
def _telling() -> Iterator[None]:
    """A failure is printed with what to do about it and becomes the exit code."""
    from headwater.catalog.sqlite import CatalogMismatch
    from headwater.cli.stopped_node import NoData, NotBegun, Served
    from headwater.engine.recovery import LogContradiction
    from headwater.lake.store import StoreError
    from headwater.log.entries import BadEntry
    from headwater.log.wal_recovery import LogCorrupt
    from headwater.ports import BlobsUnavailable

    try:
        yield
    except ClientError as why:
        typer.echo(http.printable(f"error: {why.message}"), err=True)
        if why.advice:
            typer.echo(http.printable(f"  {why.advice}"), err=True)
        raise typer.Exit(why.exit_code) from None
    except config.BadSettings as bad:
        for problem in bad.problems:
            typer.echo(http.printable(f"error: {problem}"), err=True)
        raise typer.Exit(2) from None
    except (NoData, Served, NotBegun, StoreError, BlobsUnavailable) as why:
        typer.echo(http.printable(f"error: {why}"), err=True)
        raise typer.Exit(1) from None
    except (LogCorrupt, LogContradiction, CatalogMismatch, BadEntry) as why:
        typer.echo(http.printable(f"error: {why}"), err=True)
        raise typer.Exit(1) from None
    except sqlite3.Error as why:
        typer.echo(http.printable(f"error: the catalog cannot be read: {why}"), err=True)
        raise typer.Exit(1) from None


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    if name.endswith("_ms") and isinstance(value, int) and 0 <= value < 253_402_300_800_000:  # Year 10000.
        return datetime.fromtimestamp(value / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _show(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; elsewhere lines that a script can split at tabs."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        for row in rows:
            typer.echo("\t".join(map(http.printable, row)))
        return
    table = Table(*titles, show_header=any(titles))
    for row in rows:
        table.add_row(*map(http.printable, row))
    if table.row_count:
        console.print(table)
