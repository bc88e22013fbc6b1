"""What a cluster is, in one object that its first node writes and every other one agrees with.

Owns that object. Never changes it: the number of groups and where the logs are stay as they were.

    cluster.json        {"format": 1, "id": "...", "groups": 16, "log": "nats headwater" or "s3://bucket/prefix"}
"""

from __future__ import annotations

import msgspec

from headwater.log.medium import Unsure
from headwater.log.object_places import ObjectPlace
from headwater.ports import Rng

KEY = "cluster.json"
FORMAT = 1
ID_BYTES = 8


class Disagreement(Exception):
    """A node's settings are not those of the cluster; the message says which, and what to change."""


class Description(msgspec.Struct, frozen=True):
    format: int
    id: str
    groups: int
    log: str
    """Which logs the cluster has: nodes that write to different ones would not fence each other."""


async def agreed(place: ObjectPlace, groups_wanted: int | None, groups_default: int, log: str, rng: Rng) -> Description:
    """The cluster's description, made when this is its first node. Raises Disagreement, Unavailable, Unsure."""
    data = await place.get(KEY)
    if data is None:
        made = Description(FORMAT, rng.token(ID_BYTES).hex(), groups_wanted or groups_default, log)
        try:
            if await place.create(KEY, msgspec.json.encode(made)):
                return made
        except Unsure:
            pass  # what is there now says whose it is
        data = await place.get(KEY)
        if data is None:
            raise Unsure("the store did not say whether it took the cluster's description: start the node again")
    try:
        found = msgspec.json.decode(data, type=Description)
    except msgspec.MsgspecError as error:
        raise Disagreement(f"{KEY} in the lake's _cluster folder cannot be read: {error}") from None
    if found.format != FORMAT:
        raise Disagreement(f"the cluster has format {found.format}, and this version knows {FORMAT}: use a newer one")
    if groups_wanted not in (None, found.groups):
        raise Disagreement(
            f"the cluster was made with {found.groups} groups, not {groups_wanted}. Their number is fixed when a "
            f"cluster is made: leave --groups out, or restore a backup into a new cluster"
        )
    if found.log != log:
        raise Disagreement(
            f"the cluster of this lake has its logs in {found.log!r}, and this node was told {log!r}: correct "
            f"--cluster, --cluster-name or --lake"
        )
    return found
