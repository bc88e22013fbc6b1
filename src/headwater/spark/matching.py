"""Reads of streams that do not exist: nothing has the name, fits the pattern or is in the bucket.

Says so in a warning. Never stops a read unless the caller asked for that: the streams may be created later.
"""

from __future__ import annotations

import logging

from headwater.spark.job_runs import JobRefused
from headwater.spark.node import Node, NodeError
from headwater.spark.options import Options
from headwater.spark.selection import Selection

log = logging.getLogger("headwater.spark")


class NoMatch(NodeError):
    """What is to be read does not exist, and the read was told not to put up with that."""


def check_match(options: Options, node: Node) -> None:
    """For the source: tells the log. Raises NoMatch instead, if that was asked for."""
    missing = _missing(node, options.selection)
    if missing and options.fail_on_no_match:
        raise NoMatch("; ".join(missing))
    for one in missing:
        log.warning("%s", one)


def job_match(node: Node, selection: Selection, require: bool) -> list[str]:
    """For a job: what its summary is to say. Raises JobRefused instead when a match is required."""
    missing = _missing(node, selection)
    if missing and require:
        raise JobRefused("; ".join(missing), "name streams that there are, or leave out --require-match")
    return missing


def _missing(node: Node, selection: Selection) -> list[str]:
    return [f"{what} on {node.url}" for what in selection.unmatched(node)]
