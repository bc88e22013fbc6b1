"""A cluster that begins with a stopped node's directory, for the commands that do it.

Owns the settings it is done with. Never starts a node.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from headwater import config
from headwater.cli.stopped_node import NotBegun
from headwater.cluster.description import Disagreement
from headwater.cluster.new_log import CannotBegin
from headwater.into_cluster import Begun, into_cluster
from headwater.lake.store import StoreError
from headwater.log.medium import MediumError
from headwater.start_refused import CannotStart


def begin(
    data: str | None,
    config_file: Path | None,
    flags: Mapping[str, str],
    progress: Callable[[str, int, int | None], None],
) -> Begun:
    """Raises BadSettings, NotBegun, and what `stopped_node` raises."""
    given = dict(flags) if data is None else {**flags, "data": data}
    # No node is spoken to: none has to be told the secret.
    given.setdefault("cluster_secret_file", os.devnull)
    settings = config.resolve(given, config.process_environment(), config_file).settings
    try:
        return asyncio.run(into_cluster(settings, Path(settings.data), progress))
    except (CannotBegin, CannotStart, Disagreement, MediumError, StoreError, OSError) as error:
        raise NotBegun(str(error)) from error
