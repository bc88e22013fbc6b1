"""A network for each part of a cluster, joined by this process, which can cut the way from one to another.

Owns network namespaces: they are there for as long as this process is, and touch no other network of the machine. Needs
to be in a namespace of its own: `inside` says so, `unshare --net` makes one. Nothing here is asked of the parts.

    part i: eth0 10.77.i.2  <->  hub (this process): veth i, 10.77.i.1, forwards between parts

A cut drops packets of one direction without a word, as a broken network does: who sends notices nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from headwater.cluster_dev import tether
from tests.cluster.chaos import relay

SUBNET = "10.77"
PREFERENCE = 10
HUB_MARK = "HEADWATER_CHAOS_HUB"
"""Set in the environment of a process that was started in a namespace of its own."""


def is_possible() -> bool:
    """Whether this machine lets this user make namespaces, and has what is needed."""
    if sys.platform != "linux" or any(shutil.which(one) is None for one in ("ip", "unshare", "nsenter")):
        return False
    rules = "ip link add t0 type veth peer name t1 && ip rule add pref 10 iif t0 to 10.0.0.1 blackhole"
    return subprocess.run(["unshare", "--net", "sh", "-c", rules], capture_output=True, check=False).returncode == 0


def inside() -> bool:
    return os.environ.get(HUB_MARK) == "1"


def command_inside(command: list[str]) -> list[str]:
    """The same command, as a hub."""
    return ["unshare", "--net", "env", f"{HUB_MARK}=1", *command]


class Network:
    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self.cuts: set[tuple[str, str]] = set()
        _run("ip", "link", "set", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def place(self, name: str) -> Place:
        """The namespace of a part, made when it is first asked for."""
        if name not in self._places:
            self._places[name] = Place(name, len(self._places) + 1)
        return self._places[name]

    def cut(self, sender: str, receiver: str) -> None:
        """Packets of this direction vanish."""
        if (sender, receiver) not in self.cuts:
            self.cuts.add((sender, receiver))
            self._rule("add", sender, receiver)

    def heal(self) -> None:
        """Every cut is over."""
        for sender, receiver in self.cuts:
            self._rule("del", sender, receiver)
        self.cuts.clear()

    def _rule(self, action: str, sender: str, receiver: str) -> None:
        from_link, to_host = self._places[sender].link, self._places[receiver].host
        _run("ip", "rule", action, "pref", str(PREFERENCE), "iif", from_link, "to", to_host, "blackhole")

    def close(self) -> None:
        for place in self._places.values():
            place.close()


class Place:
    """One namespace. A process that keeps it open also brings webhooks from its loopback to the hub."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.link = f"chaos{number}"
        self.host = f"{SUBNET}.{number}.2"
        self.hub = f"{SUBNET}.{number}.1"
        held = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), "unshare", "--net"]
        self._holder = subprocess.Popen(
            [*held, sys.executable, "-I", "-S", relay.__file__, self.hub],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        # It says so when it is in its namespace.
        if not self._holder.stdout or not self._holder.stdout.readline():
            raise RuntimeError("a network namespace cannot be made")
        pid = str(self._holder.pid)
        _run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", pid)
        _run("ip", "address", "add", f"{self.hub}/24", "dev", self.link)
        _run("ip", "link", "set", self.link, "up")
        _run(*self.wrapper, "ip", "link", "set", "lo", "up")
        _run(*self.wrapper, "ip", "address", "add", f"{self.host}/24", "dev", "eth0")
        _run(*self.wrapper, "ip", "link", "set", "eth0", "up")
        _run(*self.wrapper, "ip", "route", "add", "default", "via", self.hub)

    @property
    def wrapper(self) -> list[str]:
        """What stands before a command that is to run here."""
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
