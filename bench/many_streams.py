"""MANY, a bucket of very many streams: what a page of its listing and one more stream cost beside a small bucket.

Owns the figures and `python -m bench.many_streams --streams N`, which prints one JSON line; the fill is `filler`.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time
from urllib.parse import quote

from bench import generator, peers, proc
from bench.filler import create_request
from bench.peers import FSYNC, Server
from bench.report import Result, record, show
from bench.rounds import Settings, ratio, tell
from bench.wire import Exchange, Malformed, request

STREAMS = 1_000_000
STREAMS_QUICK = 20_000
SMALL = 1_000
BUCKET = "many"
PAGE_STREAMS = 1_000
PAGES = 60
CREATIONS = 300
CONNECTIONS = 64
DEPTH = 64
AIM_PAGE_MS = 20.0
AIM_CREATE_RATIO = 1.5
SETTLE_S_MAX = 120.0


class Bucket:
    """The bucket under measure and how many streams it has been given."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.exchange = Exchange(server.port)
        self.count = 0
        self._send("PUT", f"/ds/{BUCKET}", 201)

    def close(self) -> None:
        self.exchange.__exit__()

    def fill(self, until: int) -> dict:
        spec = {
            "port": self.server.port,
            "bucket": BUCKET,
            "first": self.count,
            "count": until - self.count,
            "connections": CONNECTIONS,
            "depth": DEPTH,
        }
        self.close()  # it would be idle for longer than a server waits
        # A slow machine creates a thousand a second at the very least.
        result = generator.run("bench.filler", spec, timeout_s=60 + spec["count"] / 1000)
        self.exchange = Exchange(self.server.port)
        self.count = until
        return result

    def await_checkpoint(self) -> None:
        """Until the catalog holds them all: from then on a listing is what it will be for ever."""
        deadline_s = time.monotonic() + SETTLE_S_MAX
        seen = self._metric("checkpoints")
        while time.monotonic() < deadline_s:
            # Only a change makes a node take a checkpoint: this one is taken after everything above was acknowledged.
            self._create_one()
            time.sleep(0.2)
            if self._metric("checkpoints") >= seen + 2:
                return
        raise generator.Failed(f"no checkpoint within {SETTLE_S_MAX:.0f} s")

    def create_ms(self) -> list[float]:
        """One after another on one connection, each synced before it is answered."""
        return sorted(self._create_one() for _ in range(CREATIONS))

    def page_ms(self) -> list[float]:
        """Pages from all over the bucket."""
        took = []
        for n in range(PAGES):
            after = f"{n * (1 << 32) // PAGES:08x}"
            raw = self._request("GET", f"/ds/{BUCKET}/streams?limit={PAGE_STREAMS}&after={after}")
            began_ns = time.perf_counter_ns()
            answer = self.exchange.send(raw)
            took.append((time.perf_counter_ns() - began_ns) / 1e6)
            if answer.status != 200 or b'"has_more":' not in answer.body:
                raise Malformed(f"a listing answered {answer.status} {answer.body[:200]!r}")
        return sorted(took)

    def walk(self) -> int:
        """How many streams the listing shows, page by page; each must come once and in order."""
        after, seen = "", 0
        while True:
            body = self._send("GET", f"/ds/{BUCKET}/streams?limit={PAGE_STREAMS}&after={quote(after)}", 200)
            page = json.loads(body)
            names = [one["stream_id"] for one in page["streams"]]
            if names != sorted(set(names)) or (names and names[0] <= after):
                raise Malformed(f"the page after {after!r} is out of order")
            seen += len(names)
            if not page["has_more"]:
                return seen
            after = page["next_cursor"]

    def metadata_count(self) -> int:
        return json.loads(self._send("GET", f"/ds/{BUCKET}", 200))["streams"]

    def _create_one(self) -> float:
        raw = create_request(self.server.port, BUCKET, self.count)
        began_ns = time.perf_counter_ns()
        answer = self.exchange.send(raw)
        took_ms = (time.perf_counter_ns() - began_ns) / 1e6
        if answer.status != 201:
            raise Malformed(f"a creation answered {answer.status} {answer.body[:200]!r}")
        self.count += 1
        return took_ms

    def _metric(self, name: str) -> int:
        return json.loads(self._send("GET", "/__headwater/metrics", 200))[name]

    def _send(self, method: str, path: str, status: int) -> bytes:
        answer = self.exchange.send(self._request(method, path))
        if answer.status != status:
            raise Malformed(f"{method} {path} answered {answer.status} {answer.body[:200]!r}")
        return answer.body

    def _request(self, method: str, path: str) -> bytes:
        return request(method, path, self.server.port)


