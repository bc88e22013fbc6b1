"""The settings of how much one client may use: a part of the table in `config`.

Owns these rows. Never counts anything: `security.limits` and `engine.quotas` do. What protects the process as a whole,
whoever its clients are, stands where it is used (`connections_max`, `hot_bytes_max`, `bodies_bytes_max`).
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.setting_rows import HOUR_MS, LIMITS, SECOND_MS, size, whole
from headwater.setting_values import TIB

_RATE_MAX = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    principal_requests_per_s: int = whole(
        LIMITS, 0, 0, _RATE_MAX, "Requests a second of one key, token or certificate, in each process; 0 is no limit."
    )
    principal_bytes_per_s: int = size(
        LIMITS, 0, 0, 16 * TIB, "Bytes a second that one of them sends in bodies and is sent; 0 is no limit."
    )
    principal_followers_max: int = whole(
        LIMITS, 0, 0, 1_000_000, "Live reads of one of them at a time, in each process; 0 is no limit."
    )
    address_requests_per_s: int = whole(
        LIMITS,
        0,
        0,
        _RATE_MAX,
        "Requests a second from one address (IPv6: from one /64), in each process; 0 is no limit.",
    )
    address_bytes_per_s: int = size(
        LIMITS, 0, 0, 16 * TIB, "Bytes a second that one address sends in bodies and is sent; 0 is no limit."
    )
    address_connections_max: int = whole(
        LIMITS, 0, 0, 1_000_000, "Open connections of one address, in each process; 0 is no limit."
    )
    address_followers_max: int = whole(
        LIMITS, 0, 0, 1_000_000, "Live reads of one address at a time, in each process; 0 is no limit."
    )
    limit_burst_ms: int = whole(
        LIMITS, 2 * SECOND_MS, SECOND_MS, HOUR_MS, "How much of a rate may come at once: what it allows in this time."
    )
    bucket_streams_max: int = whole(
        LIMITS, 0, 0, 1_000_000_000_000, "Streams in one bucket; a creation beyond it is answered 507. 0 is no limit."
    )
    bucket_bytes_max: int = size(
        LIMITS, 0, 0, 1 << 60, "Payload that one bucket keeps; an append beyond it is answered 507. 0 is no limit."
    )
