"""Coverage-guided fuzzing of the S3P parser: `python -m tests.doors.fuzz.s3p_wire -runs=1000000 CORPUS_DIRECTORY`.
It owns the entry point that atheris drives; what must hold is what the property tests hold, on bytes a fuzzer finds."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["headwater.doors.s3p"]):
    from headwater.doors.s3p.replies import Failure
    from headwater.doors.s3p.wire import Parser

from tests.doors.s3p import StrictParser, request
from tests.doors.s3p.test_fuzz_wire import GRAMMAR_BYTES_MAX, LIMITS, Bad, chunks, modelled

HELD_BYTES_MAX = LIMITS.append_bytes_max + LIMITS.name_bytes_max + GRAMMAR_BYTES_MAX
CUTS_COUNT = 4
SEEDS = (
    request(b"CREATE", b"orders", []),
    request(b"APPEND", b"orders", [b"ID", b"7"], [b"one", b"two"]),
    request(b"APPEND", b"s", [], [b"r" * 8] * 12),
    request(b"READ", b"s", [b"COUNT", b"5", b"BLOCK", b"10", b"MIN_ID", b"1-0"]),
    request(b"TRIM", b"s", [b"MIN_ID", b"2-1"]) + request(b"DELETE", b"s", []),
)


def check(data: bytes) -> None:
    """The first bytes say where the rest is cut. Raises AssertionError for anything a client could notice."""
    cuts = [byte * 3 for byte in data[:CUTS_COUNT]]
    data = data[CUTS_COUNT:]
    whole = Parser(LIMITS).feed(data)
    for kind in (Parser, StrictParser):
        parser = kind(LIMITS)
        pieces = []
        for chunk in chunks(data, cuts):
            pieces += parser.feed(chunk)
            assert parser.buffered_bytes <= HELD_BYTES_MAX, "it hoards"
        assert pieces == whole, "chunking changes the meaning"
    expected, end = modelled(data)
    assert [result for result in whole if not isinstance(result, Failure)] == expected, "not what the model reads"
    assert end is not Bad or isinstance(whole[-1], Failure), "what is bad is not refused"


def sow(corpus: Path) -> None:
    """From nothing the fuzzer would need days to find a verb."""
    for number, seed in enumerate(SEEDS):
        (corpus / f"seed-{number}").write_bytes(b"\x05\x11\x20\x30" + seed)


if __name__ == "__main__":
    if Path(sys.argv[-1]).is_dir():
        sow(Path(sys.argv[-1]))
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