def measure(server: Server, streams: int) -> dict:
    """The same measurements in a small bucket and in the large one that it grows into."""
    bucket = Bucket(server)
    with contextlib.closing(bucket):
        bucket.fill(SMALL)
        bucket.await_checkpoint()
        small = at(bucket)
        tell(f"{bucket.count} streams: {small}")
        fill = bucket.fill(streams)
        # Right behind the fill, with the newest streams not in the catalog yet.
        fresh_ms = bucket.page_ms()
        bucket.await_checkpoint()
        large = at(bucket)
        tell(f"{bucket.count} streams: {large}")
        count, listed, told = bucket.count, bucket.walk(), bucket.metadata_count()
        if not count == listed == told:
            raise Malformed(f"{count} streams were created, the listing shows {listed}, the bucket counts {told}")
    idle_bytes = (large["rss_mb"] - small["rss_mb"]) * 1e6 / (large["streams"] - small["streams"])
    return {
        "small": small,
        "large": large,
        "fill_per_s": round(fill["streams"] / fill["seconds"], 1),
        "page_ms_before_checkpoint": percentiles(fresh_ms),
        "page_ms": large["page_ms"]["p50"],
        "create_ratio": ratio(large["create_ms"]["p50"], small["create_ms"]["p50"]),
        "rss_bytes_per_stream": round(idle_bytes, 1),
    }


def at(bucket: Bucket) -> dict:
    create_ms, page_ms = bucket.create_ms(), bucket.page_ms()
    return {
        "streams": bucket.count,
        "create_ms": percentiles(create_ms),
        "page_ms": percentiles(page_ms),
        "rss_mb": round(proc.rss_bytes(bucket.server.pid) / 1e6, 1),
    }


def percentiles(ordered_ms: list[float]) -> dict:
    p99 = ordered_ms[min(len(ordered_ms) - 1, int(len(ordered_ms) * 0.99))]
    return {"p50": round(statistics.median(ordered_ms), 3), "p99": round(p99, 3)}


def run_many(settings: Settings, streams: int | None = None) -> list[Result]:
    count = streams or (STREAMS_QUICK if settings.quick else STREAMS)
    with peers.serving(peers.headwater(FSYNC)) as server:
        found = measure(server, count)
    note = f"{count} streams, {show(found['rss_bytes_per_stream'])} B RSS each, filled at {show(found['fill_per_s'])}/s"
    return [
        Result("MANY", "page_ms", found["page_ms"], AIM_PAGE_MS, aim_is_ceiling=True, note=note, details=found),
        Result("MANY", "create_ratio", found["create_ratio"], AIM_CREATE_RATIO, aim_is_ceiling=True, details=found),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.many_streams")
    parser.add_argument("--streams", type=int, default=STREAMS, help="streams in the bucket (default 1000000)")
    count = parser.parse_args().streams
    if count <= SMALL * 2:
        parser.error(f"--streams: more than {SMALL * 2}, or there is nothing to compare")
    proc.raise_descriptor_limit()
    settings = Settings(rounds=1, seconds=0.0, warmup_s=0.0, quick=count < STREAMS, only_peer=None)
    try:
        peers.claim_scratch()
        results = run_many(settings, count)
    except (generator.Failed, Malformed, OSError) as failure:
        print(failure, file=sys.stderr)
        return 1
    for result in results:
        tell(result.line)
        record(result, settings)
    print(json.dumps({"streams": count, "met": all(result.met for result in results), **results[0].details}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
