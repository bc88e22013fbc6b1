"""TLS in numbers: handshakes, who was slow or spoke without it, and the certificate's end.

Owns names and help texts. Never counts: the doors do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.observe.metrics import Gauge

if TYPE_CHECKING:
    from headwater.doors.secure_door import SecureDoor
    from headwater.doors.tls_doors import TlsDoors


def tls_gauges(secured: TlsDoors) -> list[Gauge]:
    def total(read: Callable[[SecureDoor], float]) -> Callable[[], float]:
        return lambda: sum(map(read, secured.doors))

    tls = secured.tls
    return [
        Gauge("tls_handshakes_open", "TLS handshakes under way.", total(lambda door: door.handshakes_count)),
        Gauge("tls_silent_connections", "Connections that said nothing yet.", total(lambda door: door.waiting_count)),
        Gauge("tls_handshakes_failed", "Handshakes that came to nothing.", total(lambda door: door.failed_count), True),
        Gauge("tls_displaced", "Slow connections that made room.", total(lambda door: door.displaced_count), True),
        Gauge("tls_plain", "Connections that spoke without TLS.", total(lambda door: door.plain_count), True),
        Gauge("tls_reloads", "Certificates that were loaded again.", lambda: tls.reloads_count, True),
        Gauge("tls_reloads_refused", "New certificates that could not be used.", lambda: tls.refused_count, True),
        Gauge(
            "tls_certificate_expiry_timestamp_seconds",
            "When the certificate ends, in seconds since 1970.",
            lambda: tls.loaded.expires.timestamp(),
            merge=min,
        ),
    ]
