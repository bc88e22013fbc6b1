"""A job in a thread, and how it is ended: Spark's part by cancelling, its own part at its next word of progress."""

from __future__ import annotations

import threading

from headwater.spark.job_runs import DONE, FAILED
from headwater.spark.schedules.running import Progress, in_thread
from headwater.spark.schedules.serving import Ended

QUICK = 0.001


def never() -> None:
    return None


def nothing() -> None:
    pass


def test_what_a_job_returns_or_raises_is_what_became_of_it() -> None:
    def fails(progress: Progress) -> Ended:
        raise OSError("no disk")

    assert in_thread(lambda progress: Ended(DONE), never, nothing, QUICK) == Ended(DONE)
    assert in_thread(fails, never, nothing, QUICK) == Ended(FAILED, "OSError: no disk")


def test_a_job_that_waits_for_spark_ends_when_that_is_cancelled() -> None:
    cancelled = threading.Event()

    def job(progress: Progress) -> Ended:
        cancelled.wait()
        return Ended(FAILED, "cancelled")

    assert in_thread(job, lambda: "told to", cancelled.set, QUICK) == Ended(FAILED, "cancelled")


def test_a_job_that_works_by_itself_ends_at_its_next_word_of_progress() -> None:
    words = 0

    def job(progress: Progress) -> Ended:
        nonlocal words
        try:
            while True:
                progress("files", words, None)
                words += 1
        except Exception:  # what a job takes for its own failures is not what ends it
            return Ended(DONE)

    assert in_thread(job, lambda: "told to" if words else None, nothing, QUICK).outcome == FAILED


def test_threads_that_only_watch_are_not_ended() -> None:
    over = threading.Event()
    raised: list[BaseException] = []

    def job(progress: Progress) -> Ended:
        def watch() -> None:
            try:
                while not progress.cut:
                    over.wait(QUICK)
                progress("tasks", 1, 2)
            except BaseException as error:
                raised.append(error)

        watcher = threading.Thread(target=watch)
        watcher.start()
        watcher.join()
        return Ended(DONE)

    assert in_thread(job, lambda: "told to", nothing, QUICK) == Ended(DONE)
    assert raised == []


def test_a_job_that_does_not_end_is_the_end_of_the_process() -> None:
    over = threading.Event()
    tries = 0

    def cancel() -> None:
        nonlocal tries
        tries += 1

    def job(progress: Progress) -> Ended:
        over.wait()
        return Ended(DONE)

    ended = in_thread(job, lambda: "told to", cancel, QUICK, 5 * QUICK)
    over.set()
    assert ended.outcome == FAILED and "did not end within" in ended.fatal
    assert tries == 5
