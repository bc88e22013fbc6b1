"""How a benchmark repeats itself: the settings of a run, and rounds in which the peers take turns.

Owns the order of measurements; what is measured is the caller's.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.generator import Failed
from bench.peers import Peer, Server, serving

# Above this share of a core other programs have taken part, and the round is not a fair one.
BUSY_CPU = 0.2


@dataclass(frozen=True, slots=True)
class Settings:
    rounds: int
    seconds: float
    warmup_s: float
    quick: bool
    only_peer: str | None


Measure = Callable[[Server], dict]


def alternate(settings: Settings, peers: Sequence[Peer], measure: Measure) -> dict[str, list[dict]]:
    """Every peer once per round, each time freshly started; the results of all rounds by peer name.

    With `only_peer` the others are left out, and their lists are absent.
    """
    chosen = [peer for peer in peers if settings.only_peer in (None, peer.name)]
    if not chosen:
        raise Failed(f"{settings.only_peer} has no part in this benchmark")
    results: dict[str, list[dict]] = {peer.name: [] for peer in chosen}
    for round_index in range(settings.rounds):
        for peer in chosen:
            with serving(peer) as server:
                result = measure(server)
            results[peer.name].append(result)
            tell(f"round {round_index + 1} {peer.name} {peer.mode}: {brief(result)}")
    return results


def median(rounds: Sequence[dict], key: str) -> float | None:
    """The median of one key over the rounds that have it; None when none has."""
    values = [one[key] for one in rounds if one.get(key) is not None]
    return statistics.median(values) if values else None


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def brief(result: dict) -> str:
    return "  ".join(f"{key} {value}" for key, value in result.items() if value not in (None, 0, {}))


def tell(text: str) -> None:
    """Progress goes to stderr; stdout carries only the final lines."""
    print(f"  {text}", file=sys.stderr, flush=True)
