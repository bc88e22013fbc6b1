"""B7: S3P APPEND beside Redis XADD, both synced before they answer, on the same connections with the same payload.

Owns its workloads and figures; the load itself is `s3p_load`, the servers are `peers`.
"""

from bench import generator, peers
from bench.peers import FSYNC, Server
from bench.report import Result
from bench.rounds import BUSY_CPU, Settings, alternate, median, ratio, tell

CONNECTIONS = 50
RECORD = "x" * 100
PIPELINE = 100
BATCH_RECORDS = 100
SATURATED_CPU = 0.95
# (figure, aim, commands in flight on a connection, records in one command): Redis has no command for many records, so
# against a batch it gets as many XADDs in one pipeline.
WORKS = (("depth1_ratio", 1.2, 1, 1), ("depth100_ratio", 0.5, PIPELINE, 1), ("records_ratio", 1.5, 1, BATCH_RECORDS))


def bulk(value: str) -> str:
    return f"${len(value)}\r\n{value}\r\n"


def array(*elements: str) -> str:
    return f"*{len(elements)}\r\n" + "".join(elements)


def append(stream: str, records: int) -> str:
    return array(bulk("APPEND"), bulk(stream), array(), array(*[bulk(RECORD)] * records))


def xadd(stream: str) -> str:
    return array(*map(bulk, ("XADD", stream, "*", "f", RECORD)))


def load_spec(server: Server, settings: Settings, depth: int, records: int) -> dict:
    """The fields that `s3p_load` reads."""
    streams = [f"bench{n:05d}" for n in range(CONNECTIONS)]
    ours = server.peer.name == "headwater"
    if ours:
        before = [array(bulk("CREATE"), bulk(stream), array()) for stream in streams]
        commands = [append(stream, records) for stream in streams]
    else:
        before, commands = [], [xadd(stream) for stream in streams]
        depth, records = depth * records, 1
    return {
        "port": server.port,
        "server_pid": server.pid,
        "before": before,
        "commands": commands,
        "depth": depth,
        "records": records,
        "warmup_s": settings.warmup_s,
        "window_s": settings.seconds,
    }


def measure(server: Server, settings: Settings, depth: int, records: int) -> dict:
    spec = load_spec(server, settings, depth, records)
    result = generator.run("bench.s3p_load", spec, timeout_s=spec["warmup_s"] + spec["window_s"] + 60)
    if not result["commands"]:
        raise generator.Failed(f"no command was answered: {result}")
    return result


def run_b7(settings: Settings) -> list[Result]:
    pair = (peers.redis(), peers.headwater_s3p(FSYNC))
    figures: list[Result] = []
    details: dict = {}
    for name, aim, depth, records in WORKS:
        tell(f"depth {depth}, {records} record{'s' if records > 1 else ''} a command")
        rounds = alternate(
            settings, pair, lambda server, depth=depth, records=records: measure(server, settings, depth, records)
        )
        rates = {peer: median(results, "records_per_s") for peer, results in rounds.items()}
        details[name] = {"records_per_s": rates, "rounds": rounds}
        if settings.only_peer is None:
            value = ratio(rates["headwater"], rates["redis"])
            figures.append(Result("B7", name, value, aim))
            details[name].update(ratio=value, aim=aim)
        else:
            figures.append(Result("B7", f"{settings.only_peer} {name.removesuffix('ratio')}records_per_s", *rates.values()))
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
