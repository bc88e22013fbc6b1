"""TLS between the nodes of a cluster: each shows the other its certificate before they introduce themselves.

Owns when the files are looked at. Never judges who a node is: the secret does (`cluster/introduction`).
"""

from __future__ import annotations

import asyncio
import ssl
from functools import partial

from headwater.cluster.introduction import REFUSED
from headwater.config import Settings
from headwater.doors.secure_door import Factory, SecureDoor
from headwater.security.certificates import TlsRefused
from headwater.security.tls import GATE, PEERS, ServerTls
from headwater.start_refused import CannotStart

LOOK_S = 1.0
HANDSHAKE_S = 10.0


class NodesTls:
    """Raises CannotStart."""

    def __init__(self, settings: Settings) -> None:
        try:
            # The doors look at the same files, and tell of them.
            self._tls = ServerTls(settings, lambda event, facts: None)
        except TlsRefused as why:
            raise CannotStart(str(why)) from None
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def accepting(self, accept: Factory) -> SecureDoor:
        """What gives connections of other nodes to `accept`."""
        return SecureDoor(accept, partial(self._tls.context, GATE), lambda: REFUSED, HANDSHAKE_S)

    def connecting(self) -> ssl.SSLContext:
        """What a connection to another node begins with now."""
        return self._tls.context(PEERS)

    def stop(self) -> None:
        self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._tls.check()
