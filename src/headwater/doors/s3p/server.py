"""The S3P listener: what its connections share, and the pass that sends their replies.

Owns the keys of names and the order of that pass. Never looks at a command: `connection` does.
"""

from __future__ import annotations

from headwater.config import Settings
from headwater.doors.listener import Listener
from headwater.doors.s3p import names
from headwater.doors.s3p.commands import Limits
from headwater.doors.s3p.connection import Connection
from headwater.engine.engine import Engine

_KEYS_MAX = 65_536
_KEPT_NAME_BYTES_MAX = 128


class S3pServer(Listener[Connection]):
    def __init__(self, settings: Settings, engine: Engine) -> None:
        super().__init__(settings.s3p_connections_max)
        self.settings = settings
        self.engine = engine
        self.submit = engine.submit
        self.limits = Limits(
            name_bytes_max=settings.s3p_name_bytes_max,
            count_default=settings.s3p_count_default,
            count_max=settings.s3p_count_max,
            block_ms_max=settings.s3p_block_ms_max,
            records_max=settings.s3p_records_max,
            record_bytes_max=settings.s3p_record_bytes_max,
            append_bytes_max=settings.s3p_append_bytes_max,
        )
        self.blocked_count = 0
        """READs that wait for records."""
        self.keys: dict[bytes, str] = {}
        """Keys of the names that were used lately."""
        self._due: list[Connection] = []

    def accept(self) -> Connection:
        return Connection(self)

    def key(self, name: bytes) -> str:
        """Clients repeat their names: the keys of short ones are kept. Overflow: all are forgotten."""
        key = self.keys.get(name)
        if key is None:
            key = names.key_of(name)
            if len(name) <= _KEPT_NAME_BYTES_MAX:
                if len(self.keys) >= _KEYS_MAX:
                    self.keys.clear()
                self.keys[name] = key
        return key

    def soon(self, connection: Connection) -> None:
        """Has `connection.advance` called in the next turn, together with all others that ask until then."""
        if not self._due:
            self._loop.call_soon(self._pass)
        self._due.append(connection)

    def _pass(self) -> None:
        due, self._due = self._due, []
        for connection in due:
            try:
                connection.advance()
            except Exception:
                connection.broke()
