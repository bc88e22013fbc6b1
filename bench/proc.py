"""What the kernel says about a process tree: CPU time, resident memory, the descriptor limit.

Reads /proc only; starts and ends nothing.
"""

import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree(pid: int) -> list[int]:
    """The process and all its living descendants; empty when it is gone."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
        found.append(one)
    return found


def cpu_seconds(pid: int) -> float:
    """User plus system time of the tree so far; children already reaped are counted with their parent."""
    ticks = 0
    for one in tree(pid):
        try:
            # The command name may hold spaces and brackets: count fields after its closing one.
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(fields[i]) for i in (11, 12, 13, 14))
    return ticks / TICKS_PER_SECOND


def _cpu_seconds_of(pids: list[int]) -> float:
    return sum(cpu_seconds(pid) for pid in pids)


def machine_busy_seconds() -> float:
    """CPU time that anything on this machine has used since it started, all cores together."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(None, 9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


class CpuWindow:
    """From when it is made until `close`: shares of one core used by a server, by this process, and by others."""

    def __init__(self, server_pid: int | list[int], parts: Mapping[str, list[int]] | None = None) -> None:
        """`parts` are processes of the server that are counted apart as well, by name."""
        self._server_pids = [server_pid] if isinstance(server_pid, int) else server_pid
        self._parts = parts or {}
        self._machine_s = machine_busy_seconds()
        self._server_s = _cpu_seconds_of(self._server_pids)
        self._part_s = {name: _cpu_seconds_of(pids) for name, pids in self._parts.items()}
        self._own_s = time.process_time()
        self._began_s = time.perf_counter()

    def close(self) -> dict[str, float]:
        self.elapsed_s = time.perf_counter() - self._began_s
        own_s = time.process_time() - self._own_s
        self.server_s = _cpu_seconds_of(self._server_pids) - self._server_s
        self.part_s = {name: _cpu_seconds_of(pids) - self._part_s[name] for name, pids in self._parts.items()}
        others_s = machine_busy_seconds() - self._machine_s - self.server_s - own_s
        shares = {"server_cpu": self.server_s, "generator_cpu": own_s, "others_cpu": max(0.0, others_s)}
        return {name: round(spent_s / self.elapsed_s, 3) for name, spent_s in shares.items()}


def rss_bytes(pid: int) -> int:
    pages = 0
    for one in tree(pid):
        try:
            pages += int(Path(f"/proc/{one}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * PAGE_BYTES


def raise_descriptor_limit() -> int:
    """Lift the soft limit of open files to the hard one, for this process and those it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def filesystem_of(path: Path) -> str:
    """The type of the filesystem that holds `path`, such as ext4 or tmpfs."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for row in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = row.split()
        if fields[2] == wanted:
            return fields[fields.index("-") + 1]
    return "unknown"
