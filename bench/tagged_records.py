"""B14 among very many records: what a delete by tag takes, and the memory of records and of their tags.

Owns the workload and figures; the fill is `topic_load`. Each topic has a node of its own, so that a node's memory is
that of one topic: one of records without labels, one where every record has a tag of its own but for those to delete.
"""

import json
import time

from bench import generator, lake, proc
from bench.peers import Server
from bench.queue_load import topic_request
from bench.report import Result, show
from bench.rounds import BUSY_CPU, Settings, median, tell
from bench.wire import Exchange, request

RECORDS, RECORDS_QUICK = 10_000_000, 100_000
BATCH_RECORDS = 10_000
SET_RECORDS = 1_000
DELETES = 5
STATES = HOT, SETTLED, RESTARTED = "hot", "settled", "restarted"
TOPIC, WARM_TOPIC = "bench-orders", "bench-warm"
WARM_RECORDS = 20_000
AIM_DELETE_MS = 10.0
FLUSH_S_MAX = 1_800.0
LOOK_S = 0.5
# Nothing settles before it is told to, and everything fits.
FLAGS = ("--flush-bytes", "1TiB", "--flush-interval-ms", "86400000", "--hot-bytes-max", "2TiB")


def run_tagged(settings: Settings, records: int | None = None) -> list[Result]:
    count = records or (RECORDS_QUICK if settings.quick else RECORDS)
    plain = fill_and_settle(count, tagged=False)
    tell(f"without labels: {plain}")
    tagged = fill_and_settle(count, tagged=True)
    tell(f"tagged: {tagged}")
    return figures_of(plain, tagged)


def fill_and_settle(count: int, tagged: bool) -> dict:
    """Memory when the records are in memory, when they have settled, and in a node that is started on them.

    In each state the tagged ones are deleted from, a few sets one after another.
    """
    with lake.standing(FLAGS) as start:
        server = start()
        _fill(server, f"{WARM_TOPIC}-0", WARM_RECORDS, tagged, [])
        _settle(server)
        # Beside a node that finds as good as nothing, and beside one that has taken what its first writes and its
        # first flush need, which is there only once.
        server = start()
        empty = rss_bytes(server, f"{WARM_TOPIC}-0")
        _fill(server, f"{WARM_TOPIC}-1", WARM_RECORDS, tagged, [])
        _settle(server)
        warm = rss_bytes(server, f"{WARM_TOPIC}-1")
        sets = [f"{state}-{number}" for state in STATES for number in range(DELETES)]
        filled = _fill(server, TOPIC, count, tagged, sets if tagged else [])
        rss = {"empty": empty, "warm": warm, HOT: rss_bytes(server, TOPIC)}
        others_cpu = idle_others_cpu(server)
        deletes_ms = {HOT: delete_ms(server, HOT)} if tagged else {}
        settled_s = _settle(server)
        rss[SETTLED] = rss_bytes(server, TOPIC)
        deletes_ms |= {SETTLED: delete_ms(server, SETTLED)} if tagged else {}
        server = start()
        rss[RESTARTED] = rss_bytes(server, TOPIC)
        deletes_ms |= {RESTARTED: delete_ms(server, RESTARTED)} if tagged else {}
        others_cpu = max(others_cpu, idle_others_cpu(server))
    before = {HOT: warm, SETTLED: warm, RESTARTED: empty}
    return {
        "records": count,
        **filled,
        "settle_s": round(settled_s, 1),
        "rss_bytes": rss,
        "bytes_per_record": {state: round((rss[state] - before[state]) / count, 1) for state in STATES},
        "deletes_ms": deletes_ms,
        "others_cpu": others_cpu,
    }


def _settle(server: Server) -> float:
    """Until the lake has the records and the catalog has their tags, which memory holds up to then. Returns seconds."""
    began_s = time.perf_counter()
    lake.flush(server, FLUSH_S_MAX)
    lake.checkpoint(server, FLUSH_S_MAX)
    return time.perf_counter() - began_s


def idle_others_cpu(server: Server) -> float:
    """What other programs take of a core: looked at beside the deletes, which are too short for it."""
    window = proc.CpuWindow(server.pid)
    time.sleep(LOOK_S)
    return window.close()["others_cpu"]


def rss_bytes(server: Server, topic: str) -> int:
    """The node's memory when it has the topic's state at hand."""
    with Exchange(server.port) as exchange:
        answer = exchange.send(request("GET", f"/v0/topics/{topic}", server.port))
    if answer.status != 200:
        raise generator.Failed(f"the topic's state answered {answer.status} {answer.body[:300]!r}")
    return proc.rss_bytes(server.pid)


def _fill(server: Server, topic: str, count: int, tagged: bool, sets: list[str]) -> dict:
    spec = {"work": "fill", "port": server.port, "server_pid": server.pid, "topic": topic, "records": count}
    spec |= {"batch": BATCH_RECORDS, "tagged": tagged, "sets": sets, "set_records": SET_RECORDS}
    # A slow machine takes ten thousand a second at the very least.
    return generator.run("bench.topic_load", spec, timeout_s=60 + count / 10_000)


def delete_ms(server: Server, state: str) -> list[float]:
    """Each of the sets of this state is deleted by its tag, from the request sent to its answer, synced."""
    spent_ms = []
    with Exchange(server.port) as exchange:
        for number in range(DELETES):
            raw = topic_request("POST", f"{TOPIC}/delete", server.port, {"match": ["tag", "Eq", f"{state}-{number}"]})
            began_ns = time.perf_counter_ns()
            answer = exchange.send(raw)
            spent_ms.append(round((time.perf_counter_ns() - began_ns) / 1e6, 3))
            if answer.status != 200 or json.loads(answer.body)["deleted"] != SET_RECORDS:
                raise generator.Failed(f"a delete by tag answered {answer.status} {answer.body[:300]!r}")
    return spent_ms


def figures_of(plain: dict, tagged: dict) -> list[Result]:
    """Medians of the deletes; what a tag takes is what a tagged record takes over one without labels."""
    figures = []
    for state, spent_ms in tagged["deletes_ms"].items():
        note = f"first {show(spent_ms[0])} max {show(max(spent_ms))} records {tagged['records']}"
        note += " (machine busy)" if tagged["others_cpu"] > BUSY_CPU else ""
        value = median([{"ms": one} for one in spent_ms], "ms")
        figures.append(Result("B14", f"delete_ms_{state}", value, AIM_DELETE_MS, True, note, {"spent_ms": spent_ms}))
    for state in STATES:
        alone, labelled = plain["bytes_per_record"][state], tagged["bytes_per_record"][state]
        note = f"payload {plain['payload_bytes_per_record']} mb_per_million_tags {show(labelled - alone)}"
        note += f" tag_bytes {tagged['tag_bytes']}"
        details = {"plain": plain, "tagged": tagged} if state == HOT else {}
        figures.append(Result("B14", f"bytes_per_record_{state}", alone, note=note, details=details))
    return figures
