"""The one table of failures: every failure stands in it, is used, says something, and is in the guide.
Reads the source with `ast`; constructs failures only to see what they say."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import msgspec
import pytest

from headwater import errors
from headwater.doors.http import failures
from headwater.errors import TABLE, Failure, Row, row

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "headwater"
GUIDE = ROOT / "docs" / "guides" / "errors.md"

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
FAILURES = [kind for kind in CLASSES if issubclass(kind, Failure) and kind is not Failure]
# Those of the S3P specification, and three for what the specification has no word for.
S3P_CODES = {
    *("ERR_BAD_FORMAT", "ERR_UNKNOWN_STREAM", "ERR_STREAM_EXISTS", "ERR_NON_MONOTONIC_ID", "ERR_LIMITS"),
    *("ERR_CONFLICT", "ERR_UNAVAILABLE", "ERR_INTERNAL", "ERR_UNAUTHENTICATED", "ERR_FORBIDDEN"),
}


def example(kind: type[Failure]) -> Failure:
    """One of its kind, with facts made up from the types its constructor asks for."""
    made_up = {"int": 7, "str": "something", "list[str]": ["something"], "list[str | None]": ["something", None]}
    asked = list(inspect.signature(kind.__init__).parameters.values())[1:] if "__init__" in vars(kind) else []
    return kind(*(made_up[parameter.annotation] for parameter in asked if parameter.default is parameter.empty))


def used(source: str) -> set[str]:
    """Names that a module raises or calls."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        target = node.func if isinstance(node, ast.Call) else node.exc if isinstance(node, ast.Raise) else None
        if isinstance(target, ast.Name):
            found.add(target.id)
        elif isinstance(target, ast.Attribute):
            found.add(target.attr)
    return found


def test_the_table_holds_every_failure_and_nothing_else() -> None:
    assert len(FAILURES) > 30
    assert set(TABLE) == set(FAILURES)


def test_every_code_is_one_failures_alone() -> None:
    codes = [entry.code for entry in TABLE.values()]
    assert sorted(codes) == sorted(set(codes))


def test_every_failure_is_used_somewhere() -> None:
    names = {name for path in SOURCE.rglob("*.py") if path.parent.name != "errors" for name in used(path.read_text())}
    unused = sorted(kind.__name__ for kind in FAILURES if kind.__name__ not in names)
    assert not unused, f"nothing raises {unused}"


@pytest.mark.parametrize("kind", FAILURES, ids=lambda kind: kind.__name__)
def test_every_failure_says_what_happened_in_text_and_headers_a_client_can_take(kind: type[Failure]) -> None:
    failure = example(kind)
    assert failure.message() and str(failure) == failure.message()
    assert "\n" not in failure.message()
    for name, value in failures.headers(failure):
        assert name.isascii() and name.replace("-", "").isalpha()
        assert value.isascii() and value.isprintable()
    assert row(failure) is TABLE[kind]


@pytest.mark.parametrize("kind", FAILURES, ids=lambda kind: kind.__name__)
def test_every_row_is_one_that_a_client_can_act_on(kind: type[Failure]) -> None:
    entry = TABLE[kind]
    assert 400 <= entry.status < 600 and (entry.status != 500 or kind is errors.InternalError)
    assert entry.s3p in S3P_CODES
    assert entry.code.replace("_", "").isalpha() and (entry.code.islower() or entry.code.isupper())
    # Being overloaded or too slow passes; being wrong does not.
    assert not entry.retryable or entry.status in (408, 409, 429, 503)
    assert ("retry_after_s" in example(kind).facts()) == (entry.status in (429, 503, 507))


def test_the_http_door_knows_every_fact_of_a_failure_and_no_other() -> None:
    assert {name for kind in FAILURES for name in example(kind).facts()} == set(failures.TOLD)


@pytest.mark.parametrize("kind", FAILURES, ids=lambda kind: kind.__name__)
def test_a_failure_is_its_class_and_its_attributes_and_nothing_else(kind: type[Failure]) -> None:
    made = example(kind)
    again = kind.__new__(kind)
    vars(again).update(msgspec.msgpack.decode(msgspec.msgpack.encode(vars(made))))
    told = [(one.message(), one.facts(), one.details()) for one in (made, again)]
    assert told[0] == told[1]


# ---- the guide ------------------------------------------------------------------------------------------------------


def guide_rows() -> list[list[str]]:
    lines = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def guide_row(entry: Row) -> list[str]:
    return [f"`{entry.code}`", str(entry.status), f"`{entry.s3p}`", "yes" if entry.retryable else "no"]


def test_the_guide_lists_every_code_as_the_table_has_it() -> None:
    assert [cells[:4] for cells in guide_rows()] == [guide_row(entry) for entry in TABLE.values()]


def test_the_guide_says_what_every_code_means() -> None:
    for cells in guide_rows():
        assert len(cells) == 5
        assert cells[4].endswith(".") and len(cells[4].split()) > 4, f"{cells[0]} is not explained"


def test_the_guide_names_the_failures_that_may_have_had_an_effect() -> None:
    (line,) = [line for line in GUIDE.read_text().splitlines() if line.startswith("Effect unknown:")]
    unknown = {f"`{entry.code}`" for entry in TABLE.values() if not entry.no_effect}
    assert set(line.removeprefix("Effect unknown:").strip(" .").split(", ")) == unknown


# ---- the reading of the source itself -------------------------------------------------------------------------------


def test_raising_and_calling_are_uses_and_importing_or_catching_is_not() -> None:
    source = "from errors import A, B, C, D\nraise A\nraise B(1)\nx = errors.C()\ntry: pass\nexcept D: pass\n"
    assert used(source) == {"A", "B", "C"}


def test_a_body_that_is_too_large_is_told_what_can_be_done_about_it() -> None:
    assert "split the append" in errors.BodyTooLarge(5, "body_bytes_max").message()
    assert "make it smaller" in errors.BodyTooLarge(5, "snapshot_bytes_max").message()
