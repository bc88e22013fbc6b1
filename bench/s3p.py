"""B7: S3P APPEND beside Redis XADD, both synced before they answer, on the same connections with the same payload.

Owns its workloads and figures; the load itself is `s3p_load`, the servers are `peers`.
"""

from dataclasses import dataclass

from bench import generator, peers
from bench.peers import FSYNC, Server
from bench.report import Result
from bench.rounds import BUSY_CPU, Settings, alternate, median, ratio, tell

CONNECTIONS = 50
RECORD = "x" * 100
PIPELINE = 100
BATCH_RECORDS = 100
SATURATED_CPU = 0.95


@dataclass(frozen=True, slots=True)
class Work:
    """What each connection keeps in flight. Redis has no command for many records: against a batch it gets as many
    XADDs in one pipeline."""

    figure: str
    aim: float | None
    depth: int = 1
    records: int = 1
    streams: int = 1
    """Streams that one pipeline goes to in turn; with one, APPENDs in a row are logged as one."""


WORKS = (
    Work("depth1_ratio", 1.2),
    Work("depth100_ratio", 0.5, depth=PIPELINE),
    Work("records_ratio", 1.5, records=BATCH_RECORDS),
    Work("mixed_ratio", None, depth=PIPELINE, streams=CONNECTIONS),
)


def bulk(value: str) -> str:
    return f"${len(value)}\r\n{value}\r\n"


def array(*elements: str) -> str:
    return f"*{len(elements)}\r\n" + "".join(elements)


def append(stream: str, records: int) -> str:
    return array(bulk("APPEND"), bulk(stream), array(), array(*[bulk(RECORD)] * records))


def xadd(stream: str) -> str:
    return array(*map(bulk, ("XADD", stream, "*", "f", RECORD)))


def load_spec(server: Server, settings: Settings, work: Work) -> dict:
    """The fields that `s3p_load` reads."""
    streams = [f"bench{n:05d}" for n in range(CONNECTIONS)]
    if server.peer.name == "headwater":
        before = [array(bulk("CREATE"), bulk(stream), array()) for stream in streams]
        commands = [append(stream, work.records) for stream in streams]
        depth, records = work.depth, work.records
    else:
        before, commands = [], [xadd(stream) for stream in streams]
        depth, records = work.depth * work.records, 1
    return {
        "port": server.port,
        "server_pid": server.pid,
        "before": before,
        "pipelines": [
            "".join(commands[(first + step % work.streams) % CONNECTIONS] for step in range(depth))
            for first in range(CONNECTIONS)
        ],
        "depth": depth,
        "records": records,
        "warmup_s": settings.warmup_s,
        "window_s": settings.seconds,
    }


def measure(server: Server, settings: Settings, work: Work) -> dict:
    spec = load_spec(server, settings, work)
    result = generator.run("bench.s3p_load", spec, timeout_s=spec["warmup_s"] + spec["window_s"] + 60)
    if not result["commands"]:
        raise generator.Failed(f"no command was answered: {result}")
    return result


def run_b7(settings: Settings) -> list[Result]:
    pair = (peers.redis(), peers.headwater_s3p(FSYNC))
    figures: list[Result] = []
    details: dict = {}
    for work in WORKS:
        tell(f"{work.depth} in flight, {work.records} a command, {work.streams} streams a connection")
        rounds = alternate(settings, pair, lambda server, work=work: measure(server, settings, work))
        rates = {peer: median(results, "records_per_s") for peer, results in rounds.items()}
        if settings.only_peer is None:
            value = ratio(rates["headwater"], rates["redis"])
            figures.append(Result("B7", work.figure, value, work.aim))
        else:
            value = rates[settings.only_peer]
            figures.append(Result("B7", f"{work.figure.removesuffix('ratio')}records_per_s", value))
        details[work.figure] = {"value": value, "aim": work.aim, "records_per_s": rates, "rounds": rounds}
    first, *others = figures
    everything = [one for detail in details.values() for rounds in detail["rounds"].values() for one in rounds]
    note = " ".join([*(other.line.removeprefix("B7 ") for other in others), caveats(everything)]).rstrip()
    return [Result(first.name, first.measure, first.value, first.aim, note=note, details=details)]


def caveats(rounds: list[dict]) -> str:
    lost = sum(one["connections_lost"] for one in rounds)
    said = [f"{lost} connections lost"] if lost else []
    said += ["machine busy"] if any(one["others_cpu"] > BUSY_CPU for one in rounds) else []
    said += ["generator saturated"] if any(one["generator_cpu"] > SATURATED_CPU for one in rounds) else []
    return f"({', '.join(said)})" if said else ""
