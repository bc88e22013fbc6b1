"""Reads of what there was: `asOfPosition` and `asOfTimestamp`, of a lake by its table's versions, of a node by its log.

Owns which version or position that is, and the refusal of one that cannot be read exactly. Never opens a data file.

    a lake alone    the newest version of the table by then, with every row of its files, as long as these are kept
    a node          the records up to there that there are; refused when streams have let go of some since
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headwater.spark.group_states import Heads, losses
from headwater.spark.lake_place import Place
from headwater.spark.node import DataLoss, Node
from headwater.spark.options import BadOptions, Options, of_each
from headwater.spark.planning import CLOCK_SLACK_MS, position_at, reached
from headwater.spark.ranges import Positions

if TYPE_CHECKING:
    from headwater.lake.past import Past

LOSSES_SHOWN = 10
log = logging.getLogger("headwater.spark")


class TooOld(DataLoss):
    """What there was then cannot be read any more as it was; the message says since when it can."""

    def __reduce__(self) -> tuple[Any, ...]:
        return TooOld, (str(self),)


# ---- a node --------------------------------------------------------------------------------------------------------


def ending(options: Options, node: Node, heads: Heads) -> Options:
    """The options with the positions that they come to. Raises BadOptions for those that the node has not reached."""
    if options.as_of is not None:
        return options._replace(ending=reached("asOfPosition", options.as_of, heads))
    if options.as_of_ms is None:
        return options
    _past_moment(options.as_of_ms)
    until = {group: position_at(node, group, options.place, options.as_of_ms + 1) for group in heads}
    return options._replace(ending=until)


def judge_since(options: Options, node: Node, starts: Positions, until: Positions) -> None:
    """Raises TooOld, or tells the log, when streams have let go of records since the read's moment.

    What a stream let go of last is known, and when; not how much it had then. So a read before that is never called
    exact, whatever else it had let go of.
    """
    since = [loss for group in until for loss in losses(node, group, starts[group]) if loss.at > until[group]]
    mine = [loss for loss in since if options.selection.takes(loss.bucket, loss.stream)]
    if not mine:
        return
    first: dict[int, int] = dict(until)
    for loss in mine:
        first[loss.group] = max(first[loss.group], loss.at)
    named = ", ".join(f"{loss.bucket}/{loss.stream}" for loss in mine[:LOSSES_SHOWN])
    more = f" and {len(mine) - LOSSES_SHOWN} more" if len(mine) > LOSSES_SHOWN else ""
    text = (
        f"{len(mine)} streams have let go of records since the moment that this read is of: {named}{more}. The "
        f"earliest position that can be read as it was is {_spelled(first)}"
    )
    if options.fail_on_loss:
        raise TooOld(
            f"{text}. To have what is left of them set failOnDataLoss to false; the option lake without url reads the "
            "lake's table as it was, with what was let go of since"
        )
    log.warning("%s", text)


# ---- a lake alone --------------------------------------------------------------------------------------------------


def version_of(place: Place, options: Options) -> int | None:
    """Which version of the table is read; None: the newest. Raises TooOld, BadOptions, StoreError."""
    if options.as_of is None and options.as_of_ms is None:
        return None
    # Imported here: an executor, which imports this module, needs no library for the table.
    from headwater.lake.past import missing_files, read_past

    store = place.store()
    past = read_past(store)
    if options.as_of is not None:
        known = past.positions_at(len(past.commits) - 1)
        at = past.at_positions(of_each("asOfPosition", options.as_of, known) if known else options.as_of)
    else:
        _past_moment(options.as_of_ms or 0)
        at = past.at_moment(options.as_of_ms or 0)
    if at is None:
        raise TooOld(_too_old(store.uri, "the table's log does not reach so far back", past, 0))
    if missing_files(store, past.files_at(at) & past.removed_after(at)):
        gone = missing_files(store, past.removed_after(at))
        raise TooOld(
            _too_old(store.uri, "files that the table had then were replaced, and are gone", past, past.kept_from(gone))
        )
    return past.commits[at].version


def _too_old(uri: str, why: str, past: Past, at: int) -> str:
    commit = past.commits[at]
    moment = datetime.fromtimestamp(commit.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return (
        f"{uri} cannot be read as it was then: {why}. The earliest that can be read is version {commit.version}: "
        f"asOfTimestamp {moment.replace('+00:00', 'Z')}, asOfPosition {_spelled(past.positions_at(at))}"
    )


def _past_moment(ms: int) -> None:
    if ms > int(time.time() * 1000) + CLOCK_SLACK_MS:
        raise BadOptions("asOfTimestamp lies in the future: what there will be then nobody can tell")


def _spelled(positions: Mapping[int, int]) -> str:
    return json.dumps({str(group): position for group, position in sorted(positions.items())})
