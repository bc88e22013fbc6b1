"""Holds the house in order: who may import whom, headers, file lengths, pins, and text kept out of the tree.

Owns the table of import seams. Each rule is a function from text to complaints, so that it is itself tested
on bad text; it never imports the modules it reads.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import LONGEST_FIRST

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headwater"
LINES_MAX = 500
HEADER_STARTS_BY_LINE = 3
CODE_SUFFIXES = {".py", ".mjs", ".js", ".ts", ".sh", ".css", ".html", ".sql"}


# --- the seams ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seam:
    """Modules whose path matches `room` may import nothing at or below a name in `banned`."""

    room: re.Pattern[str]
    banned: tuple[str, ...]


def rooms(*names: str) -> tuple[str, ...]:
    return tuple(f"headwater.{name}" for name in names)


LOOP_TIME = {"time", "call_later", "call_at"}
ASYNCIO_TIME = {"asyncio.sleep", "asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for"}
IMPURE = ("asyncio", "os", "socket", "time", "random", "logging", *rooms("config"))
TIMED = re.compile(r"(engine|lake|log|catalog)/.*")
"""Rooms that take time from the clock they are given, so that a simulated world can run them."""
SEAMS = (
    Seam(re.compile(r"model/.*|(.*/)?wire\.py|log/frames\.py"), IMPURE),
    Seam(
        re.compile(r"engine/.*"),
        rooms("doors", "cluster", "log.wal", "log.jetstream", "log.objects", "log.object_places", "lake", "catalog"),
    ),
    Seam(TIMED, ("time",)),
    Seam(re.compile(r"log/.*"), rooms("engine", "doors", "lake", "catalog")),
    Seam(re.compile(r"lake/.*"), rooms("engine", "doors", "log", "catalog")),
    Seam(re.compile(r"catalog/.*"), rooms("engine", "doors", "log", "lake")),
    Seam(re.compile(r"spark/.*"), rooms("engine", "log", "catalog")),
)


def imported_names(tree: ast.Module, path: str) -> Iterator[tuple[int, str]]:
    """Every dotted name the module at `path` (below src/headwater) imports, anywhere in it, with its line.

    `from a import b` gives both `a` and `a.b`: whether b is a module cannot be told from here.
    """
    package = ["headwater", *Path(path).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, source
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def seam_complaints(source: str, path: str) -> list[str]:
    names = list(imported_names(ast.parse(source), path))
    return [
        f"{path}:{line} imports {name}, and {seam.room.pattern} may not import {banned}"
        for seam in SEAMS
        if seam.room.fullmatch(path)
        for line, name in names
        for banned in seam.banned
        if name == banned or name.startswith(banned + ".")
    ]


def clock_complaints(source: str, path: str) -> list[str]:
    """Time that does not come from a clock of `headwater.ports`: the event loop's, or a pause by asyncio itself.

    `asyncio.sleep(0)` is a turn for others, not a pause.
    """
    if not TIMED.fullmatch(path):
        return []
    tree = ast.parse(source)
    turns = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and [ast.unparse(arg) for arg in node.args] == ["0"]
    }
    return [
        f"{path}:{node.lineno} takes time from {ast.unparse(node)}: take it from a clock (headwater.ports)"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and (
            (node.attr in LOOP_TIME and not ast.unparse(node.value).endswith("clock"))
            or (ast.unparse(node) in ASYNCIO_TIME and id(node) not in turns)
        )
    ]


# --- cycles -------------------------------------------------------------------------------------------------


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which of the modules (path below src/headwater: source) each one imports, for types alone or not."""
    names = {module_name(path): path for path in sources}
    found: dict[str, set[str]] = {}
    for path, source in sources.items():
        imported = {name for _, name in imported_names(ast.parse(source), path)}
        # `from a import b` names both: when b is a module, it is b that is meant.
        packages = {name.rpartition(".")[0] for name in imported if name in names}
        found[module_name(path)] = {name for name in imported & names.keys() if name not in packages}
    return found


