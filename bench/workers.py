"""B13, appends over several workers: CPU per append summed over all of a node's processes, beside one worker.

Owns the workload, the figures, the model that predicts larger machines, and the picture of it. The load is `load`; it
runs on the same cores as the node, and its CPU time is counted apart.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from bench import append, peers, proc
from bench.generator import Failed
from bench.peers import FSYNC, MEMORY, Peer, Server
from bench.report import Result, machine, show
from bench.rounds import Settings, alternate, median, ratio
from bench.workers_picture import draw

WORKERS = (1, 2, 4)
CONNECTIONS = 64 * WORKERS[-1]
"""The same for every number of workers: each of the most has as many as the one of B1."""
KEEP, MIX = "keep", "mix"
PATTERNS = (KEEP, MIX)
"""Connections that keep to one stream each, and connections whose every request goes to another stream."""
AIMS = {KEEP: 1.1, MIX: 1.8}
CORES_PREDICTED = (1, 2, 4, 8, 16)
RESERVE = 0.3
"""Of each core, left out of the prediction: interrupts, flushes and upkeep, and workers that are not equally busy."""
COST = "server_cpu_us_per_append"
PICTURE = Path(__file__).with_name("workers_scale.svg")

Rounds = dict[tuple[str, int], list[dict]]


def run_b13(settings: Settings) -> list[Result]:
    if settings.only_peer not in (None, "headwater"):
        raise Failed(f"{settings.only_peer} has no part in this benchmark")
    details: dict = {}
    rounds_of: dict[str, Rounds] = {}
    predictions: dict[str, dict] = {}
    for mode in (FSYNC, MEMORY):
        rounds = rounds_of[mode] = measure(mode, settings)
        costs = {key: median(found, COST) for key, found in rounds.items()}
        predictions[mode] = predict(costs)
        details[mode] = {
            "rounds": {_name(*key): found for key, found in rounds.items()},
            "medians": append.summary({_name(*key): found for key, found in rounds.items()}),
            "ratios": {_name(*key): ratio(costs[key], costs[key[0], 1]) for key in costs},
            "prediction": predictions[mode],
        }
    details["connections"], details["reserve"] = CONNECTIONS, RESERVE
    caveat = append.caveats([one for rounds in rounds_of.values() for found in rounds.values() for one in found])
    results = [_cost_result(pattern, count, details, caveat) for pattern in PATTERNS for count in WORKERS if count > 1]
    results += [_rate_result(rounds_of, pattern, caveat) for pattern in PATTERNS]
    results += [_predicted_result(predictions, cores) for cores in CORES_PREDICTED if cores > WORKERS[-1]]
    results[0] = dataclasses.replace(results[0], details=details)
    measured = {mode: _rates(rounds) for mode, rounds in rounds_of.items()}
    # A quick run is no figure: it leaves the picture of the last real one alone.
    draw(measured, predictions, _caption(), peers.SCRATCH / PICTURE.name if settings.quick else PICTURE)
    return results


def measure(mode: str, settings: Settings) -> Rounds:
    """Every pattern with every number of workers once per round, each time on a freshly started node."""
    of_name = {_name(pattern, count): (pattern, count) for pattern in PATTERNS for count in WORKERS}

    def one(server: Server) -> dict:
        pattern, count = of_name[server.peer.name]
        processes_count = len(proc.tree(server.pid))
        if processes_count < (count + 1 if count > 1 else 1):
            raise Failed(f"{count} workers were asked for, and the node has {processes_count} processes")
        # Longer: first the connections between workers are made, and every worker learns the heads of all streams.
        warmup_s = 2 * settings.warmup_s
        return append.run_load(
            append.load_spec(server, settings, connections=CONNECTIONS, mix=pattern == MIX, warmup_s=warmup_s)
        )

    chosen = [_peer(mode, name, count) for name, (_, count) in of_name.items()]
    found = alternate(dataclasses.replace(settings, only_peer=None), chosen, one)
    return {of_name[name]: results for name, results in found.items()}


def _peer(mode: str, name: str, count: int) -> Peer:
    plain = peers.headwater(mode)
    return dataclasses.replace(plain, name=name, command=lambda data: [*plain.command(data), "--workers", str(count)])


def _name(pattern: str, count: int) -> str:
    return f"{pattern}_{count}"


# ---- the model ---------------------------------------------------------------------------------------------------


def sent_on_share(workers_count: int) -> float:
    """The share of requests that another worker has to answer, when connections mix streams."""
    return (workers_count - 1) / workers_count


def predict(costs: dict[tuple[str, int], float | None]) -> dict:
    """Appends/s with as many workers as cores, none of which a load generator needs, by what an append costs.

    An append that stays costs what it does with the most workers measured; with one worker, what it does there. One
    that is sent on costs `sent_on_us` more: what mixing adds, over the share that is sent on, as the median of the
    measured numbers of workers. The disk is not part of it: it has to take the syncs of as many logs.
    """
    several = [count for count in WORKERS if count > 1]
    alone_us, stays_us = costs[KEEP, 1], costs[KEEP, several[-1]]
    added = [
        {COST: (mixed - kept) / sent_on_share(count)}
        for count in several
        if (mixed := costs[MIX, count]) is not None and (kept := costs[KEEP, count]) is not None
    ]
    sent_on_us = median(added, COST)
    found: dict = {"stays_us": stays_us, "sent_on_us": sent_on_us, KEEP: {}, MIX: {}}
    if alone_us is None or stays_us is None or sent_on_us is None:
        return found
    for cores in CORES_PREDICTED:
        usable_us = cores * (1 - RESERVE) * 1e6
        kept_us = alone_us if cores == 1 else stays_us
        found[KEEP][cores] = round(usable_us / kept_us)
        found[MIX][cores] = round(usable_us / (kept_us + sent_on_share(cores) * sent_on_us))
    return found


# ---- the figures -------------------------------------------------------------------------------------------------


def _cost_result(pattern: str, count: int, details: dict, caveat: str) -> Result:
    """CPU per append with several workers over that with one, fsync; beside it the same in memory, and both costs."""
    name = _name(pattern, count)
    medians = details[FSYNC]["medians"]
    shown = f"us {show(medians[name][COST])} beside {show(medians[_name(pattern, 1)][COST])}"
    note = " ".join([shown, f"memory {show(details[MEMORY]['ratios'][name])}", caveat]).rstrip()
    measure_name = f"{pattern}_cpu_ratio_{count}_workers"
    value = details[FSYNC]["ratios"][name]
    return Result("B13", measure_name, value, AIMS[pattern], aim_is_ceiling=True, note=note)


def _rate_result(rounds_of: dict[str, Rounds], pattern: str, caveat: str) -> Result:
    """Appends/s with two workers over those with one, fsync; for information, the generator needs cores of its own."""

    def shown(count: int) -> str:
        found = rounds_of[FSYNC][pattern, count]
        p50, p99, used = (show(median(found, key)) for key in ("p50_ms", "p99_ms", "generator_cpu"))
        return f"{show(median(found, 'appends_per_s'))}/s p50 {p50} p99 {p99} generator {used}"

    rates = {mode: _rates(rounds)[pattern] for mode, rounds in rounds_of.items()}
    memory = f"memory {show(ratio(rates[MEMORY][2], rates[MEMORY][1]))}"
    note = " ".join([f"1: {shown(1)}, 2: {shown(2)};", memory, caveat]).rstrip()
    return Result("B13", f"{pattern}_rate_ratio_2_workers", ratio(rates[FSYNC][2], rates[FSYNC][1]), note=note)


def _predicted_result(predictions: dict[str, dict], cores: int) -> Result:
    """Of connections that keep to a stream, fsync; beside it those that mix, and both in memory."""
    keep, mix = ({mode: by[pattern].get(cores) for mode, by in predictions.items()} for pattern in PATTERNS)
    note = f"mix {show(mix[FSYNC])} memory {show(keep[MEMORY])} mix {show(mix[MEMORY])}, {RESERVE:.0%} in reserve"
    return Result("B13", f"predicted_appends_per_s_{cores}_cores", keep[FSYNC], note=note)


def _rates(rounds: Rounds) -> dict[str, dict[int, float | None]]:
    return {
        pattern: {count: median(rounds[pattern, count], "appends_per_s") for count in WORKERS} for pattern in PATTERNS
    }


def _caption() -> Sequence[str]:
    cores = machine()["cores"]
    return (
        f"Appends/s over the number of workers ({append.BODY_BYTES} B, {CONNECTIONS} connections)",
        f"circles: measured on {cores} cores, of which the load generator takes its share",
        f"dashed: predicted for as many cores as workers, {RESERVE:.0%} of each in reserve, no generator",
    )
