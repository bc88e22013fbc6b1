"""What the journals of a crashed run demand of the server: each promise as one check, through HTTP alone.
It owns the meaning of the journals that `tests.support.writer` writes; it never writes to the streams they describe."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.http import Connection, read_bytes, read_messages
from tests.support.node import Node
from tests.support.writer import JSON, LIFE_LARGE_EVERY, message, record

PROBLEMS_SHOWN = 25


@dataclass
class Told:
    """What one worker's journal says about its records."""

    sent: list[list[int]] = field(default_factory=list)
    acked: dict[int, str | None] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)

    def numbers_sent(self) -> set[int]:
        return {n for ns in self.sent for n in ns}


class Verifier:
    """Checks a node against journals that stand still. Knows nothing that is not in them or in the plans."""

    def __init__(self, journal_directory: Path, workers: Sequence[dict[str, Any]]) -> None:
        self.directory = journal_directory
        self.workers = workers
        # Journals only grow: what was read of each, and up to which byte.
        self._entries: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._read_bytes: dict[str, int] = defaultdict(int)

    def check(self, node: Node, settled: bool, context: str) -> None:
        """Fail with every broken promise found. `settled`: the writer ended well, producers know of everything."""
        problems: list[str] = []
        with node.connect() as connection:
            for worker in self.workers:
                for entry in self.entries(worker["name"]):
                    if entry["op"] == "broken":
                        problems.append(f"{worker['name']}: {entry['why']}")
            for stream in sorted({w["stream"] for w in self.workers if w["kind"] != "life"}):
                problems += self._stream_problems(connection, stream, settled)
            for worker in self.workers:
                if worker["kind"] == "life":
                    problems += self._life_problems(connection, worker)
        assert node.running, f"the server died while being checked {context}\n{node.output()}"
        shown = "\n".join(problems[:PROBLEMS_SHOWN])
        assert not problems, f"{len(problems)} broken promises {context}:\n{shown}\n{node.output()}"

    def entries(self, name: str) -> list[dict[str, Any]]:
        path = self.directory / f"{name}.jsonl"
        if path.exists():
            with path.open("rb") as journal:
                journal.seek(self._read_bytes[name])
                added = journal.read()
            # A line without its end is being written: it is read the next time.
            whole = added[: added.rfind(b"\n") + 1]
            self._read_bytes[name] += len(whole)
            self._entries[name] += [json.loads(line) for line in whole.splitlines()]
        return self._entries[name]

    def acknowledged(self, kind: str) -> int:
        """How many records (or steps of a life) all workers of one kind had acknowledged."""
        names = [worker["name"] for worker in self.workers if worker["kind"] == kind]
        ops = [entry for name in names for entry in self.entries(name)]
        return sum(len(entry.get("ns", [0])) for entry in ops if entry["op"] in ("acked", "done"))

    def _told(self, name: str) -> Told:
        told = Told()
        for entry in self.entries(name):
            match entry["op"]:
                case "sent":
                    told.sent.append(entry["ns"])
                case "acked":
                    for n in entry["ns"]:
                        told.acked[n] = entry["offset"] if entry["new"] else None
                case "refused":
                    told.refused.update(entry["ns"])
        return told

    def _stream_problems(self, connection: Connection, stream: str, settled: bool) -> Iterator[str]:
        path = f"/v1/stream/{stream}"
        writers = [w for w in self.workers if w["stream"] == stream and w["kind"] != "observer"]
        is_json = writers[0].get("content_type") == JSON
        if is_json:
            found = [(str(m["writer"]), int(m["n"]), m) for m in read_messages(connection, path)]
            ends = list(range(len(found)))
        else:
            data = read_bytes(connection, path)
            found, ends = [], []
            end = 0
            for line in data.splitlines(keepends=True):
                end += len(line)
                fields = line.split(b" ", 2)
                if len(fields) != 3 or not fields[1].isdigit():
                    yield f"{stream} before byte {end}: not a record anyone sent: {line[:80]!r}"
                    continue
                found.append((fields[0].decode(errors="replace"), int(fields[1]), line))
                ends.append(end)
            yield from self._shown_problems(stream, data)
            tail = connection.request("HEAD", path).header("stream-next-offset")
            if tail != f"{len(data):020d}":
                yield f"{stream}: tail {tail}, but {len(data)} bytes"
        yield from self._record_problems(stream, writers, found, ends, is_json, settled)

    def _record_problems(
        self,
        stream: str,
        writers: list[dict[str, Any]],
        found: list[tuple[str, int, Any]],
        ends: list[int],
        is_json: bool,
        settled: bool,
    ) -> Iterator[str]:
        make = message if is_json else record
        large_bytes = {writer["name"]: writer["large_bytes"] for writer in writers}
        at: dict[str, dict[int, int]] = defaultdict(dict)
        last: dict[str, int] = defaultdict(lambda: -1)
        for (name, n, content), end in zip(found, ends, strict=True):
            if name not in large_bytes or content != make(name, n, large_bytes[name]):
                yield f"{stream}: {name} {n} is not what was sent: {content!r:.120}"
            elif n in at[name]:
                yield f"{stream}: {name} {n} is there twice"
            elif n <= last[name]:
                yield f"{stream}: {name} {n} comes after {last[name]}"
            at[name][n] = end
            last[name] = max(last[name], n)
        for writer in writers:
            name, kind = writer["name"], writer["kind"]
            told, visible = self._told(name), at[name]
            lost = sorted(set(told.acked) - set(visible))
            if lost:
                yield f"{stream}: {name} lost {len(lost)} acknowledged records: {lost[:10]}"
            invented = sorted(set(visible) - told.numbers_sent())
            if invented:
                yield f"{stream}: {name} never sent {invented[:10]}"
            unwanted = sorted(told.refused & set(visible))
            if unwanted:
                yield f"{stream}: {name} was refused {unwanted[:10]}, but they are there"
            if kind in ("producer", "sequenced") and set(visible) != set(range(len(visible))):
                yield f"{stream}: {name} has holes"
            if kind in ("producer", "sequenced") and settled and len(visible) != len(told.acked):
                yield f"{stream}: {name} has {len(visible)} records, {len(told.acked)} acknowledged"
            if not is_json:
                for n, offset in told.acked.items():
                    if offset is not None and n in visible and offset != f"{visible[n]:020d}":
                        yield f"{stream}: {name} {n} was acknowledged at {offset}, is at {visible[n]}"
            for ns in told.sent:
                if kind == "plain" and len({n in visible for n in ns}) > 1:
                    yield f"{stream}: {name} batch {ns} is there in part"
                elif kind == "plain" and len(ns) > 1 and ns[0] in visible and is_json:
                    places = [visible[n] for n in ns]
                    if places != list(range(places[0], places[0] + len(ns))):
                        yield f"{stream}: {name} batch {ns} is torn apart: {places}"

    def _shown_problems(self, stream: str, data: bytes) -> Iterator[str]:
        for worker in self.workers:
            if worker["kind"] != "observer" or worker["stream"] != stream:
                continue
            for entry in self.entries(worker["name"]):
                if entry["op"] == "seen":
                    begin, end = max(0, int(entry["from"])), int(entry["to"])
                    if end > len(data) or zlib.crc32(data[begin:end]) != entry["crc32"]:
                        yield f"{stream}: a reader was shown bytes {begin} to {end}, which are not there any more"

    def _life_problems(self, connection: Connection, worker: dict[str, Any]) -> Iterator[str]:
        """A stream is as its last finished step left it, or as the one in flight would."""
        before: dict[str, dict[str, Any] | None] = {}
        after: dict[str, dict[str, Any] | None] = {}
        for entry in self.entries(worker["name"]):
            if entry["op"] in ("begin", "done"):
                name = entry["name"]
                after[name] = _lived(before.get(name), entry)
                if entry["op"] == "done":
                    before[name] = after[name]
        for name in after:
            path = f"/v1/stream/{worker['stream']}{name}"
            head = connection.request("HEAD", path)
            now: dict[str, Any] | None = None
            if head.status == 200:
                content = read_bytes(connection, path)
                now = {"content": content, "closed": head.header("stream-closed") == "true"}
            elif head.status != 404:
                yield f"{name}: HEAD is {head.status}"
                continue
            allowed = [_shape(state, worker) for state in (before.get(name), after[name])]
            if now not in allowed:
                yield f"{name}: is {now!r:.200}, may be {allowed!r:.400}"


def _lived(life: dict[str, Any] | None, entry: dict[str, Any]) -> dict[str, Any] | None:
    match entry["step"]:
        case "create":
            return {"life": entry["life"], "count": 0, "closed": False}
        case "delete":
            return None
        case "poke":
            return life
        case step:
            assert life is not None
            return {**life, "count": entry["n"] + (step != "close"), "closed": step != "append"}


def _shape(life: dict[str, Any] | None, worker: dict[str, Any]) -> dict[str, Any] | None:
    if life is None:
        return None
    producer = f"{worker['name']}-{life['life']}"
    content = b"".join(record(producer, n, worker["large_bytes"], LIFE_LARGE_EVERY) for n in range(life["count"]))
    return {"content": content, "closed": life["closed"]}
