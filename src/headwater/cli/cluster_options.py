"""Options of commands that begin a cluster: where its logs are in NATS. Named and explained alike in all of them."""

from __future__ import annotations

from typing import Annotated

import typer

ClusterName = Annotated[str, typer.Option("--cluster-name", metavar="NAME", help="Of NATS streams.")]
ClusterReplicas = Annotated[int, typer.Option("--cluster-replicas", metavar="COUNT", help="Copies of a log in NATS.")]
ClusterMonitors = Annotated[
    str, typer.Option("--cluster-monitors", metavar="URLS", help="Monitoring endpoints of the NATS servers.")
]
ClusterCredentials = Annotated[str, typer.Option("--cluster-credentials", metavar="FILE", help="Credentials for NATS.")]
