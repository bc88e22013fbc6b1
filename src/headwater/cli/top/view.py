"""What `headwater top` draws: figures as lines and tables that fit a terminal of a given size.

Owns the layout. Pure: it writes to nothing. Names of streams are shown with what is not printable escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwater.cli.client import printable
from headwater.cli.ctl.common import lasted
from headwater.cli.top.figures import Figures, GroupLine, NodeLine, Pace, Process, StreamLine

WIDE = 140
"""Columns from which on tables stand side by side."""
SUMMARY_LINES = 8
WIDTH_MIN, HEIGHT_MIN = 60, 14
HOT_WARN = 0.8
SHOWN_PACES = (("append", "appends"), ("log_sync", "log syncs"), ("read", "reads"), ("cold_read", "cold reads"))
MORE_PACES = (("flush", "flushes"), ("forward", "sent on"), ("webhook", "webhooks"), ("queue_hand", "claims"))


def screen(found: Figures, where: str, note: str, width: int, height: int) -> RenderableType:
    """As many lines as fit, the last one among them: what keys do, or what is wrong."""
    left = max(0, height - 1 - SUMMARY_LINES - 1)
    tables = _tables(found, width, left)
    parts = [_title(found, where, width), *_summary(found, width), *tables]
    used = 1 + SUMMARY_LINES + sum(_height(table) for table in tables)
    blank = Text("\n" * max(0, height - used - 2))
    return Group(*parts, *([blank] if height - used - 1 > 0 else []), Text(note, style="dim", no_wrap=True))


def printed(found: Figures, where: str, width: int) -> RenderableType:
    """All of it, however long: for one look."""
    return Group(_title(found, where, width), *_summary(found, width), *_tables(found, width, 10_000))


# ---- the head ----------------------------------------------------------------------------------------------------


def _title(found: Figures, where: str, width: int) -> Text:
    up = lasted(int(found.now["uptime_seconds"] * 1000))
    text = Text("headwater ", style="bold", no_wrap=True, overflow="ellipsis", end="\n")
    text.append(f"{found.version}  {printable(where)}  up {up}", style="not bold")
    if found.interval_s:
        text.append(f"  over {found.interval_s:.1f} s", style="dim not bold")
    for trouble in _troubles(found):
        text.append(f"  {trouble}", style="bold red")
    text.truncate(width, overflow="ellipsis")
    return text


def _troubles(found: Figures) -> list[str]:
    silent = sum(bool(node.failure) for node in found.nodes) + int(found.workers_silent)
    troubles = []
    if found.now["log_failed"]:
        troubles.append("LOG FAILED")
    if silent:
        troubles.append(f"{silent} SILENT")
    if found.groups_without_owner:
        troubles.append(f"{found.groups_without_owner:.0f} GROUPS WITHOUT OWNER")
    return troubles


def _summary(found: Figures, width: int) -> list[RenderableType]:
    """SUMMARY_LINES lines."""
    now, rates = found.now, found.rates
    share = now["hot_bytes"] / now["hot_bytes_max"] if now["hot_bytes_max"] else 0.0
    backlog = max(0.0, now["log_synced_position"] - now["lake_position"])
    followers = [
        *((now["sse_open"], "SSE"), (now["long_polls_open"], "long-polls"), (now["topic_tails_open"], "tails")),
        *((now["topic_polls_open"], "polls"), (now["websockets_open"], "WS"), (now["s3p_reads_blocked"], "S3P")),
    ]
    facts = [
        ("memory", _marked(f"{size(now['hot_bytes'])} of {size(now['hot_bytes_max'])}, {share:.0%}", share > HOT_WARN)),
        ("lake", Text(f"{size(backlog)} behind, {span(now['flush_lag_seconds'])}; {size(rates['flushed_bytes'])}/s")),
        ("log", Text(f"{size(now['log_queue_bytes'])} queued, {count(now['answers_pending'])} answers wait")),
        ("clients", Text(f"{count(now['connections_open'] + now['s3p_connections_open'])} connections")),
    ]
    table = Table.grid(padding=(0, 1))
    for justify in ("left", "right", "right", "right"):
        table.add_column(justify=justify, no_wrap=True, min_width=10 if justify == "left" else None)
    table.add_column(width=1)
    table.add_column(no_wrap=True, min_width=7)
    table.add_column(no_wrap=True, overflow="ellipsis")
    wide = width >= WIDE
    if wide:
        table.add_column(width=1)
        for justify in ("left", "right", "right", "right"):
            table.add_column(justify=justify, no_wrap=True)  # type: ignore[arg-type]
    titles = ["", "a second", "p50", "p99"]
    table.add_row(*_dim(titles), "", "", "", *([Text(), *_dim(titles)] if wide else []))
    for (name, shown), (label, fact), (other, more) in zip(SHOWN_PACES, facts, MORE_PACES, strict=True):
        cells = _pace(shown, found.paces[name])
        second = [Text(), *_pace(more, found.paces[other])] if wide else []
        table.add_row(*cells, "", Text(label, style="dim"), fact, *second)
    open_ones = " ".join(f"{count(number)} {name}" for number, name in followers if number) or "none"
    jobs = (
        f"{count(now['queue_jobs_ready'])} ready {count(now['queue_jobs_leased'])} leased "
        f"{count(now['queue_jobs_delayed'])} delayed {count(now['queue_jobs_dying'])} dying"
        f", a second: {count(rates['queue_claims'])} claims {count(rates['queue_acks'])} acks "
        f"{count(rates['queue_nacks'])} nacks {count(rates['queue_expiries'])} expiries"
    )
    return [
        table,
        _line("followers", Text(open_ones), width),
        _line("queues", Text(jobs), width),
        _line("answers", _answers(found), width),
    ]


def _answers(found: Figures) -> Text:
    text = Text("a second: ")
    for name, rate in found.responses.items():
        if rate or name == "2xx":
            text.append(f"{name} {count(rate)}  ", style="red" if name == "5xx" and rate else "")
    for code, rate in sorted(found.errors.items(), key=lambda one: -one[1])[:4]:
        text.append(f"{code} {count(rate)}  ", style="yellow")
    return text


def _line(label: str, text: Text, width: int) -> Text:
    line = Text(f"{label:<10} ", style="dim", no_wrap=True, overflow="ellipsis")
    line.append_text(Text("", style="not dim").append_text(text))
    line.truncate(width, overflow="ellipsis")
    return line


def _pace(name: str, pace: Pace) -> list[Text]:
    shown = [Text(name), Text(count(pace.per_s), style="bold")]
    return [*shown, *(Text("-" if ms is None else milliseconds(ms)) for ms in (pace.p50_ms, pace.p99_ms))]


def _dim(words: Sequence[str]) -> list[Text]:
    return [Text(word, style="dim") for word in words]


def _marked(text: str, alarming: bool) -> Text:
    return Text(text, style="bold red" if alarming else "")


# ---- tables ------------------------------------------------------------------------------------------------------


def _tables(found: Figures, width: int, lines: int) -> list[RenderableType]:
    """Nodes of a cluster, processes, groups and streams, in no more lines than there are."""
    several = len(found.nodes) > 1
    wanted: list[tuple[int, Callable[[int], Table]]] = []
    if several:
        wanted.append((len(found.nodes), lambda rows: _nodes(found.nodes, rows)))
    if not several or width >= WIDE:
        wanted.append((len(found.processes), lambda rows: _processes(found.processes, rows, several)))
    wanted.append((len(found.groups), lambda rows: _groups(found.groups, rows, several)))
    streams_width = width if width < WIDE else width // 2 - 1
    streams = (max(1, len(found.streams)), lambda rows: _streams(found.streams, rows, several, streams_width))
    if width < WIDE:
        shares = _shares([rows for rows, _ in [*wanted, streams]], lines)
        return [make(rows) for rows, (_, make) in zip(shares, [*wanted, streams], strict=True) if rows]
    shares = _shares([rows for rows, _ in wanted], lines)
    left = [make(rows) for rows, (_, make) in zip(shares, wanted, strict=True) if rows]
    (rows,) = _shares([streams[0]], lines)
    both = Table.grid(padding=(0, 2), expand=True)
    both.add_column(ratio=1)
    both.add_column(ratio=1)
    both.add_row(Group(*left), streams[1](rows) if rows else "")
    return [both]


def _shares(wanted: Sequence[int], lines: int) -> list[int]:
    """How many rows each table gets, beside its title: all get one, then whoever wants more, in turn."""
    shares = [0] * len(wanted)
    for index, rows in enumerate(wanted):
        if rows and lines >= 2:
            shares[index], lines = 1, lines - 2
    while lines > 0 and any(share and share < rows for share, rows in zip(shares, wanted, strict=True)):
        for index, rows in enumerate(wanted):
            if 0 < shares[index] < rows and lines > 0:
                shares[index] += 1
                lines -= 1
    return shares


def _height(table: RenderableType) -> int:
    if isinstance(table, Table) and table.show_header:
        return table.row_count + 1
    if isinstance(table, Table):
        return max(sum(_height(part) for part in _parts(cell)) for column in table.columns for cell in column.cells)
    return 0


def _parts(cell: RenderableType) -> Sequence[Any]:
    return list(cell.renderables) if isinstance(cell, Group) else [cell]


def _table(titles: Sequence[str], left_count: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="reverse", expand=True, pad_edge=False)
    for index, title in enumerate(titles):
        if index < left_count:
            table.add_column(title, no_wrap=True, overflow="ellipsis")
        else:
            table.add_column(title, justify="right", no_wrap=True)
    return table


def _nodes(nodes: Sequence[NodeLine], rows: int) -> Table:
    table = _table(["node", "address", "appends/s", "owns", "stands by", "lag", "snapshot", "memory", "clients"], 2)
    for node in nodes[:rows]:
        address = printable(node.url.partition("://")[2])
        if node.failure:
            table.add_row(node.name, Text(f"{address} does not answer", style="bold red"))
            continue
        table.add_row(
            *(node.name, address, count(node.appends_per_s), count(node.groups), count(node.standby_for)),
            *(span(node.standby_lag_s), span(node.snapshot_age_s), size(node.hot_bytes), count(node.connections)),
        )
    return table


def _processes(processes: Sequence[Process], rows: int, several: bool) -> Table:
    table = _table(["node" if several else "worker", "cpu", "resident", "appends/s", "connections", "loop late"], 1)
    for one in sorted(processes, key=lambda one: -one.cpu_percent)[:rows] if rows < len(processes) else processes:
        table.add_row(
            one.node if several else one.worker,
            *(f"{one.cpu_percent:.0f}%", size(one.resident_bytes), count(one.appends_per_s)),
            *(count(one.connections), milliseconds(one.delay_ms)),
        )
    return table


def _groups(groups: Sequence[GroupLine], rows: int, several: bool) -> Table:
    shown = f"group{f' ({rows} of {len(groups)})' if rows < len(groups) else ''}"
    titles = ["appends/s", "memory", "unsettled", "behind", "log queue", "waiting"]
    table = _table([shown, *(["node"] if several else []), *titles], 1 + several)
    for one in groups[:rows]:
        share = one.hot_bytes / one.hot_bytes_max if one.hot_bytes_max else 0.0
        table.add_row(
            Text(f"{one.group} LOG FAILED" if one.failed else one.group, style="bold red" if one.failed else ""),
            *([one.node] if several else []),
            *(count(one.appends_per_s), _marked(f"{size(one.hot_bytes)} {share:.0%}", share > HOT_WARN)),
            *(size(one.unsettled_bytes), span(one.lag_s), size(one.queue_bytes), count(one.waiting)),
        )
    return table


def _streams(streams: Sequence[StreamLine], rows: int, several: bool, width: int) -> Table:
    table = _table(["hottest streams", *(["node"] if several else []), "records/s", "bytes/s"], 1 + several)
    table.columns[0].max_width = max(16, width - (36 if several else 26))
    for one in streams[:rows]:
        cells = [one.node] if several else []
        table.add_row(printable(one.stream), *cells, count(one.records_per_s), size(one.bytes_per_s))
    if not streams:
        table.add_row(Text("none has grown", style="dim"))
    return table


# ---- numbers -----------------------------------------------------------------------------------------------------


def count(number: float) -> str:
    if number >= 100_000_000:
        return f"{number / 1_000_000:,.0f}M"
    if number >= 10 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}"


def size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def milliseconds(ms: float) -> str:
    if ms >= 10_000:
        return f"{ms / 1000:.0f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"


def span(seconds: float) -> str:
    return f"{seconds:.1f} s" if 0 < seconds < 10 else lasted(int(seconds * 1000))
