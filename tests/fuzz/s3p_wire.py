"""Coverage-guided fuzzing of the S3P parser: `python -m tests.fuzz.s3p_wire -runs=1000000 [corpus directory]`.
It owns the entry point that atheris drives; what must hold is what the property tests hold, on bytes a fuzzer finds."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["headwater.doors.s3p"]):
    from headwater.doors.s3p.replies import Failure
    from headwater.doors.s3p.wire import Parser

from tests.s3p import StrictParser
from tests.s3p.test_fuzz_wire import GRAMMAR_BYTES_MAX, LIMITS, Bad, chunks, modelled

HELD_BYTES_MAX = LIMITS.append_bytes_max + LIMITS.name_bytes_max + GRAMMAR_BYTES_MAX
CUTS_COUNT = 4


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


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
