"""The loads of B14's topics: writes to a live tail, a pace of bare syncs, and batches of labelled records.

Owns the clock between a write sent and its delivery; knows no peer by name. Run by `generator.run`.
"""

import json
import os
import socket
import time
from pathlib import Path

import uvloop

from bench import generator, proc, subscribers
from bench.queue_load import JSON_BODY, topic_request
from bench.wire import Exchange, Response, ResponseReader, request

FILL_IN_FLIGHT = 4
# A node that takes more than this share of the machine's memory is not filled further.
RSS_SHARE_MAX = 0.7


class TopicTail(subscribers.Fanout):
    """The load of B4 at the door of topics: a writer that awaits each answer, and tails of the same topic."""

    def __init__(self, spec: dict) -> None:
        super().__init__(spec)
        self.fsyncs_ns: list[int] = []

    def prepare(self) -> None:
        config = {"durability": self.spec["durability"]}
        with Exchange(self.port) as exchange:
            made = exchange.send(topic_request("PUT", self.spec["stream"], self.port, config))
        if made.status != 201:
            raise generator.Failed(f"the topic was not made: {made.status} {made.body[:300]!r}")

    def tail_request(self) -> bytes:
        path = f"/v0/topics/{self.spec['stream']}/sse?from_seq=now"
        return request("GET", path, self.port, [("Accept", "text/event-stream")])

    def write_request(self, number: int) -> bytes:
        body = {"records": [{"data": subscribers.message(number).decode()}]}
        return topic_request("POST", f"{self.spec['stream']}/records", self.port, body)

    def answered(self, response: Response) -> None:
        super().answered(response)
        if response.status == 200:
            self.fsyncs_ns.append(int(json.loads(response.body)["performance"]["fsync_ms"] * 1e6))


async def deliver(spec: dict) -> dict:
    tail = TopicTail(spec)
    found = await tail.run()
    if found["refused"] or found["missing"] or found["cut"]:
        raise generator.Failed(f"not every write was delivered: {found}")
    # What the node itself says of its syncs, warm-up included.
    return found | {"told_fsync_p50_ms": generator.percentile_ms(sorted(tail.fsyncs_ns), 0.5)}


def sync(spec: dict) -> dict:
    """What the disk takes by itself: as many bytes as a write has, synced at the pace of the writes."""
    spent_ns = []
    path = Path(spec["directory"]) / "sync"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # Preallocated as a log is: only the data is synced, not the file's length.
        os.posix_fallocate(file, 0, 16 << 20)
        os.fsync(file)
        until_s = time.monotonic() + spec["window_s"]
        while time.monotonic() < until_s:
            began_ns = time.perf_counter_ns()
            os.write(file, b"x" * spec["bytes"])
            os.fdatasync(file)
            spent_ns.append(time.perf_counter_ns() - began_ns)
            time.sleep(max(0.0, spec["interval_ms"] / 1e3 - spent_ns[-1] / 1e9))
    finally:
        os.close(file)
        path.unlink()
    spent_ns.sort()
    return {"p50_ms": generator.percentile_ms(spent_ns, 0.5), "p99_ms": generator.percentile_ms(spent_ns, 0.99)}


# ---- filling -----------------------------------------------------------------------------------------------------


def tags(spec: dict) -> dict[int, str]:
    """Which records carry the tag of a set: those of all sets are spread evenly over the topic, in turn."""
    sets, size, count = spec["sets"], spec["set_records"], spec["records"]
    places = len(sets) * size
    if places > count:
        raise generator.Failed(f"{places} records of {len(sets)} sets are not among {count}")
    return {place * count // places: sets[place % len(sets)] for place in range(places)}


def data_of(number: int) -> str:
    return f'{{"number":{number},"kind":"order","value":"{number * 7919 % 1_000_003:07d}"}}'


def batch(first: int, until: int, tagged: bool, of_sets: dict[int, str]) -> bytes:
    """The body of a write of records first..until-1. Tagged: each has a tag that no other has unless it is of a set."""
    if tagged:
        rows = [f'{{"data":{data_of(n)},"tag":"{of_sets.get(n) or unique_tag(n)}"}}' for n in range(first, until)]
    else:
        rows = [f'{{"data":{data_of(n)}}}' for n in range(first, until)]
    return f'{{"disable_backpressure":true,"records":[{",".join(rows)}]}}'.encode()


def unique_tag(number: int) -> str:
    return f"order-{number:010d}"


def fill(spec: dict) -> dict:
    """Writes `records` records to a new topic, `batch` a request and several requests in flight."""
    port, topic, count, size = spec["port"], spec["topic"], spec["records"], spec["batch"]
    with Exchange(port) as exchange:
        made = exchange.send(topic_request("PUT", topic, port, {"durability": "fsync"}))
    if made.status != 201:
        raise generator.Failed(f"the topic was not made: {made.status} {made.body[:300]!r}")
    of_sets = tags(spec)
    rss_bytes_max = RSS_SHARE_MAX * os.sysconf("SC_PHYS_PAGES") * proc.PAGE_BYTES
    reader = ResponseReader()
    sent = waiting = 0
    began_s = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=120) as link:
        while sent < count or waiting:
            while sent < count and waiting < FILL_IN_FLIGHT:
                until = min(sent + size, count)
                body = batch(sent, until, spec["tagged"], of_sets)
                link.sendall(request("POST", f"/v0/topics/{topic}/records", port, JSON_BODY, body))
                sent, waiting = until, waiting + 1
            data = link.recv(1 << 18)
            if not data:
                raise generator.Failed("the connection ended")
            for response in reader.feed(data):
                if response.status != 200:
                    raise generator.Failed(f"a write answered {response.status} {response.body[:300]!r}")
                waiting -= 1
            if proc.rss_bytes(spec["server_pid"]) > rss_bytes_max:
                raise generator.Failed(f"the node takes over {rss_bytes_max / 1e9:.1f} GB after {sent} records")
    elapsed_s = time.perf_counter() - began_s
    return {
        "records_per_s": round(count / elapsed_s),
        "seconds": round(elapsed_s, 1),
        "payload_bytes_per_record": len(data_of(count // 2)),
        "tag_bytes": len(unique_tag(0)) if spec["tagged"] else 0,
    }


WORK = {"deliver": lambda spec: uvloop.run(deliver(spec)), "sync": sync, "fill": fill}

if __name__ == "__main__":
    generator.answer(lambda spec: WORK[spec["work"]](spec))
