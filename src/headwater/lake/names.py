"""Names of the lake's objects, and which group each belongs to.

Owns the layout of keys. Never loads Arrow: a node that settles nothing uses this for its upkeep.

    data/<group>/<position>-<token>.parquet             a file of the table; position: the log position of its newest
                                                        record, 20 digits
    snapshots/<group>/<incarnation>/<offset>-<token>    a snapshot of one stream
    e<epoch>-<token>                                    in a cluster, the token of either: in which epoch of the group's
                                                        owner it was written
    snapshots/<incarnation>/<offset>-<token>            the same of group 0, from before there were groups
"""

from __future__ import annotations

import re

from headwater.lake.store import ObjectStore

DATA, SNAPSHOTS = "data", "snapshots"


_EPOCH = re.compile(r"-e(\d{1,18})-[^-/]*$")


def epoch_token(epoch: int, token: str) -> str:
    return f"e{epoch}-{token}" if epoch else token


def epoch_of(key: str) -> int:
    """In which epoch an object was written; 0: by a node that has none."""
    found = _EPOCH.search(key)
    return 0 if found is None else int(found[1])


def data_prefix(group: int) -> str:
    return f"{DATA}/{group}/"


def data_key(group: int, position: int, token: str) -> str:
    return f"{data_prefix(group)}{position:020d}-{token}.parquet"


def data_group(key: str) -> int:
    """The group that a file of the table belongs to. Raises ValueError for what is no such file's name."""
    folder, _, rest = key.partition("/")
    group, slash, _ = rest.partition("/")
    if folder != DATA or not slash or not _is_number(group):
        raise ValueError(f"{key} is no file of the lake's table")
    return int(group)


def data_position(key: str) -> int:
    """The log position of the newest record in a file of the table. Raises ValueError, as above."""
    digits = key.rpartition("/")[2].partition("-")[0]
    if len(digits) != 20 or not _is_number(digits[2:]):
        raise ValueError(f"{key} is no file of the lake's table")
    return int(digits)


def snapshot_key(group: int, sid: int, offset: int, token: str) -> str:
    return f"{SNAPSHOTS}/{group}/{sid}/{offset:020d}-{token}"


def snapshots_of(store: ObjectStore, group: int, sid: int) -> list[str]:
    """Keys of every snapshot of a stream."""
    folders = [f"{SNAPSHOTS}/{group}/{sid}", *([f"{SNAPSHOTS}/{sid}"] if group == 0 else [])]
    found = (stored.key for folder in folders for stored in store.list(folder))
    # A folder of the older kind may be that of a group too.
    return sorted(key for key in found if snapshot_owner(key) == (group, sid))


def snapshot_owner(key: str) -> tuple[int, int] | None:
    """(group, incarnation) of a snapshot; None for what does not look like one."""
    parts = key.split("/")
    if parts[0] != SNAPSHOTS or len(parts) not in (3, 4):
        return None
    numbers = parts[1:-1] if len(parts) == 4 else ["0", parts[1]]
    if not all(_is_number(part) for part in numbers):
        return None
    return int(numbers[0]), int(numbers[1])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
