"""The guard that a node's settings ask for.

Owns the reading of what they name. Never judges anything.
"""

from __future__ import annotations

from pathlib import Path

from headwater.config import Settings
from headwater.ports import Clock
from headwater.security.guard import Guard, file_key_of
from headwater.security.secret_file import read_secret
from headwater.setting_values import AUTO
from headwater.start_refused import CannotStart


def new_guard(settings: Settings, clock: Clock) -> Guard:
    """Raises CannotStart."""
    if not settings.auth_on:
        return Guard(clock)
    if settings.admin_key_file == AUTO:
        return Guard(clock, on=True)
    path = Path(settings.admin_key_file)
    try:
        found = file_key_of(read_secret(path))
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"cannot read the admin_key_file {path}: {error}") from None
    if found is None:
        raise CannotStart(f"{path} holds no key: make one with `headwater token new > FILE; chmod 600 FILE`")
    return Guard(clock, on=True, file_key=found)
