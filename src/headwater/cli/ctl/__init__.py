"""`headwater ctl …`: operating a running cluster over HTTP. Its commands are put together here.

Owns their names and order. Each module says what its commands do; none of them runs inside a node.
"""

from __future__ import annotations

import typer

from headwater.cli.ctl import looking, moving, restart, restore, verify
from headwater.cli.ctl.common import EXIT_CODES

app = typer.Typer(
    help="Operate a running cluster: see it, wait for it, move groups, restart nodes, check it.",
    no_args_is_help=True,
    epilog=EXIT_CODES,
)
app.command()(looking.status)
app.command("wait-ready")(looking.wait_ready)
app.command()(looking.groups)
app.command()(moving.move)
app.command()(moving.drain)
app.command()(moving.undrain)
app.command()(moving.forget)
app.command()(restart.restart)
app.command()(moving.snapshot)
app.command()(verify.verify)
app.command()(restore.restore)
