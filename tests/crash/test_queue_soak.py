"""Queues for as long as you like, by hand: `QUEUE_SOAK_S=600 pytest -m soak -s tests/crash/test_queue_soak.py`.
Workers ack, give back, extend, forget and repeat themselves at random, jobs come with keys and delays, settle and are
configured anew, and the node is killed in all this. It prints its figures, and the seed to have them again."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crash.test_queue_kills import PATH, WITHIN_S, Client, Run, drain
from tests.support.node import Node

SECONDS = float(os.environ.get("QUEUE_SOAK_S", "60"))
SEED = int(os.environ.get("QUEUE_SOAK_SEED", str(random.randrange(1 << 30))))
KILL_EVERY_S = (0.5, 8.0)
LEASE_MS = 400
FLAGS = ("--flush-interval-ms", "300", "--checkpoint-interval-ms", "200")


class Soak(Run):
    """Producers and workers that do at random what they may, and sometimes what they may not."""

    def __init__(self, node: Node, lease_ms: int) -> None:
        super().__init__(node, lease_ms)
        self.counts: Counter[str] = Counter()
        self.lost_leases = 0

    def _produce(self, number: int) -> None:
        client, seq, rng = Client(self._node), 0, random.Random(SEED + number)
        while not self._stop.is_set():
            names = [f"p{number}-{seq}-{index}" for index in range(rng.randrange(1, 12))]
            records: list[dict[str, Any]] = [{"data": name, "key": name, "tag": f"t{seq % 50}"} for name in names]
            for record in records:
                if rng.random() < 0.2:
                    record["delay_ms"] = rng.choice([1, 100, 1_500])
            body = {"records": records, "producer": {"id": f"p{number}", "epoch": 0, "seq": seq}}
            while client.post("/records", body) is None:
                pass
            with self._lock:
                self.put.update(names)
                self.counts["put"] += len(names)
            seq += 1
            if rng.random() < 0.1:
                time.sleep(rng.random() / 5)
        client.close()

    def _work(self, number: int) -> None:
        client, rng = Client(self._node), random.Random(SEED - number - 1)
        old: list[dict[str, int]] = []
        while not self._stop.is_set():
            wish = {"max": rng.randrange(1, 40), "lease_ms": rng.choice([100, self._lease_ms, 5_000]), "wait_ms": 50}
            claimed = client.post("/claim", wish)
            jobs = {} if claimed is None else {job["seq"]: job for job in claimed["jobs"]}
            if not jobs:
                continue
            self.counts["claimed"] += len(jobs)
            pairs = [{"seq": seq, "lease_id": job["lease_id"]} for seq, job in jobs.items()]
            deed = rng.choices(["ack", "nack", "extend", "forget", "late", "twice"], [70, 10, 6, 4, 5, 5])[0]
            self.counts[deed] += len(pairs)
            if deed == "nack":
                client.post("/nack", {"nacks": [{**pair, "delay_ms": rng.choice([0, 20, 900])} for pair in pairs]})
                old += pairs
                continue
            if deed == "extend":
                client.post("/extend", {"extends": [{**pair, "lease_ms": 1_000} for pair in pairs]})
            if deed == "late":
                time.sleep(rng.random())
            if deed != "forget":
                self._ack(client, jobs, pairs)
                if deed == "twice":
                    again = client.post("/ack", {"acks": pairs + old[-20:]})
                    gone = [] if again is None else [seq for seq in again["acked"] if seq in jobs]
                    with self._lock:  # the first one may not have reached the node
                        self.acked += [jobs[seq]["data"] for seq in gone]
            old = old[-100:]
        client.close()

    def _ack(self, client: Client, jobs: dict[int, Any], pairs: list[dict[str, int]]) -> None:
        told = client.post("/ack", {"acks": pairs})
        with self._lock:
            if told is None:
                self.unsure.update(job["data"] for job in jobs.values())
                self.counts["unsure"] += len(pairs)
            else:
                self.acked += [jobs[seq]["data"] for seq in told["acked"]]
                self.counts["acked"] += len(told["acked"])
                self.counts["lease lost"] += len(told["failed"])


@pytest.mark.soak
@pytest.mark.timeout(int(SECONDS) + 600)
@pytest.mark.parametrize("durable", [False, True], ids=["leases-forgotten", "leases-kept"])
def test_a_long_run_with_kills_loses_no_job_and_acks_none_twice(tmp_path: Path, durable: bool) -> None:
    rng = random.Random(SEED)
    slowest_s = 0.0
    with Node.started(tmp_path, flags=FLAGS) as node:
        config: dict[str, Any] = {"queue": {"leases_durable": durable, "lease_ms": LEASE_MS}}
        assert node.request("PUT", PATH, {}, json.dumps(config).encode()).status == 201
        run = Soak(node, LEASE_MS)
        run.start()
        kills, end_s = 0, time.monotonic() + SECONDS / 2
        try:
            while time.monotonic() < end_s:
                time.sleep(rng.uniform(*KILL_EVERY_S))
                if rng.random() < 0.3:
                    jitter = {"queue": {"claim_jitter_ms": rng.choice([0, 5, 50]), "lease_ms": rng.choice([200, 700])}}
                    node.request("PATCH", PATH, {}, json.dumps(jitter).encode())
                    continue
                node.kill()
                began_s = time.monotonic()
                node.start()
                slowest_s = max(slowest_s, time.monotonic() - began_s)
                kills += 1
                run.until_acked(1)
        finally:
            run.stop()
        node.restart()
        left = drain(node, LEASE_MS)
        end_s = time.monotonic() + WITHIN_S
        while time.monotonic() < end_s and (more := drain(node, LEASE_MS)):
            left += more
        acked = set(run.acked)
        twice = [name for name, times in Counter(run.acked).items() if times > 1]
        assert not twice, (SEED, twice[:10])
        assert not acked & set(left), (SEED, "a job that was acked came back", sorted(acked & set(left))[:10])
        missing = run.put - acked - run.unsure - set(left)
        assert not missing, (SEED, f"lost: {sorted(missing)[:10]}")
        print(f"\nseed {SEED}: {kills} kills, {dict(run.counts)}, {len(left)} left at the end, "
              f"slowest start {slowest_s:.1f} s")  # fmt: skip
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr(), node.output()
