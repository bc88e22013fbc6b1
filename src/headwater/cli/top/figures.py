"""What `headwater top` shows, from two looks at each node: rates, times, and what is most of each kind.

Owns the arithmetic. Pure: it asks nobody, and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

Metrics = Mapping[str, Any]
"""As `GET /__headwater/metrics` gives them."""

PACES = ("append", "log_sync", "read", "cold_read", "flush", "forward", "webhook", "queue_hand")
"""What has a histogram."""
RATES = (
    *("appends", "reads", "cold_reads", "flushed_bytes", "requests_forwarded", "webhooks_delivered", "webhooks_failed"),
    *("deliveries", "queue_claims", "queue_acks", "queue_nacks", "queue_expiries", "queue_dead_letters"),
    *("router_records_copied", "connections_refused"),
)
SUMS = (
    *("streams_loaded", "hot_bytes", "hot_bytes_max", "log_queue_bytes", "answers_pending", "cold_reads_pending"),
    *("connections_open", "s3p_connections_open", "s3p_reads_blocked", "sse_open", "long_polls_open"),
    *("topic_tails_open", "topic_polls_open", "websockets_open", "queues", "queue_jobs_ready", "queue_jobs_leased"),
    *("queue_jobs_delayed", "queue_jobs_dying", "routers", "routers_stuck", "router_lag_records", "log_failed"),
    *("log_synced_position", "lake_position", "resident_bytes", "subscriptions"),
)
GREATEST = ("flush_lag_seconds", "delivery_pressure", "event_loop_delay_seconds", "uptime_seconds")


class Look(msgspec.Struct, frozen=True):
    """At one node."""

    name: str
    url: str
    at_s: float
    metrics: dict[str, Any] | None = None
    """None: it did not answer."""
    streams: list[dict[str, Any]] = []
    failure: str = ""
    started: str = ""
    """Another one after a restart of the process: its counts began anew."""


class Pace(msgspec.Struct, frozen=True):
    per_s: float
    p50_ms: float | None
    p99_ms: float | None
    """None when there was none."""


class Process(msgspec.Struct, frozen=True):
    node: str
    worker: str
    cpu_percent: float
    """Of one core."""
    resident_bytes: float
    appends_per_s: float
    connections: float
    delay_ms: float


class GroupLine(msgspec.Struct, frozen=True):
    group: str
    node: str
    appends_per_s: float
    hot_bytes: float
    hot_bytes_max: float
    unsettled_bytes: float
    lag_s: float
    queue_bytes: float
    waiting: float
    failed: bool


class StreamLine(msgspec.Struct, frozen=True):
    stream: str
    node: str
    records_per_s: float
    bytes_per_s: float


class NodeLine(msgspec.Struct, frozen=True):
    name: str
    url: str
    failure: str
    """Empty when it answers."""
    appends_per_s: float = 0.0
    groups: float = 0.0
    """That it owns; of a node by itself all."""
    standby_for: float = 0.0
    standby_lag_s: float = 0.0
    snapshot_age_s: float = 0.0
    hot_bytes: float = 0.0
    connections: float = 0.0


class Figures(msgspec.Struct, frozen=True):
    interval_s: float
    version: str
    nodes: list[NodeLine]
    paces: dict[str, Pace]
    rates: dict[str, float]
    """A second."""
    now: dict[str, float]
    responses: dict[str, float]
    """A second, by class."""
    errors: dict[str, float]
    """A second, by code; those that there were."""
    groups_without_owner: float
    workers_silent: float
    processes: list[Process]
    groups: list[GroupLine]
    streams: list[StreamLine]


def figures(before: Sequence[Look], after: Sequence[Look]) -> Figures:
    """`before` and `after` are looks at the same nodes, or at some of them. A node that was not there before has no
    rates yet."""
    earlier = {look.url: look for look in before if look.metrics is not None}
    pairs = [(_comparable(earlier.get(look.url), look), look) for look in after if look.metrics is not None]
    spans = [look.at_s - first.at_s for first, look in pairs if first is not look]
    seen = [look.metrics or {} for _, look in pairs]
    return Figures(
        interval_s=max(spans, default=0.0),
        version=", ".join(sorted({version for one in seen for version in one.get("build", {})})),
        nodes=[_node(next((first for first, last in pairs if last is look), look), look) for look in after],
        paces={name: _pace(pairs, f"{name}_seconds") for name in PACES},
        rates={name: sum(_rate(first, last, name) for first, last in pairs) for name in RATES},
        now=_now(seen),
        responses=_rates_by_label(pairs, "responses"),
        errors={code: rate for code, rate in _rates_by_label(pairs, "errors").items() if rate > 0},
        groups_without_owner=max((one.get("cluster_groups_without_owner", 0) for one in seen), default=0),
        workers_silent=sum(one.get("workers", 0) - one.get("workers_answering", 0) for one in seen),
        processes=[line for first, last in pairs for line in _processes(first, last)],
        groups=sorted((line for pair in pairs for line in _groups(*pair)), key=_busiest, reverse=True),
        streams=_streams(look for _, look in pairs),
    )


def _comparable(first: Look | None, last: Look) -> Look:
    """The look before, unless counts have begun anew since."""
    if first is None or first.at_s >= last.at_s:
        return last
    was, now = ((look.metrics or {}).get("cpu_seconds", 0) for look in (first, last))
    return last if now < was and (first.metrics or {}).get("uptime_seconds", 0) > 0 else first


def _rate(first: Look, last: Look, name: str) -> float:
    took_s = last.at_s - first.at_s
    if took_s <= 0:
        return 0.0
    was, now = ((look.metrics or {}).get(name, 0) for look in (first, last))
    return max(0.0, (now - was) / took_s)


def _rates_by_label(pairs: Iterable[tuple[Look, Look]], name: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for first, last in pairs:
        for label in (last.metrics or {}).get(name, {}):
            found[label] = found.get(label, 0.0) + _labelled_rate(first, last, name, label)
    return found


def _labelled_rate(first: Look, last: Look, name: str, label: str) -> float:
    took_s = last.at_s - first.at_s
    if took_s <= 0:
        return 0.0
    was, now = ((look.metrics or {}).get(name, {}).get(label, 0) for look in (first, last))
    return max(0.0, (now - was) / took_s)


def _now(seen: Sequence[Metrics]) -> dict[str, float]:
    sums = {name: float(sum(one.get(name, 0) for one in seen)) for name in SUMS}
    return sums | {name: float(max((one.get(name, 0) for one in seen), default=0)) for name in GREATEST}


# ---- times -------------------------------------------------------------------------------------------------------


def _pace(pairs: Iterable[tuple[Look, Look]], name: str) -> Pace:
    per_s, counts, bounds = 0.0, [0.0], [0.0]
    for first, last in pairs:
        now, was = (last.metrics or {}).get(name), (first.metrics or {}).get(name)
        took_s = last.at_s - first.at_s
        if now is None or was is None or took_s <= 0:
            continue
        grown = [max(0, b - a) for a, b in zip(was["counts"], now["counts"], strict=True)]
        counts = grown if len(counts) == 1 else [a + b for a, b in zip(counts, grown, strict=True)]
        bounds = now["le"]
        per_s += sum(grown) / took_s
    return Pace(per_s, percentile_ms(bounds, counts, 0.5), percentile_ms(bounds, counts, 0.99))


def percentile_ms(bounds_s: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """Where that share of them ends, as if those of a bucket lay evenly in it. The last bucket has no end: what lies
    there is told as its beginning."""
    total = sum(counts)
    if not total:
        return None
    wanted, below = share * total, 0.0
    for index, count in enumerate(counts):
        if count and below + count >= wanted:
            low = bounds_s[index - 1] if index else 0.0
            high = bounds_s[index] if index < len(bounds_s) else low
            return (low + (high - low) * (wanted - below) / count) * 1000
        below += count
    return bounds_s[-1] * 1000


# ---- lines -------------------------------------------------------------------------------------------------------


def _node(first: Look, last: Look) -> NodeLine:
    now = last.metrics
    if now is None:
        return NodeLine(last.name, last.url, last.failure)
    return NodeLine(
        last.name,
        last.url,
        "",
        _rate(first, last, "appends"),
        now.get("cluster_groups_owned", len(now.get("group_appends", {}))),
        now.get("cluster_standbys_ready", 0),
        now.get("cluster_standby_lag_seconds", 0.0),
        now.get("cluster_snapshot_age_seconds", 0.0),
        now.get("hot_bytes", 0),
        now.get("connections_open", 0) + now.get("s3p_connections_open", 0),
    )


def _processes(first: Look, last: Look) -> list[Process]:
    now = last.metrics or {}
    return [
        Process(
            last.name,
            worker,
            100 * _labelled_rate(first, last, "worker_cpu_seconds", worker),
            now.get("worker_resident_bytes", {}).get(worker, 0),
            _labelled_rate(first, last, "worker_appends", worker),
            now.get("worker_connections_open", {}).get(worker, 0),
            1000 * now.get("worker_event_loop_delay_seconds", {}).get(worker, 0),
        )
        for worker in now.get("worker_cpu_seconds", {})
    ]


def _groups(first: Look, last: Look) -> list[GroupLine]:
    now = last.metrics or {}

    def of(name: str, group: str) -> float:
        return float(now.get(f"group_{name}", {}).get(group, 0))

    return [
        GroupLine(
            group,
            last.name,
            _labelled_rate(first, last, "group_appends", group),
            of("hot_bytes", group),
            of("hot_bytes_max", group),
            of("unsettled_bytes", group),
            of("flush_lag_seconds", group),
            of("log_queue_bytes", group),
            of("answers_pending", group),
            of("log_failed", group) > 0,
        )
        for group in now.get("group_appends", {})
    ]


def _busiest(line: GroupLine) -> tuple[bool, float, float, int]:
    return line.failed, line.appends_per_s, line.hot_bytes, -int(line.group)


def _streams(looks: Iterable[Look]) -> list[StreamLine]:
    lines = [
        StreamLine(str(one["stream"]), look.name, float(one["records_per_s"]), float(one["bytes_per_s"]))
        for look in looks
        for one in look.streams
    ]
    return sorted(lines, key=lambda line: (line.records_per_s, line.bytes_per_s), reverse=True)