def module_name(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    return ".".join(["headwater", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def cycle_complaints(graph: dict[str, set[str]]) -> list[str]:
    """Modules that lead back to themselves: whoever reads one of them has to read all."""
    left = {name: set(imported) - {name} for name, imported in graph.items()}
    while leaves := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in leaves:
            del left[name]
    # What only leads into a cycle is no part of it.
    while roots := [name for name in left if not any(name in imported for imported in left.values())]:
        for name in roots:
            del left[name]
    return [f"import each other, directly or not: {', '.join(sorted(left))}"] if left else []


# --- what every module owes its reader ----------------------------------------------------------------------


def header_complaints(source: str, path: str) -> list[str]:
    """A header is a docstring at the top that says more than one thing: two lines or two sentences."""
    tree = ast.parse(source)
    text = ast.get_docstring(tree)
    if text is None:
        return [f"{path} has no header that says what it owns and what it never does"]
    line = tree.body[0].lineno
    if line > HEADER_STARTS_BY_LINE:
        return [f"{path} begins its header at line {line}, after line {HEADER_STARTS_BY_LINE}"]
    lines = [part for part in text.splitlines() if part.strip()]
    sentences = re.findall(r"[^.!?]+[.!?](?=\s|$)", text)
    if len(lines) < 2 and len(sentences) < 2:
        return [f"{path} has a header of one sentence; say what it owns and what it never does"]
    return []


def assert_complaints(source: str, path: str) -> list[str]:
    return [
        f"{path}:{node.lineno} uses assert, which vanishes under -O: raise instead"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assert)
    ]


def length_complaints(text: str, path: str) -> list[str]:
    count = len(text.splitlines())
    return [f"{path} has {count} lines, more than {LINES_MAX}"] if count > LINES_MAX else []


# --- what must not be in the tree ---------------------------------------------------------------------------

# Written in halves, because this file is read by its own rule.
REGISTRY_HOSTS = tuple(
    f"{host}.{domain}"
    for domain, hosts in {
        "org": ("pypi", "pythonhosted", "npmjs", "golang", "debian", "repo.maven.apache", "repo1.maven"),
        "com": ("yarnpkg", "npmjs"),
        "io": ("crates",),
    }.items()
    for host in hosts
)
REGISTRY_HOST = re.compile("|".join(rf"\b{re.escape(host)}\b" for host in REGISTRY_HOSTS), re.IGNORECASE)
MACHINE_PATH = re.compile(r"(?<![\w}\]).*…-])/(?:home|root|work|Users)/[\w.]")


def leak_complaints(text: str, path: str) -> list[str]:
    return [
        f"{path}:{number} names {what}: {found[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in (("a registry host", REGISTRY_HOST), ("a path of one machine", MACHINE_PATH))
        if (found := pattern.search(line))
    ]


# --- pins ---------------------------------------------------------------------------------------------------


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(project: dict[str, object]) -> list[str]:
    table = project["project"]
    return [*table["dependencies"], *(r for extra in table["optional-dependencies"].values() for r in extra)]  # type: ignore[index]


def pins(constraints: str) -> dict[str, str]:
    """Name to version of a constraints file. Raises ValueError on a line that is not an exact version."""
    found: dict[str, str] = {}
    for line in constraints.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        exact = re.fullmatch(r"([A-Za-z0-9._-]+)==([\w.]+)", line)
        if exact is None:
            raise ValueError(f"not an exact version: {line!r}")
        found[normal(exact[1])] = exact[2]
    return found


def pin_complaints(required: list[str], held: dict[str, str]) -> list[str]:
    complaints = []
    for requirement in required:
        name, version = re.match(r"([\w.-]+)([^;]*)", requirement).groups()  # type: ignore[union-attr]
        if normal(name) not in held:
            complaints.append(f"{name} is not in constraints.txt")
        elif version.startswith("==") and version != f"=={held[normal(name)]}":
            complaints.append(f"{requirement} is {held[normal(name)]} in constraints.txt")
    return complaints


# --- the tree as it is --------------------------------------------------------------------------------------


def modules() -> list[tuple[str, str]]:
    return [(str(p.relative_to(PACKAGE)), p.read_text()) for p in sorted(PACKAGE.rglob("*.py"))]


def tree_files() -> list[Path]:
    """What is, or is about to be, under version control."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def tree_texts() -> Iterator[tuple[str, str]]:
    for path in tree_files():
        raw = path.read_bytes()
        if b"\0" not in raw:
            yield str(path.relative_to(ROOT)), raw.decode(errors="replace")


def report(complaints: list[str]) -> str:
    return "\n".join(["", *complaints])


@pytest.mark.parametrize("rule", [seam_complaints, clock_complaints, header_complaints, assert_complaints])
def test_every_module_keeps_the_rules_of_the_house(rule) -> None:
    seen = modules()
    assert seen, "no module was found to read"
    complaints = [c for path, source in seen for c in rule(source, path)]
    assert not complaints, report(complaints)


def test_no_modules_import_each_other() -> None:
    complaints = cycle_complaints(import_graph(dict(modules())))
    assert not complaints, report(complaints)


def test_no_file_of_code_is_longer_than_a_reader_can_hold() -> None:
    code = [
        (path, text)
        for path, text in tree_texts()
        if path.split("/")[0] in {"src", "tests", "bench"} and Path(path).suffix in CODE_SUFFIXES
    ]
    assert any(path == "tests/test_house.py" for path, _ in code), "the listing misses this very file"
    complaints = [c for path, text in code for c in length_complaints(text, path)]
    assert not complaints, report(complaints)


def test_no_file_names_a_registry_host_or_a_path_of_one_machine() -> None:
    complaints = [c for path, text in tree_texts() for c in leak_complaints(text, path)]
    assert not complaints, report(complaints)


def test_constraints_hold_every_requirement_at_its_pinned_version() -> None:
    required = requirements(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    complaints = pin_complaints(required, pins((ROOT / "constraints.txt").read_text()))
    assert not complaints, report(complaints)


def test_every_direct_dependency_has_its_reason_written_down() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    required = requirements(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    names = [re.split(r"[=<>]", requirement)[0] for requirement in required]
    missing = [name for name in names if f"`{name}`" not in page]
    assert not missing, f"docs/dependencies.md says nothing of {missing}"


# --- the rules themselves -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("model/stream.py", "import asyncio"),
        ("model/stream.py", "import os.path"),
        ("model/deep/er.py", "def f():\n    from time import monotonic"),
        ("model/stream.py", "from headwater import config"),
        ("model/stream.py", "from .. import config"),
        ("model/stream.py", "from ..config import Settings"),
        ("model/__init__.py", "from ..config import Settings"),
        ("doors/http/wire.py", "import socket"),
        ("doors/s3p/wire.py", "from random import Random"),
        ("log/frames.py", "import logging"),
        ("engine/group.py", "from headwater.doors.http import wire"),
        ("engine/group.py", "from headwater.log.wal import Wal"),
        ("engine/group.py", "from headwater.log import jetstream"),
        ("engine/group.py", "import headwater.catalog"),
        ("engine/group.py", "if TYPE_CHECKING:\n    from ..lake import table"),
        ("engine/group.py", "from ..cluster import membership"),
        ("log/wal.py", "from headwater.engine import group"),
        ("lake/writer.py", "from ..log import frames"),
        ("lake/writer.py", "import time"),
        ("log/wal.py", "from time import monotonic"),
        ("engine/flush.py", "from time import time"),
        ("catalog/lookup.py", "import headwater.lake.table as table"),
        ("spark/source.py", "from headwater.engine.engine import Engine"),
    ],
)
def test_a_forbidden_import_is_found(path: str, source: str) -> None:
    assert seam_complaints(source, path)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("model/stream.py", "from headwater.errors import SequenceGap\nimport ossified"),
        ("model/stream.py", "from .configuration import x"),
        ("engine/group.py", "from headwater.log import frames\nimport asyncio\nimport os"),
        ("log/wal.py", "import os\nfrom . import frames\nfrom .frames import encode"),
        ("doors/http/routes.py", "import asyncio\nfrom headwater.engine import engine"),
        ("wireless.py", "import os"),
        ("spark/source.py", "from headwater.lake import table"),
    ],
)
def test_an_allowed_import_is_left_alone(path: str, source: str) -> None:
    assert seam_complaints(source, path) == []


@pytest.mark.parametrize(
    "source",
    [
        "self._loop.time()",
        "Ahead(lake, loop.time)",
        "loop.call_later(1, f)",
        "asyncio.get_running_loop().call_at(1, f)",
        "await asyncio.sleep(0.5)",
        "await asyncio.wait_for(x, 3)",
    ],
)
def test_time_that_comes_from_no_clock_is_found(source: str) -> None:
    assert clock_complaints(source, "engine/flush.py")
    assert clock_complaints(source, "doors/listener.py") == []


@pytest.mark.parametrize(
    "source", ["await asyncio.sleep(0)", "self._clock.call_later(1, f)", "await clock.sleep(1)", "clock.monotonic_s()"]
)
def test_time_of_a_clock_is_left_alone(source: str) -> None:
    assert clock_complaints(source, "engine/flush.py") == []


def test_a_cycle_of_imports_is_found_also_when_it_is_for_types_alone() -> None:
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from headwater.b import c\n"
    cycle = {"a.py": typed, "b/__init__.py": "", "b/c.py": "from headwater import a", "d.py": "import headwater.a"}
    assert cycle_complaints(import_graph(cycle)) == ["import each other, directly or not: headwater.a, headwater.b.c"]


def test_modules_that_import_one_way_are_left_alone() -> None:
    line = {"a.py": "from headwater.b import x", "b.py": "from headwater import c", "c.py": "", "__init__.py": ""}
    assert cycle_complaints(import_graph(line)) == []


@pytest.mark.parametrize(
    "source",
    ["", "import re\n", '"""One sentence."""\n', "# a\n# b\n# c\n" + '"""Too late. By a line."""\n'],
)
def test_a_missing_late_or_short_header_is_found(source: str) -> None:
    assert header_complaints(source, "x.py")


@pytest.mark.parametrize(
    "source",
    ['"""Owns frames. Never opens a file."""\n', '"""Owns frames\n\nand never opens a file\n"""\n'],
)
def test_a_header_of_two_lines_or_two_sentences_is_enough(source: str) -> None:
    assert header_complaints(source, "x.py") == []


def test_an_assert_statement_is_found_and_assert_never_is_not() -> None:
    assert assert_complaints("def f(x):\n    assert x\n", "x.py") == [
        "x.py:2 uses assert, which vanishes under -O: raise instead"
    ]
    assert assert_complaints("assert_never(x)\n", "x.py") == []


def test_a_file_is_too_long_from_one_line_over_the_limit() -> None:
    assert length_complaints("x\n" * LINES_MAX, "x.py") == []
    assert length_complaints("x\n" * (LINES_MAX + 1), "x.py")


@pytest.mark.parametrize("host", REGISTRY_HOSTS)
def test_a_registry_host_is_found_also_below_a_subdomain(host: str) -> None:
    assert leak_complaints(f"see https://files.{host}/simple", "x.md")
    assert leak_complaints(f"--index-url={host.upper()}", "x.md")


@pytest.mark.parametrize("folder", ["home", "root", "work", "Users"])
def test_a_path_of_one_machine_is_found(folder: str) -> None:
    assert leak_complaints(f'x = "/{folder}/someone/x"', "x.py")
    assert leak_complaints(f"see /{folder}/.cache", "x.py")


@pytest.mark.parametrize("text", ["/v1/stream/work/7", "{root}/home/x", "the /work route", "/var/lib/x"])
def test_a_route_or_a_common_path_is_left_alone(text: str) -> None:
    assert leak_complaints(text, "x.md") == []


def test_a_requirement_without_its_pin_is_found() -> None:
    held = pins("# comment\nPy_Arrow==26.0.1\n")
    assert pin_complaints(["py-arrow==26.0.1", "py.arrow<27"], held) == []
    assert pin_complaints(["py-arrow==26.0.2"], held)
    assert pin_complaints(["uvloop==0.23.0"], held)


@pytest.mark.parametrize("line", ["x>=1", "--index-url y", "x @ file:///y", "x==1 --hash=z"])
def test_a_constraint_that_is_no_exact_version_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not an exact version"):
        pins(line)


# --- tests --------------------------------------------------------------------------------------------------


BESIDE_ROOMS = {"bench", "browser", "clients", "conformance", "crash", "deploy", "support"}
"""Folders of tests that are about more than a room of the package, or that tests share."""


def test_tests_have_a_folder_for_each_room_they_test() -> None:
    rooms_there = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    places = [path.relative_to(ROOT / "tests").parts for path in tree_files() if path.is_relative_to(ROOT / "tests")]
    folders = {parts[0] for parts in places if len(parts) > 1}
    assert folders - rooms_there - BESIDE_ROOMS == set()


def test_the_tests_that_are_named_as_slow_exist() -> None:
    page = (ROOT / "docs" / "development.md").read_text()
    listed = re.findall(r"^\| `(tests/[\w/]+\.py)::(?:\w+::)?(\w+)` \|", page, re.MULTILINE)
    assert len(listed) == 20
    missing = [name for file, name in listed if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []
    assert [file for file in LONGEST_FIRST if not (ROOT / file).exists()] == []
