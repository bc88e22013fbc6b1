"""A program on Spark Connect, as a user's would be: it reads streams, and keeps states of them.
It takes everything as JSON on its command line, prints one line of JSON, and decides nothing."""

from __future__ import annotations

import json
import sys
from typing import Any


def main(given: dict[str, Any]) -> None:
    from headwater.spark.native_read import read_lake, read_where
    from headwater.spark.node import Node
    from headwater.spark.session import session
    from headwater.spark.sink import start_stream

    spark = session("headwater connect driver", given["server"])
    url, folder = given["url"], given["folder"]
    node = Node(url)
    found: dict[str, Any] = {"reads": {}, "errors": {}}

    def seqs(frame: Any) -> list[Any]:
        return sorted([row["stream"], row["seq"]] for row in frame.select("stream", "seq").collect())

    for name, options in given["reads"].items():
        found["reads"][name] = seqs(spark.read.format("headwater").option("url", url).options(**options).load())
    found["reads"]["read_lake"] = seqs(read_lake(spark, url, **given["reads"]["of streams"]))
    found["reads"]["where"] = seqs(read_where(spark, url, "bucket = 'runs' AND seq >= 2", ["stream", "seq"]))

    def follow() -> Any:
        read = spark.readStream.format("headwater").option("url", url).option("bucket", "runs")
        return read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100).load()

    def write(frame: Any, bucket: str, **more: Any) -> None:
        query = start_stream(
            frame,
            node,
            f"{folder}/{bucket}",
            stream=f"concat('{bucket}/', stream)",
            content_type="application/json",
            trigger={"availableNow": True},
            **more,
        )
        try:
            query.awaitTermination(120)
        except Exception as error:
            found["errors"][bucket] = str(error)

    counts = follow().groupBy("stream").count()
    state = {"payload": "to_json(struct(count))"}
    write(counts, "complete", output_mode="complete", **state)
    write(counts, "update", output_mode="update", producer_id="counts", **state)
    write(counts, "unnamed", output_mode="update", **state)
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
