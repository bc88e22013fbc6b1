"""Topics, queues and routers at `/v0` in memory: as much of a server as the client's tests need, and strict.

Owns its state behind one lock. A request that the contract does not know is refused with 400, so that a client which
sends it is found out. It keeps time with the machine's clock, and knows no durability and no routing of records.
"""

from __future__ import annotations

import base64
import fnmatch
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.client.serving import Asked, Told, serving

VERBS = {"records", "diff", "sse", "ws", "delete", "claim", "ack", "nack", "extend", "work", "queue", "peek", "purge"}
QUEUE = {
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "backoff_ms": 0,
    "backoff_ms_max": 600_000,
}
CONFIG: dict[str, Any] = {
    "content_type": "application/json",
    "ttl_ms": None,
    "cap_records": None,
    "cap_bytes": None,
    "discard": "old",
    "durability": "fsync",
    "priority": 0,
    "auto_priority": False,
    "queue": None,
}
ROUTER = {
    "source": None,
    "dest": None,
    "filter": None,
    "preserve_tag": True,
    "preserve_node": True,
    "preserve_meta": True,
    "allow_cycle": False,
}


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str = "", **detail: object) -> None:
        super().__init__(message)
        self.status, self.error = status, {"code": code, "message": message or code, "detail": detail}


def now_ms() -> int:
    return int(time.time() * 1_000)


@dataclass
class Job:
    lease_id: int = 0
    deadline_ms: int = 0
    ready_at_ms: int = 0
    deliveries: int = 0
    node: str | None = None


@dataclass
class Topic:
    name: str
    config: dict[str, Any]
    epoch: int
    head_seq: int = 0
    evict_floor: int = 1
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    dead_lettered: int = 0

    def state(self) -> dict[str, Any]:
        live = sorted(self.records)
        told: dict[str, Any] = {
            "head_seq": self.head_seq,
            "earliest_seq": live[0] if live else self.head_seq + 1,
            "evict_floor": self.evict_floor,
            "count": len(live),
            "bytes": sum(len(json.dumps(record)) for record in self.records.values()),
            "epoch": self.epoch,
        }
        if self.config["queue"]:
            told["queue"] = self.counts()
        return told

    def job_state(self, seq: int) -> str:
        job = self.jobs[seq]
        if job.deadline_ms > now_ms():
            return "leased"
        return "delayed" if job.ready_at_ms > now_ms() else "ready"

    def counts(self) -> dict[str, int]:
        states = [self.job_state(seq) for seq in self.jobs]
        named = {state: states.count(state) for state in ("ready", "leased", "delayed")}
        return {**named, "dead_lettered": self.dead_lettered}

    def drop(self, seq: int) -> None:
        self.records.pop(seq, None)
        self.jobs.pop(seq, None)


