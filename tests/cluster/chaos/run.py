"""One chaos run: a cluster, its clients, faults in turn, then quiet, two readings of everything, and the verdict.

Owns the order of a run and its figures. Everything that is chosen follows from the seed; what the machine does with it
does not.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from headwater.cluster_dev.child import CannotRun, Child
from tests.cluster.chaos.checker import Violation, check
from tests.cluster.chaos.connections import Asker, now_s
from tests.cluster.chaos.faults import Fault, Faults
from tests.cluster.chaos.history import ACKNOWLEDGED, History
from tests.cluster.chaos.network import Network
from tests.cluster.chaos.readers import CatchUp, Events, LongPoll, Reader, read_whole
from tests.cluster.chaos.subscribers import Hooks, PullSubscriber
from tests.cluster.chaos.world import World
from tests.cluster.chaos.writers import PlainWriter, Producer, Writer

STREAMS_COUNT = 6
LEASE_S = 3.0
"""By how much a plain read may be behind: a lease of 2 s, and what a busy machine adds to it."""
QUIET_S_MAX = 60.0
WARM_S = 1.0
JOIN_S_MAX = 90.0
STRETCH_S = 10.0


@dataclass(frozen=True)
class Plan:
    seed: int
    log: str = "objects"
    s3: bool = False
    minutes: float = 0.0
    """With faults drawn from `kinds`; 0: those of `sequence`, once."""
    sequence: Sequence[str] = ()
    kinds: Sequence[str] = ()
    """Empty: all that there are."""
    nodes: int = 3
    groups: int = 8
    pause_s: float = 0.05
    writers: int = 2
    """Plain ones and producers, as many of each."""
    retries_max: int | None = None
    subscriptions: bool = True
    between_s: float = 3.0
    """Longest calm between two faults."""
    lease_s: float = LEASE_S
    linearizable_share: float = 0.3
    fault: str | None = None
    """Planted in every node."""
    quiet_s_max: float = QUIET_S_MAX
    source: Path | None = None
    """The package that nodes run; None: this one."""
    older_source: Path | None = None


@dataclass
class Report:
    seed: int
    violations: list[Violation] = field(default_factory=list)
    broken: str = ""
    """Why the run could not go on: the cluster did not get well, or a client was not answered at all."""
    faults: list[Fault] = field(default_factory=list)
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    retried: int = 0
    reads: int = 0
    stale_s_max: float = 0.0
    append_s_max: float = 0.0
    codes: dict[str, int] = field(default_factory=dict)
    failed_producers: list[str] = field(default_factory=list)
    """Appends of producers that were never acknowledged, with what each attempt was told."""
    start_s: float = 0.0
    """Of the clients' record: seconds of faults count from here in a picture."""
    rates: list[tuple[int, float]] = field(default_factory=list)
    """Acknowledged appends and the longest one in seconds, for each stretch of `STRETCH_S`."""
    memory: list[tuple[float, int]] = field(default_factory=list)
    """When, and resident KiB of all nodes together: before each fault."""

    @property
    def good(self) -> bool:
        return not self.violations and not self.broken

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Run:
    def __init__(self, plan: Plan, directory: Path, network: Network | None) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.history = History()
        self.report = Report(plan.seed)
        planned = {"log": plan.log, "s3": plan.s3, "nodes": plan.nodes, "groups": plan.groups}
        self.world = World(directory, **planned, network=network, fault=plan.fault, source=plan.source)  # type: ignore[arg-type]
        if plan.older_source is not None:
            self.world.use_source(plan.older_source)
        self.streams = [f"chaos/s{i}" for i in range(STREAMS_COUNT)]
        self.faults = Faults(self.world, self.rng, self.streams, plan.older_source)
        self.writers: list[Writer] = []
        self.readers: list[Reader] = []
        self.subscribers: list[PullSubscriber] = []
        self.hooks: list[Hooks] = []

    def run(self) -> Report:
        """Nothing of it runs any more on return."""
        try:
            self.world.start()
            self._start_clients()
            time.sleep(WARM_S)
            for kind in self._chosen():
                self._inject(kind)
            self._finish()
        except (CannotRun, TimeoutError) as error:
            self.report.broken = str(error)
        finally:
            self._stop_clients()
            self.world.close()
        self._sum_up()
        return self.report

    # ---- clients -------------------------------------------------------------------------------------------------

    def _start_clients(self) -> None:
        plan, history, addresses = self.plan, self.history, self.world.addresses
        asker = Asker(addresses, random.Random(plan.seed))
        for stream in self.streams:
            made = asker.insist("PUT", f"/v1/stream/{stream}", {"Content-Type": "text/plain"})
            if made.status not in (200, 201):
                raise CannotRun(f"{stream} cannot be made: {made.status} {made.body!r}")
        if plan.subscriptions:
            self.subscribers.append(PullSubscriber("pull", self.streams, addresses, history, plan.seed))
            self.subscribers[0].subscribe()
            host = "127.0.0.1" if self.world.network is None else "0.0.0.0"
            self.hooks.append(Hooks("hook", self.streams, history, plan.seed, host))
            self.hooks[0].subscribe(asker)
        asker.close()
        for i in range(plan.writers):
            common = (self.streams, addresses, history, plan.seed, plan.pause_s, plan.retries_max)
            self.writers += [PlainWriter(f"plain{i}", *common), Producer(f"producer{i}", *common)]
        # One for each stream: then a stream that takes nothing for a while is seen.
        for i, stream in enumerate(self.streams):
            common = ([stream], addresses, history, plan.seed, plan.pause_s, plan.retries_max)
            self.writers.append(Producer(f"steady{i}", *common))
        seen = (addresses, history, plan.seed)
        self.readers += [LongPoll(f"poll{i}", stream, *seen) for i, stream in enumerate(self.streams[:3])]
        self.readers += [Events(f"events{i}", stream, *seen) for i, stream in enumerate(self.streams[2:])]
        self.readers += [
            CatchUp(f"catchup{i}", self.streams, *seen, plan.pause_s, plan.linearizable_share) for i in range(2)
        ]
        for thread in (*self.readers, *self.subscribers, *self.writers):
            thread.start()

    def _stop_clients(self) -> None:
        threads = (*self.writers, *self.readers, *self.subscribers)
        for thread in threads:
            thread.stopping.set()
        for thread in threads:
            if thread.is_alive():
                thread.join(JOIN_S_MAX)
        for hooks in self.hooks:
            hooks.stop()

    # ---- faults --------------------------------------------------------------------------------------------------

    def _chosen(self) -> Iterator[str]:
        if self.plan.minutes <= 0:
            yield from self.plan.sequence
            return
        kinds = [kind for kind in self.faults.kinds if not self.plan.kinds or kind in self.plan.kinds]
        deadline_s = now_s() + self.plan.minutes * 60
        while now_s() < deadline_s:
            yield self.rng.choice(kinds)

    def _inject(self, kind: str) -> None:
        self.report.memory.append((now_s(), sum(map(_resident_kib, self.world.nodes))))
        fault = self.faults.lasting(kind)
        self.report.faults.append(fault)
        time.sleep(self.rng.uniform(0.5, self.plan.between_s))

    # ---- the end -------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Appends end; everybody gets to the end of everything; all is read, and read again by nodes without memory."""
        for writer in self.writers:
            writer.stopping.set()
        for writer in self.writers:
            writer.join(JOIN_S_MAX)
            if writer.is_alive():
                raise TimeoutError(f"{writer.name} does not come to an end: its last append is not answered")
        final = self._read_all()
        deadline_s = now_s() + self.plan.quiet_s_max
        while not self._is_quiet(final) and now_s() < deadline_s:
            time.sleep(0.1)
        for thread in (*self.readers, *self.subscribers):
            thread.stopping.set()
        self.report.violations = check(self.history, final, self.plan.lease_s)
        for node in self.world.nodes:
            node.kill()
        self.world.mend()
        self.world.wait_well()
        again = self._read_all()
        if again != final:
            shown = ({stream: len(data) for stream, data in one.items()} for one in (final, again))
            what = "the ends were {}, and {} after all nodes were killed".format(*shown)
            self.report.violations.append(Violation("vanished", "all", what))
            self.report.violations += check(self.history, again, self.plan.lease_s)

    def _read_all(self) -> dict[str, bytes]:
        """Every stream that is there."""
        asker = Asker(self.world.addresses, random.Random(self.plan.seed))
        read = {stream: read_whole(asker, stream) for stream in self.streams}
        asker.close()
        return {stream: data for stream, data in read.items() if data is not None}

    def _is_quiet(self, final: dict[str, bytes]) -> bool:
        told = all(
            self.history.told.get((subscription, stream), 0) >= len(final.get(stream, b""))
            for subscription, streams in self.history.subscribed.items()
            for stream in streams
        )
        return told and all(offset >= len(final.get(stream, b"")) for (_, stream), offset in self.history.tails.items())

    # ---- figures -------------------------------------------------------------------------------------------------

    def _sum_up(self) -> None:
        report = self.report
        outcomes = Counter(append.outcome for append in self.history.appends)
        report.acknowledged, report.refused = outcomes["acknowledged"], outcomes["refused"]
        report.unknown = outcomes["unknown"]
        report.retried = sum(append.attempts_count > 1 for append in self.history.appends)
        report.reads = len(self.history.reads)
        report.append_s_max = max((one.end_s - one.start_s for one in self.history.appends), default=0.0)
        report.codes = dict(Counter(code for append in self.history.appends for code in append.codes).most_common(12))
        report.failed_producers = [
            f"{one.producer} {one.epoch}/{one.seq}: {one.outcome} after {one.codes}"
            for one in self.history.appends
            if one.producer is not None and one.outcome != ACKNOWLEDGED
        ]
        self._sum_up_stretches()
        ends: dict[str, list[float]] = {stream: [] for stream in self.streams}
        for append in self.history.appends:
            if append.outcome == ACKNOWLEDGED:
                ends[append.stream].append(append.end_s)
        pauses = sorted(
            (pause for stream in self.streams for pause in pairwise(sorted(ends[stream]))),
            key=lambda pause: pause[0] - pause[1],
        )
        for fault in report.faults:
            # The longest time between two acknowledgements of one stream that overlaps the fault.
            over = (after - before for before, after in pauses if after > fault.start_s and before < fault.well_s)
            fault.pause_s = next(over, 0.0)

    def _sum_up_stretches(self) -> None:
        appends = [append for append in self.history.appends if append.outcome == ACKNOWLEDGED]
        if not appends:
            return
        self.report.start_s = start_s = min(append.start_s for append in appends)
        count = int((max(append.end_s for append in appends) - start_s) // STRETCH_S) + 1
        rates = [(0, 0.0)] * count
        for append in appends:
            i = int((append.end_s - start_s) // STRETCH_S)
            rates[i] = (rates[i][0] + 1, max(rates[i][1], append.end_s - append.start_s))
        self.report.rates = rates


def _resident_kib(node: Child) -> int:
    if node.pid is None:
        return 0
    try:
        status = Path(f"/proc/{node.pid}/status").read_text()
    except OSError:
        return 0  # it ended just now
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0)
