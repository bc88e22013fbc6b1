"""Log lines: whatever an event holds, it is one line of printable text; lines of a trace cannot pass for events."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.observe import log_lines

FORGED = "a\r\n2030-01-01T00:00:00Z [info     ] forged"
TEXTS = st.text(max_size=30) | st.sampled_from([FORGED, "\x1b[2J", "\x9b", "\ud800"])


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.removesuffix("\n").split("\n")


@given(TEXTS, TEXTS, st.binary(max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_event_is_one_line_of_printable_text(
    capsys: pytest.CaptureFixture[str], name: str, value: str, raw: bytes
) -> None:
    for form in ("text", "json"):
        log_lines.set_up("info", form)
        structlog.get_logger("test").warning(name, value=value, raw=raw, many=[value])
        (line,) = lines(capsys)
        assert line.isprintable()
        if form == "json":
            json.loads(line)


@given(TEXTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_line_of_a_trace_can_pass_for_an_event(capsys: pytest.CaptureFixture[str], said: str) -> None:
    for form in ("text", "json"):
        log_lines.set_up("info", form)
        try:
            raise ValueError(said)
        except ValueError:
            structlog.get_logger("test").exception("it failed")
        first, *trace = lines(capsys)
        assert first.isprintable()
        assert all(line.isprintable() and line.startswith(log_lines.TRACE) for line in trace)
        assert bool(trace) == (form == "text")


def test_what_nobody_caught_is_an_event_too(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise ValueError("a\r\n\x1b[31mb")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        log_lines.log_stray_exceptions(loop)
        loop.call_soon(broken)
        await asyncio.sleep(0)

    log_lines.set_up("info", "json")
    asyncio.run(main())
    (line,) = lines(capsys)
    event = json.loads(line)
    assert event["level"] == "error" and re.search(r"ValueError: a\\r\n.*\\x1b\[31mb", event["exception"])
