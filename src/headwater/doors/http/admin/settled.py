"""How far records of a group are in the lake at most.

Owns the look-up. Never lists files: their names say it.
"""

from __future__ import annotations

from headwater.engine.group import Group
from headwater.lake.names import data_prefix


def settled_position(group: Group) -> int:
    """Nothing after it is in the lake. A file is named by the position of its newest record."""
    known = group.catalog.newest_file(data_prefix(group.number))
    names = list(group.loaded.new_files) if known is None else [known, *group.loaded.new_files]
    found = [name.rpartition("/")[2].partition("-")[0] for name in names]
    return max((int(digits) for digits in found if digits.isdigit()), default=0)
