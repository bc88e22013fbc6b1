"""From an empty directory to a picture: agent runs over HTTP, a table, a query, a plot, and snapshots to start from.

Owns the demonstration, cell by cell: run it whole, or in an editor that knows `# %%`. Never touches a node that it did
not start, unless HEADWATER_URL names one: then it uses that. It needs the Python that has headwater[spark]:

    .venv/bin/python examples/agent_runs/agent_runs.py ./demo    # then open the address that it prints

With --append it only appends the events, for pipeline.toml to go on from.
"""

# %% A directory, and a node in it ---------------------------------------------------------------------------------
from __future__ import annotations

import atexit
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

if any(importlib.util.find_spec(name) is None for name in ("headwater", "pyspark")):
    sys.exit(f"{sys.executable} has no headwater[spark]: run `make spark`, then this with .venv/bin/python")
here = Path(__file__).resolve().parent
sys.path.insert(0, str(here))
append_only = "--append" in sys.argv
folders = [given for given in sys.argv[1:] if not given.startswith("-")]
work = Path(folders[0] if folders else "agent-runs-demo").resolve()
url = os.environ.get("HEADWATER_URL")
if append_only and url is None:
    sys.exit("--append is for a node that stays: name it with HEADWATER_URL")
if not append_only:
    work.mkdir(parents=True, exist_ok=True)

server: subprocess.Popen[bytes] | None = None
if url is None:
    said = work / "node.txt"
    with said.open("wb") as sink:
        command = [sys.executable, "-m", "headwater", "serve", "--listen", "127.0.0.1:0", "--s3p", "off"]
        server = subprocess.Popen([*command, "--data", str(work / "data")], stdout=sink, stderr=sink)
    atexit.register(server.terminate)
    while (ready := re.search(r"ready on (\S+)", said.read_text())) is None:
        if server.poll() is not None:
            sys.exit(f"the node did not start:\n{said.read_text()}")
        time.sleep(0.05)
    url = ready[1]
print(f"node at {url}")

# %% An hour of agents at work: one stream for each run, an event for each step -----------------------------------
RUNS = 24
MODELS = ("small", "medium", "large")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def events_of(number: int) -> list[dict[str, object]]:
    """What one agent did: it starts, thinks in steps that cost tokens, and ends. The first one is still at work."""
    rng = random.Random(number)
    at = NOON + timedelta(seconds=rng.uniform(0, 2_400))
    model = MODELS[number % len(MODELS)]
    size = 300 * (1 + MODELS.index(model))
    events: list[dict[str, object]] = [{"kind": "started", "at": at.isoformat(), "model": model, "step": 0}]
    for step in range(1, rng.randrange(30, 90)):
        at += timedelta(seconds=rng.expovariate(1 / 12))
        tokens = round(rng.lognormvariate(0, 0.6) * size)
        events.append({"kind": "tokens", "at": at.isoformat(), "model": model, "step": step, "tokens": tokens})
    if number:
        events.append({"kind": "finished", "at": at.isoformat(), "model": model, "step": len(events)})
    return events


node_address = urlsplit(url)
connection = HTTPConnection(node_address.hostname or "", node_address.port, timeout=30)


def send(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> int:
    connection.request(method, path, body, {"Content-Type": kind})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status >= 400:
        sys.exit(f"{method} {path}: {answer.status} {text.decode()}")
    return answer.status


appended = 0
for number in range(RUNS):
    run = f"/v1/stream/runs/run-{number:02d}"
    if send("PUT", run) == 201:  # 200: it is there already, from an earlier time
        events = events_of(number)
        for start in range(0, len(events), 10):  # ten events in a request: an array is a message for each element
            send("POST", run, json.dumps(events[start : start + 10]).encode())
        appended += len(events)
print(f"{appended} events appended to {RUNS} streams")
if append_only:
    sys.exit()

# %% A table of them, partitioned by the day on which they happened ------------------------------------------------
from headwater.spark.derived_tables import DerivedTable, Place, read  # noqa: E402
from headwater.spark.jobs.derive import derive  # noqa: E402
from headwater.spark.node import Node  # noqa: E402
from headwater.spark.session import session  # noqa: E402

spark = session("agent runs", os.environ.get("SPARK_MASTER", "local[2]"))
node = Node(url)
SCHEMA = "kind STRING NOT NULL, at TIMESTAMP, model STRING, step INT, tokens BIGINT"
table = work / "tables" / "events"
derived = derive(spark, node, target=str(table), source={"bucket": "runs"}, schema=SCHEMA, day_from="at")
print(f"{derived['rows']} rows derived, {derived['quarantined']} set aside, in version {derived['version']}")

# %% A query ---------------------------------------------------------------------------------------------------------
read(spark, DerivedTable(Place(str(table)))).createOrReplaceTempView("events")
per_minute = spark.sql(
    """
    SELECT date_trunc('minute', at) AS minute, model, sum(tokens) AS tokens
    FROM events WHERE kind = 'tokens' AND at IS NOT NULL GROUP BY ALL ORDER BY ALL
    """
).collect()
print(f"{sum(row.tokens for row in per_minute)} tokens in {len({row.minute for row in per_minute})} minutes")

# %% A picture -------------------------------------------------------------------------------------------------------
from picture import stacked_bars  # noqa: E402

series = {model: {row.minute: row.tokens for row in per_minute if row.model == model} for model in MODELS}
drawing = work / "tokens-per-minute.svg"
drawing.write_text(stacked_bars("Tokens per minute, by model", series))
print(f"picture in {drawing}")

# %% Snapshots: where each run stands, instead of everything that happened in it ------------------------------------
from run_summary import summary  # noqa: E402

from headwater.spark.jobs.fold import fold  # noqa: E402

folded = fold(spark, node, mode="function", function=summary, bucket="runs", min_records=10)
print(f"{folded['published']} snapshots published of {folded['records']} records")
spark.stop()

# %% A page that starts from a snapshot, and follows what comes after it -------------------------------------------
page = (here / "run.html").as_uri()
print(f"page at {page}?url={quote(url, safe='')}&run=run-00")
later = (NOON + timedelta(hours=1)).isoformat()
step = {"kind": "tokens", "at": later, "model": MODELS[0], "step": 99, "tokens": 1_000}
node.call("POST", "/v1/stream/runs/run-00", json.dumps(step).encode(), {"Content-Type": "application/json"})

if server is not None and sys.stdout.isatty():
    input("the node serves the page until return is pressed ")
