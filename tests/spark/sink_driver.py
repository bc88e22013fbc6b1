"""A driver of a streaming query as a program of its own, so that a test can kill it: files onto streams, to their end.
It takes everything as JSON on its command line and decides nothing."""

from __future__ import annotations

import json
import sys
from typing import Any


def main(given: dict[str, Any]) -> None:
    from headwater.spark.node import Node
    from headwater.spark.session import session
    from headwater.spark.sink import start_stream

    spark = session("headwater sink driver", given["master"], **given["conf"])
    source = spark.readStream.schema("n BIGINT").option("maxFilesPerTrigger", "1").json(given["input"])
    shaped = source.selectExpr(
        f"concat('sink/s', n % {given['streams']}) AS stream",
        f"concat(lpad(n, 10, '0'), repeat('x', {given['pad_bytes']})) AS payload",
        "n",
    )
    query = start_stream(
        shaped,
        Node(given["url"]),
        given["checkpoint"],
        order_by=["n"],
        partitions=2,
        report_file=given["report"],
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