class FakeTopics:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.topics: dict[str, Topic] = {}
        self.routers: dict[str, dict[str, Any]] = {}
        self._made = 0
        self._leases = 0

    # --- requests ---

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            given = json.loads(body) if body else {}
        except ValueError:
            raise Refusal(400, "bad_body") from None
        with self.changed:
            status, told = self._route(method, parts.path, query, given)
            self.changed.notify_all()
        return status, {**told, "performance": dict.fromkeys(("queue_ms", "fsync_ms", "throttle_wait_ms"), 0.0)}

    def _route(self, method: str, path: str, query: dict[str, str], given: Any) -> tuple[int, dict[str, Any]]:
        segments = path.split("/")[1:]
        if segments[:2] == ["v0", "routers"]:
            return self._routers(method, segments[2:], given)
        if segments[:2] != ["v0", "topics"]:
            raise Refusal(404, "no_such_route")
        rest = segments[2:]
        if not rest:
            return 200, self._list(query)
        verb = rest.pop() if rest[-1] in VERBS else ""
        name = "/".join(unquote(segment) for segment in rest)
        if not name:
            raise Refusal(400, "bad_name")
        name = name.removeprefix("_default/")
        if verb:
            wanted = "GET" if verb in ("diff", "queue", "peek") else "POST"
            if method != wanted:
                raise Refusal(405, "method_not_allowed")
            return 200, getattr(self, f"_{verb}")(self._topic(name), query if wanted == "GET" else given)
        if method == "PUT":
            return self._put(name, given)
        topic = self._topic(name)
        if method == "DELETE":
            del self.topics[name]
            return 200, {"topic": name, "deleted": True}
        if method == "PATCH":
            if any(given.get(fixed, topic.config[fixed]) != topic.config[fixed] for fixed in _FIXED):
                raise Refusal(409, "topic_exists_incompatible")
            topic.config = _config(given, topic.config)
            self._evict(topic)
        elif method != "GET":
            raise Refusal(405, "method_not_allowed")
        return 200, {"topic": name, "config": topic.config, "state": topic.state()}

    def _topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise Refusal(404, "topic_not_found", f"no topic {name}")
        return self.topics[name]

    def _put(self, name: str, given: Any) -> tuple[int, dict[str, Any]]:
        config = _config(given, CONFIG)
        made = name not in self.topics
        if made:
            self._made += 1
            self.topics[name] = Topic(name, config, self._made)
        topic = self.topics[name]
        if topic.config != config:
            raise Refusal(409, "topic_exists_incompatible", f"{name} exists with another configuration")
        told = {"topic": name, "created": made, "config": topic.config, "state": topic.state()}
        return (201 if made else 200), told

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        _known(query, "bucket", "prefix", "limit", "after")
        names = [name for name in sorted(self.topics) if name.startswith(query.get("prefix", ""))]
        names = [name for name in names if name > query.get("after", "")]
        page = names[: int(query.get("limit", "100"))]
        told = [{"topic": name, "state": self.topics[name].state()} for name in page]
        return {"topics": told, "next": page[-1] if len(page) < len(names) else None}

    # --- records ---

    def _records(self, topic: Topic, given: Any) -> dict[str, Any]:
        _known(given, "records", "node", "producer", "disable_backpressure")
        producer = given.get("producer")
        if producer is not None:
            _known(producer, "id", "epoch", "seq")
            epoch, last = topic.producers.get(producer["id"], (producer["epoch"], -1))
            if producer["epoch"] < epoch:
                raise Refusal(403, "stale_epoch")
            if producer["epoch"] > epoch:
                last = -1
            if producer["seq"] <= last:
                return {"seqs": [], "duplicate": True, "head_seq": topic.head_seq}
            if producer["seq"] != last + 1:
                raise Refusal(409, "producer_seq_conflict", expected=last + 1)
        if not given["records"]:
            raise Refusal(400, "bad_request", "no records")
        for record in given["records"]:
            _known(record, "data", "data_base64", "tag", "node", "meta", "key", "deliver_at", "delay_ms")
            if ("data_base64" in record) == ("data" in record):
                raise Refusal(400, "bad_request", "one of data and data_base64")
            if topic.config["content_type"] == "application/json" and "data" not in record:
                raise Refusal(400, "bad_request", "data_base64 on a JSON topic")
        cap = topic.config["cap_records"]
        full = cap is not None and len(topic.records) + len(given["records"]) > cap
        if full and topic.config["discard"] == "reject":
            raise Refusal(422, "topic_full")
        if producer is not None:
            topic.producers[producer["id"]] = (producer["epoch"], producer["seq"])
        seqs, duplicates = [], []
        for index, record in enumerate(given["records"]):
            known = self._live_job(topic, record.get("key"))
            if known is not None:
                seqs.append(known)
                duplicates.append(index)
            else:
                seqs.append(self._append(topic, {"node": given.get("node"), **record}))
        self._evict(topic)
        return {"seqs": seqs, "head_seq": topic.head_seq, "duplicates": duplicates}

    def _live_job(self, topic: Topic, key: str | None) -> int | None:
        if key is None or not topic.config["queue"]:
            return None
        return next((seq for seq, record in topic.records.items() if record.get("key") == key), None)

    def _append(self, topic: Topic, record: dict[str, Any]) -> int:
        topic.head_seq += 1
        delay_ms = record.pop("delay_ms", None)
        if delay_ms is not None:
            record["deliver_at"] = now_ms() + delay_ms
        if "data_base64" in record:
            raw = base64.b64decode(record["data_base64"])
            try:
                record = {**record, "data": raw.decode()}
                del record["data_base64"]
            except UnicodeDecodeError:
                pass
        kept = {name: value for name, value in record.items() if value is not None or name == "data"}
        topic.records[topic.head_seq] = {"seq": topic.head_seq, "ts": now_ms(), **kept}
        if topic.config["queue"]:
            topic.jobs[topic.head_seq] = Job(ready_at_ms=record.get("deliver_at") or 0)
        return topic.head_seq

    def _evict(self, topic: Topic) -> None:
        cap = topic.config["cap_records"]
        while cap is not None and len(topic.records) > cap:
            first = min(topic.records)
            topic.drop(first)
            topic.evict_floor = first + 1

    def _diff(self, topic: Topic, query: dict[str, str]) -> dict[str, Any]:
        _known(query, "from_seq", "limit", "node", "wait_ms", "epoch")
        if "epoch" in query and query["epoch"] != str(topic.epoch):
            raise Refusal(409, "epoch_changed")
        from_seq, limit = int(query.get("from_seq", "0")), int(query.get("limit", "100"))
        self._wait(int(query.get("wait_ms", "0")), lambda: topic.head_seq > from_seq or self._is_gone(topic))
        if self._is_gone(topic):
            raise Refusal(404, "topic_not_found")
        nodes = set(query["node"].split(",")) if "node" in query else set()
        behind = [seq for seq in sorted(topic.records) if seq > from_seq]
        page = behind[:limit]
        next_seq = max(topic.head_seq if len(behind) <= limit else page[-1], from_seq)
        told = {
            "records": [topic.records[seq] for seq in page if topic.records[seq].get("node") not in nodes],
            "next_seq": next_seq,
            **{name: topic.state()[name] for name in ("head_seq", "earliest_seq", "evict_floor", "epoch")},
            "up_to_date": next_seq >= topic.head_seq,
        }
        if from_seq + 1 < topic.evict_floor:
            told["tombstone"] = {"gap_from": from_seq + 1, "gap_to": topic.evict_floor - 1}
        return told

    def _is_gone(self, topic: Topic) -> bool:
        return self.topics.get(topic.name) is not topic

    def _wait(self, wait_ms: int, done: Any) -> None:
        until_s = time.monotonic() + wait_ms / 1_000
        while not done() and (left_s := until_s - time.monotonic()) > 0:
            self.changed.wait(min(left_s, 0.02))  # Leases and delays end without anybody telling.

    def _delete(self, topic: Topic, given: Any) -> dict[str, Any]:
        _known(given, "before_seq", "match")
        if not given:
            raise Refusal(400, "bad_request", "before_seq or match")
        taken = [seq for seq in topic.records if seq < given.get("before_seq", topic.head_seq + 1)]
        if "match" in given:
            subject, kind, text = given["match"]
            if subject != "tag" or kind not in ("Eq", "Glob"):
                raise Refusal(400, "bad_request", "match")
            tags = {seq: topic.records[seq].get("tag") for seq in taken}
            taken = [
                seq
                for seq, tag in tags.items()
                if tag is not None and (tag == text if kind == "Eq" else fnmatch.fnmatchcase(tag, text))
            ]
        for seq in taken:
            topic.drop(seq)
        return {"deleted": len(taken), **{name: topic.state()[name] for name in ("earliest_seq", "head_seq")}}

    # --- queues ---

    def _claim(self, topic: Topic, given: Any) -> dict[str, Any]:
        _known(given, "max", "lease_ms", "node", "wait_ms")
        queue = _queue(topic)
        self._wait(given.get("wait_ms", 0), lambda: any(topic.job_state(seq) == "ready" for seq in topic.jobs))
        jobs = []
        for seq in [seq for seq in sorted(topic.jobs) if topic.job_state(seq) == "ready"]:
            job = topic.jobs[seq]
            if queue["max_deliveries"] and job.deliveries >= queue["max_deliveries"]:
                self._dead_letter(topic, seq, "lease expired")
                continue
            if len(jobs) == given.get("max", 1):
                break
            self._leases += 1
            job.lease_id, job.deliveries, job.node = self._leases, job.deliveries + 1, given.get("node")
            job.deadline_ms = now_ms() + given.get("lease_ms", queue["lease_ms"])
            facts = {"lease_id": job.lease_id, "deadline_ms": job.deadline_ms, "deliveries": job.deliveries}
            jobs.append({**topic.records[seq], **facts})
        return {"jobs": jobs}

    def _held(self, topic: Topic, named: list[dict[str, Any]]) -> tuple[list[tuple[int, dict[str, Any]]], list[Any]]:
        held, failed = [], []
        for one in named:
            seq = one["seq"]
            if seq not in topic.jobs:
                failed.append({"seq": seq, "code": "not_found"})
            elif topic.job_state(seq) != "leased" or topic.jobs[seq].lease_id != one["lease_id"]:
                failed.append({"seq": seq, "code": "lease_lost"})
            else:
                held.append((seq, one))
        return held, failed

    def _ack(self, topic: Topic, given: Any) -> dict[str, Any]:
        _queue(topic)
        _known(given, "acks")
        held, failed = self._held(topic, given["acks"])
        for seq, one in held:
            _known(one, "seq", "lease_id")
            topic.drop(seq)
        return {"acked": [seq for seq, _ in held], "failed": failed}

    def _nack(self, topic: Topic, given: Any) -> dict[str, Any]:
        queue = _queue(topic)
        _known(given, "nacks")
        held, failed = self._held(topic, given["nacks"])
        released, dead = [], []
        for seq, one in held:
            _known(one, "seq", "lease_id", "delay_ms", "reason")
            job = topic.jobs[seq]
            if queue["max_deliveries"] and job.deliveries >= queue["max_deliveries"]:
                self._dead_letter(topic, seq, one.get("reason"))
                dead.append(seq)
                continue
            job.deadline_ms, job.ready_at_ms = 0, now_ms() + one.get("delay_ms", queue["backoff_ms"])
            released.append(seq)
        return {"released": released, "dead_lettered": dead, "failed": failed}

    def _dead_letter(self, topic: Topic, seq: int, reason: str | None) -> None:
        record, job = topic.records[seq], topic.jobs[seq]
        topic.drop(seq)
        topic.dead_lettered += 1
        name = topic.config["queue"]["dead_letter"]
        if name is None:
            return
        if name not in self.topics:
            self._put(name, {})
        about = {"topic": topic.name, "seq": seq, "epoch": topic.epoch, "deliveries": job.deliveries, "reason": reason}
        letter = {
            "data": record["data"],
            "tag": record.get("tag"),
            "meta": {**record.get("meta", {}), "dead_letter": about},
            "key": f"{topic.name}:{topic.epoch}:{seq}",
        }
        self._append(self.topics[name], letter)

    def _extend(self, topic: Topic, given: Any) -> dict[str, Any]:
        queue = _queue(topic)
        _known(given, "extends")
        held, failed = self._held(topic, given["extends"])
        extended = []
        for seq, one in held:
            _known(one, "seq", "lease_id", "lease_ms")
            topic.jobs[seq].deadline_ms = now_ms() + one.get("lease_ms", queue["lease_ms"])
            extended.append({"seq": seq, "deadline_ms": topic.jobs[seq].deadline_ms})
        return {"extended": extended, "failed": failed}

    def _queue(self, topic: Topic, query: dict[str, str]) -> dict[str, Any]:
        _queue(topic)
        _known(query)
        more = {"head_seq": topic.head_seq, "oldest_ready_ms": None, "claims_count": self._leases, "acks_count": 0}
        return {**topic.counts(), **more}

    def _peek(self, topic: Topic, query: dict[str, str]) -> dict[str, Any]:
        _queue(topic)
        _known(query, "state", "limit")
        wanted = query.get("state", "ready")
        seqs = [seq for seq in sorted(topic.jobs) if topic.job_state(seq) == wanted][: int(query.get("limit", "10"))]
        return {
            "jobs": [{**topic.records[seq], "state": wanted, "deliveries": topic.jobs[seq].deliveries} for seq in seqs]
        }

    def _purge(self, topic: Topic, given: Any) -> dict[str, Any]:
        _queue(topic)
        _known(given)
        count = len(topic.jobs)
        for seq in list(topic.jobs):
            topic.drop(seq)
        return {"deleted": count}

    # --- routers ---

    def _routers(self, method: str, rest: list[str], given: Any) -> tuple[int, dict[str, Any]]:
        if not rest:
            return 200, {"routers": [self._router(name) for name in sorted(self.routers)]}
        name = unquote(rest[0])
        if method == "PUT":
            _known(given, *ROUTER)
            config = {**ROUTER, **given}
            if config["source"] == config["dest"] and not config["allow_cycle"]:
                raise Refusal(409, "router_cycle")
            made = self.routers.get(name) != config
            self.routers[name] = config
            return (201 if made else 200), self._router(name)
        if name not in self.routers:
            raise Refusal(404, "router_not_found")
        if method == "DELETE":
            del self.routers[name]
            return 200, {"router": name, "deleted": True}
        return 200, self._router(name)

    def _router(self, name: str) -> dict[str, Any]:
        config = self.routers[name]
        source = self.topics.get(config["source"])
        head = 0 if source is None else source.head_seq
        return {"name": name, **config, "cursor": 0, "source_head": head, "lag": head}


_FIXED = ("content_type", "durability")


def _queue(topic: Topic) -> dict[str, Any]:
    if topic.config["queue"] is None:
        raise Refusal(409, "not_a_queue")
    return topic.config["queue"]


def _known(given: Any, *names: str) -> None:
    if not isinstance(given, dict) or set(given) - set(names):
        raise Refusal(400, "bad_request", f"unknown fields: {sorted(set(given) - set(names))}")


def _config(given: Any, base: dict[str, Any]) -> dict[str, Any]:
    _known(given, *CONFIG)
    queue = given.get("queue", base["queue"])
    if queue is not None:
        _known(queue, *QUEUE)
        queue = {**QUEUE, **(base["queue"] or {}), **queue}
    return {**base, **given, "queue": queue}


@contextmanager
def fake_topics() -> Iterator[str]:
    """The URL of one that is empty."""
    fake = FakeTopics()

    def answer(asked: Asked) -> Told:
        try:
            status, told = fake.answer(asked.method, asked.target, asked.body)
        except Refusal as why:
            status, told = why.status, {"error": why.error}
        return Told(status, [("Content-Type", "application/json")], json.dumps(told).encode())

    with serving(answer) as url:
        yield url
