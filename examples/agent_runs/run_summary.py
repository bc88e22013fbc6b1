"""Folds a run's events into where it stands. Owns the meaning of a snapshot for this example, and nothing else.

`fold` calls it with the snapshot before (None at first) and the records since: it must give the same whether it sees
all records at once or in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from headwater.spark.folding import Record


def summary(previous: bytes | None, records: Sequence[Record]) -> dict[str, object]:
    found = {"status": "unknown", "model": None, "steps": 0, "tokens": 0} if previous is None else json.loads(previous)
    for record in records:
        event = json.loads(record.payload)
        found["model"] = event.get("model", found["model"])
        found["steps"] = max(found["steps"], event["step"])
        found["tokens"] += event.get("tokens", 0)
        found["status"] = "finished" if event["kind"] == "finished" else "running"
    return found
