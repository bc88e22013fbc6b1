"""A group leaves this process: another one serves it from now on.

Owns whom that is told. Never waits: what was decided before still becomes durable, or fails with the log.
"""

from __future__ import annotations

from headwater.engine.group import Group


def leave(group: Group) -> None:
    """On return nothing more is decided here, and whoever followed a stream or the group has been told. Idempotent."""
    if group.left:
        return
    group.left = True
    for stream in list(group.loaded.by_key.values()):
        followers, stream.followers = stream.followers, None
        for follower in followers or ():
            follower.left(stream)
    for observer in list(group.observers):
        observer.left()
