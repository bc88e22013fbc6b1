"""`headwater ctl restore`: what brings a cluster back whose logs are lost. No node runs meanwhile.

Owns the question to the operator, and what is shown of each group before it. `cluster.restore` does the work.
"""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headwater import config
from headwater.cli.client import BadUsage, ClientError
from headwater.cli.ctl.common import AsJson, counted, note, say, show, telling
from headwater.cli.ctl.health import groups

if TYPE_CHECKING:
    from headwater.cluster.nodes import Node
    from headwater.cluster.restore import Found

NODE_ANSWERS_S_MAX = 3.0


def restore(
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="URL", help="As for `headwater serve`.", show_default=False)
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="URL", help="As for `headwater serve`.", show_default=False)
    ] = None,
    lake_endpoint: Annotated[str | None, typer.Option("--lake-endpoint", metavar="URL", show_default=False)] = None,
    lake_region: Annotated[str | None, typer.Option("--lake-region", metavar="NAME", show_default=False)] = None,
    cluster_name: Annotated[str | None, typer.Option("--cluster-name", metavar="NAME", show_default=False)] = None,
    cluster_replicas: Annotated[str | None, typer.Option("--cluster-replicas", metavar="N", show_default=False)] = None,
    cluster_monitors: Annotated[
        str | None, typer.Option("--cluster-monitors", metavar="URLS", show_default=False)
    ] = None,
    cluster_credentials: Annotated[
        str | None, typer.Option("--cluster-credentials", metavar="FILE", show_default=False)
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="TOML file with the settings of a node.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before it is done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring back a cluster that has lost its logs, from its catalog snapshots and its lake. No node may run.

    Shows for each group what there is, and up to where its data comes back; asks; and then makes it so that nodes that
    are started afterwards go on from there. Groups whose log is there are left alone: for those, as for a cluster whose
    log is in an object store, starting nodes is all that is needed, whatever was on their disks.

    What comes back of a group that lost its log is what its newest catalog snapshot lists: everything that had settled
    in the lake by then. What was acknowledged later is lost, and this says so before it does anything.

    Settings are those of a node: flags, HEADWATER_… variables, or --config.

    Exit codes: 0 nodes can be started; 1 something is wrong, or the answer was no; 2 the command was wrong.

    Example: headwater ctl restore --lake s3://bucket/prefix --cluster nats://10.0.0.1:4222
    """
    with telling(), _explained():
        flags = {
            "lake": lake,
            "cluster": cluster,
            "lake_endpoint": lake_endpoint,
            "lake_region": lake_region,
            "cluster_name": cluster_name,
            "cluster_replicas": cluster_replicas,
            "cluster_monitors": cluster_monitors,
            "cluster_credentials": cluster_credentials,
        }
        settings = _settings({name: value for name, value in flags.items() if value is not None}, config_file)
        import asyncio  # Late, as all of the server: other commands need none of it.

        asyncio.run(_restore(settings, yes, as_json))


def _settings(flags: dict[str, Any], config_file: Path | None) -> config.Settings:
    # A node has to have a secret. This joins no cluster, so it needs none.
    secret = {"cluster_secret_file": "none"}
    settings = config.resolve(secret | flags, config.process_environment(), config_file).settings
    if not settings.in_cluster:
        raise BadUsage("--cluster is missing", "give it, and --lake, as the nodes have them")
    return settings


@contextmanager
def _explained() -> Iterator[None]:
    from headwater.lake.store import StoreError
    from headwater.log.medium import MediumError
    from headwater.start_refused import CannotStart

    try:
        yield
    except config.BadSettings as bad:
        raise BadUsage("; ".join(map(str, bad.problems)), "see: headwater config docs") from None
    except (CannotStart, StoreError, MediumError, OSError) as why:
        raise ClientError(str(why), "what was done before stays done; the command can be given again") from None


async def _restore(settings: config.Settings, yes: bool, as_json: bool) -> None:
    import asyncio

    from headwater import lake_location
    from headwater.cluster.description import KEY, Description
    from headwater.cluster.nodes import Registry
    from headwater.cluster.restore import LOST, WRONG, Restore
    from headwater.cluster_groups import logs_of
    from headwater.ports import SystemRng

    url = lake_location.cluster_url(settings)
    place = lake_location.open_place(settings, url)
    data = await place.get(KEY)
    if data is None:
        raise BadUsage(f"no cluster was ever made at {url}", "check --lake")
    description = msgspec.json.decode(data, type=Description)
    logs = logs_of(settings)
    if description.log != logs.where:
        raise BadUsage(
            f"the cluster of this lake has its logs in {description.log!r}, and not in {logs.where!r}",
            "correct --cluster or --cluster-name",
        )
    for node in await Registry(place).nodes():
        await asyncio.to_thread(_refuse_running, node)
    await logs.open()
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-restore-") as folder:
            lake = lake_location.open_lake(settings, lake_location.lake_url(settings))
            store = lake_location.open_lake(settings, url)
            work = Restore(lake, store, logs, description.groups, Path(folder), SystemRng())
            found = await work.survey()
            if as_json:
                typer.echo(json.dumps({"groups": [_facts(one) for one in found]}))
            else:
                _show(found)
            if wrong := [one.group for one in found if one.state == WRONG]:
                raise ClientError(f"something else has to be done about {groups(wrong)} first", "nothing was changed")
            lost = [one for one in found if one.state == LOST]
            if not lost:
                note("no log is lost that a snapshot could replace: start the nodes")
                return
            if not yes and not typer.confirm(_question(lost), err=True):
                raise ClientError("nothing was changed")
            await logs.agree(description.id)
            for one in lost:
                made = await work.carry_out(one)
                note(f"group {one.group} goes on from position {made.position}")
    finally:
        await logs.close()
    say(f"restored {counted(len(lost), 'group')}: start the nodes")


def _refuse_running(node: Node) -> None:
    """Raises ClientError when something accepts connections where a registered node was."""
    for address in dict.fromkeys((node.address, node.public_address)):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), NODE_ANSWERS_S_MAX):
                pass
        except (OSError, ValueError):
            continue
        raise ClientError(
            f"node {node.number} answers at {address}", "stop every node first: a restore replaces what they write to"
        )


def _show(found: list[Found]) -> None:
    titles = ("group", "log", "comes back up to", "snapshot of", "streams", "lost of them", "files missing", "")
    show(titles, [_row(one) for one in found])


def _row(one: Found) -> tuple[str, ...]:
    cut = one.cut
    if cut is None:
        return (str(one.group), one.state, str(one.position), "-", "-", "-", "-", one.what)
    written = datetime.fromtimestamp(one.written_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    lost = f"{cut.cut_bytes:,} bytes at the end of {counted(cut.cut_count, 'stream')}"
    remarks = [one.what]
    if one.damaged:
        remarks.append(f"{counted(len(one.damaged), 'newer snapshot')} cannot be loaded")
    if cut.gone_count:
        remarks.append(f"{counted(cut.gone_count, 'fork')} begin later, for their source lost what they shared")
    if one.later_files_count:
        remarks.append(f"{counted(one.later_files_count, 'file')} of the lake are newer than the snapshot and not read")
    missing = str(len(one.missing_files))
    return (
        *(str(one.group), one.state, str(one.position), written, str(cut.streams_count), lost, missing),
        "; ".join(remarks),
    )


def _facts(one: Found) -> dict[str, Any]:
    return msgspec.to_builtins(one) | {"snapshot": None if one.snapshot is None else one.snapshot.told()}


def _question(lost: list[Found]) -> str:
    gone = sum(one.cut.cut_bytes for one in lost if one.cut is not None)
    return (
        f"{groups(one.group for one in lost)} will go on from the positions above. Everything acknowledged after them "
        f"is given up, and so are {gone:,} bytes that only the logs held. Go on?"
    )
