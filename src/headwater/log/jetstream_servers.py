"""What the servers and streams of a JetStream log have to be, and how to tell.

Owns the demands: version, synced writes, copies, and a stream that forgets nothing by itself. Never repairs anything:
what does not hold is refused, with what to change.

A server says over its monitoring port alone (`http: 8222` in its file) whether it syncs each write: a client cannot
ask for that.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headwater.log.medium import MediumError

VERSION_MIN = (2, 15, 1)
CLUSTER_KEY = "headwater-cluster"
"""In a stream's metadata."""
MONITOR_PORT = 8222
REPLICAS = 3
_ANSWER_S_MAX = 3.0


class Refused(MediumError):
    """The servers, or the stream, do not keep what a log promises."""


class ServerFacts(msgspec.Struct, frozen=True):
    name: str
    version: str
    syncs_always: bool
    jetstream: bool = True


def monitors_of(urls: Sequence[str]) -> list[str]:
    """Where the servers' monitoring is by default."""
    hosts = dict.fromkeys(urlsplit(url if "//" in url else f"//{url}").hostname or "127.0.0.1" for url in urls)
    return [f"http://{f'[{host}]' if ':' in host else host}:{MONITOR_PORT}" for host in hosts]


def facts_of(varz: Mapping[str, Any]) -> ServerFacts:
    config = (varz.get("jetstream") or {}).get("config") or {}
    return ServerFacts(
        str(varz.get("server_name", "")), str(varz.get("version", "")), bool(config.get("sync_always")), bool(config)
    )


def refusals(facts: ServerFacts, monitor: str) -> list[str]:
    """What is wrong with a server, each as a sentence that says what to change."""
    found = []
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", facts.version)
    if numbers is None or tuple(map(int, numbers.groups())) < VERSION_MIN:
        wanted = ".".join(map(str, VERSION_MIN))
        found.append(f"the NATS server {facts.name} ({monitor}) is {facts.version}: upgrade it to {wanted} or later")
    if not facts.jetstream:
        found.append(f"the NATS server {facts.name} ({monitor}) runs without JetStream: add jetstream {{}} to its file")
    elif not facts.syncs_always:
        found.append(
            f"the NATS server {facts.name} ({monitor}) acknowledges writes before they are on disk: "
            "set jetstream { sync_interval: always } in its file and restart it"
        )
    return found


async def check_servers(monitors: Sequence[str]) -> dict[str, ServerFacts]:
    """The servers that answered, by name: all of them fit. Raises Refused when one does not, or when so few answered
    that the others could be a quorum."""
    answers = await asyncio.gather(*(asyncio.to_thread(_ask, monitor) for monitor in monitors))
    facts: dict[str, ServerFacts] = {}
    complaints: list[str] = []
    silent: list[str] = []
    for monitor, answer in zip(monitors, answers, strict=True):
        if isinstance(answer, str):
            silent.append(f"{monitor} ({answer})")
        else:
            found = facts_of(answer)
            facts[found.name] = found
            complaints += refusals(found, monitor)
    if complaints:
        raise Refused("; ".join(complaints))
    if 2 * len(silent) >= len(monitors):
        raise Refused(
            f"whether the NATS servers sync each write cannot be told: no answer from {', '.join(silent)}. Start them, "
            f"turn their monitoring on (http: {MONITOR_PORT} in their files), or say where it is"
        )
    return facts


def _ask(monitor: str) -> dict[str, Any] | str:
    try:
        with urllib.request.urlopen(f"{monitor}/varz", timeout=_ANSWER_S_MAX) as answer:
            found = json.loads(answer.read())
        return found if isinstance(found, dict) else "not a NATS server"
    except (OSError, ValueError) as error:
        return str(error)


def stream_config(name: str, subject: str, hints: str, replicas: int, cluster: str = "") -> dict[str, Any]:
    """The stream of one group, as it is made."""
    return {
        "name": name,
        "subjects": [subject],
        "num_replicas": replicas,
        "storage": "file",
        "metadata": {CLUSTER_KEY: cluster} if cluster else {},
        "retention": "limits",
        "discard": "new",
        "allow_direct": True,
        "allow_atomic": True,
        "deny_delete": True,
        # Entries carry no message id, so nothing is remembered for it.
        "duplicate_window": 100_000_000,
        # Says that something was stored, to whoever waits for it, without a consumer that has to be kept alive.
        "republish": {"src": subject, "dest": hints, "headers_only": True},
    }


def check_cluster(info: Mapping[str, Any], cluster: str) -> None:
    """Raises Refused when the stream is the log of another cluster than that one, if one is given."""
    found = (info["config"].get("metadata") or {}).get(CLUSTER_KEY)
    if cluster and found and found != cluster:
        raise Refused(
            f"the NATS stream {info['config']['name']} is a log of cluster {found}, and the lake is that of cluster "
            f"{cluster}: correct --lake, --cluster or --cluster-name"
        )


def check_stream(info: Mapping[str, Any], replicas: int, servers: Mapping[str, ServerFacts]) -> None:
    """Raises Refused when the stream could lose what it acknowledged, or lies on servers of which too few were
    checked."""
    config = info["config"]
    name = config["name"]
    complaints = []
    if config.get("storage") != "file":
        complaints.append("is kept in memory: it has to be made again with storage: file")
    if config.get("num_replicas", 1) < replicas:
        complaints.append(f"has {config.get('num_replicas', 1)} copies: nats stream edit {name} --replicas={replicas}")
    if config.get("retention") != "limits":
        complaints.append(f"has retention {config.get('retention')}: it has to be made again with retention: limits")
    for limit in ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"):
        if config.get(limit, 0) > 0:
            complaints.append(f"has a limit ({limit}: {config[limit]}): take it away with nats stream edit {name}")
    for switch in ("allow_direct", "allow_atomic"):
        if not config.get(switch):
            complaints.append(f"is without {switch}: turn it on with nats stream edit {name}")
    if config.get("persist_mode") == "async":
        complaints.append("acknowledges before it has stored (persist_mode: async): it has to be made again")
    if config.get("sealed"):
        complaints.append("is sealed: nothing can be written to it any more")
    placed = info.get("cluster") or {}
    names = [one for one in (placed.get("leader"), *(peer["name"] for peer in placed.get("replicas") or ())) if one]
    known = [one for one in names if one in servers]
    if servers and names and 2 * len(known) <= len(names):
        missing = ", ".join(one for one in names if one not in servers)
        complaints.append(
            f"lies on servers that were not checked ({missing}): say where their monitoring is, or start it"
        )
    if complaints:
        raise Refused("; ".join(f"the NATS stream {name} {complaint}" for complaint in complaints))
