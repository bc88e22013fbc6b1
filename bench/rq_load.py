"""The load of RQ in B14: a process that enqueues jobs which do nothing, then starts N real RQ workers on them.

Owns the workers (forked from here after RQ is imported, ended by their ids) and the count of finished jobs, which it
reads from Redis. Needs the extra `bench`. Run by `generator.run`.
"""

import os
import signal
import sys
import time

from bench import generator, proc

QUEUE = "bench"
ENQUEUED_AT_ONCE = 1_000
SAMPLE_S = 0.05
START_S_MAX = 90.0
END_S_MAX = 15.0


def nothing(_: str) -> None:
    """The job."""


def run(spec: dict) -> dict:
    from redis import Redis

    connection = Redis("127.0.0.1", spec["port"])
    _enqueue(connection, spec["jobs"], spec["job"])
    connection.close()  # or every worker would have the same socket
    pids = [_start_worker(spec["port"], spec["fork"], number) for number in range(spec["workers"])]
    try:
        _await_workers(connection, spec)
        return _measure(connection, spec)
    finally:
        _end(pids)


def _enqueue(connection, count: int, argument: str) -> None:
    from rq import Queue

    queue = Queue(QUEUE, connection=connection)
    for first in range(0, count, ENQUEUED_AT_ONCE):
        # A result is kept for 500 s by default; 0 spares RQ that work.
        some = [
            Queue.prepare_data(nothing, (argument,), result_ttl=0) for _ in range(min(ENQUEUED_AT_ONCE, count - first))
        ]
        queue.enqueue_many(some)


def _start_worker(port: int, fork: bool, number: int) -> int:
    """A worker as `rq worker` starts it, which forks for every job, or one that works in its own process."""
    pid = os.fork()
    if pid:
        return pid
    try:
        generator.die_with_parent()
        from redis import Redis
        from rq import Queue, SimpleWorker, Worker

        connection = Redis("127.0.0.1", port)
        kind = Worker if fork else SimpleWorker
        kind([Queue(QUEUE, connection=connection)], connection=connection, name=f"bench-{number}").work(
            logging_level="WARNING"
        )
    except BaseException as failure:
        print(f"worker {number}: {failure!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


def _outstanding(connection) -> tuple[int, int]:
    """Jobs that nobody has taken yet, and jobs that are not done."""
    with connection.pipeline(transaction=True) as both:
        waiting, in_work = both.llen(f"rq:queue:{QUEUE}").zcard(f"rq:wip:{QUEUE}").execute()
    return waiting, waiting + in_work


def _await_workers(connection, spec: dict) -> None:
    deadline_s = time.monotonic() + START_S_MAX
    while (ready := connection.scard("rq:workers")) < spec["workers"]:
        if time.monotonic() > deadline_s:
            raise generator.Failed(f"{ready} of {spec['workers']} RQ workers were ready after {START_S_MAX:.0f} s")
        time.sleep(SAMPLE_S)
    time.sleep(spec["warmup_s"])


def _measure(connection, spec: dict) -> dict:
    """The rate until the window ends, or until the last time that jobs were still waiting."""
    waiting, first = _outstanding(connection)
    if not waiting:
        raise generator.Failed(f"RQ's {spec['jobs']} jobs were all taken before the window began")
    redis_s = proc.cpu_seconds(spec["server_pid"])
    began_s = at_s = time.perf_counter()
    left = first
    while waiting and at_s - began_s < spec["window_s"]:
        time.sleep(SAMPLE_S)
        waiting, outstanding = _outstanding(connection)
        if waiting:
            left, at_s = outstanding, time.perf_counter()
    pairs, elapsed_s = first - left, at_s - began_s
    redis_s = proc.cpu_seconds(spec["server_pid"]) - redis_s
    # The workers fill every core, so the shares of a core that other loads report would say nothing here.
    return {
        "pairs": pairs,
        "pairs_per_s": round(pairs / elapsed_s, 1) if elapsed_s else None,
        "window_s": round(elapsed_s, 2),
        "redis_cpu": round(redis_s / elapsed_s, 3) if elapsed_s else None,
    }


def _end(pids: list[int]) -> None:
    """On return no worker is left: each is asked first, and killed when it does not end."""
    living = set(pids)
    for pid in living:
        os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + END_S_MAX
    killed = False
    while living:
        living -= {pid for pid in living if os.waitpid(pid, os.WNOHANG)[0]}
        if not killed and time.monotonic() > deadline_s:
            killed = True
            for pid in living:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    # The name by which the workers find the job, whatever name this process has.
    from bench import rq_load

    generator.answer(rq_load.run)
