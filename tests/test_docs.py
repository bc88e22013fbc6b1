"""Holds the guides to the code: what the code has they name, where they link there is something, what they show works.

Owns the reading of code and pages for that. Each rule is a function from texts to complaints, so that it is itself
tested on bad text; it never changes a page.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from headwater import config, errors
from headwater import node as wiring
from headwater.cli.main import app as command_line
from tests.support.node import Node

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headwater"
GUIDES = ROOT / "docs" / "guides"
EXAMPLES = ROOT / "examples"
NODE_MODULES = ROOT / "tests" / "conformance" / "node_modules"
ADDRESS = "127.0.0.1:4437"
RUN_TIMEOUT_S = 60.0

# --- what the code has --------------------------------------------------------------------------------------

TITLE_CASE = re.compile(r"[A-Z][A-Za-z]*(?:-[A-Z][A-Za-z]*)+")
LOWER_CASE = re.compile(r"[a-z]+(?:-[a-z]+)+")
WORD = re.compile(r"[A-Za-z]+")
HEADER_LINE = re.compile(r"(?:^|\n)([A-Z][A-Za-z-]*): ")
METHODS_COLUMN = re.compile(r"^ {4}(\S.*?) {2,}(?:GET|HEAD|PUT|POST|DELETE)\b", re.MULTILINE)


def text_of(node: ast.AST) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    return value.decode("latin-1") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def header_names(source: str) -> set[str]:
    """Header names that a module of the HTTP door speaks of, in lower case.

    Told by their look (`Stream-Seq`, b"stream-seq"), their place (a pair's first, a key of `headers`), or the colon.
    """
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found: set[str] = set()
    for node in ast.walk(tree):
        key: ast.AST | None = None
        text = "" if id(node) in docstrings else text_of(node).replace("\r\n", "\n")
        if all(TITLE_CASE.fullmatch(item) or WORD.fullmatch(item) for item in text.split(", ")):
            found.update(TITLE_CASE.findall(text))
        elif isinstance(getattr(node, "value", None), bytes) and LOWER_CASE.fullmatch(text):
            found.add(text)
        found.update(HEADER_LINE.findall(text))
        if isinstance(node, ast.Tuple) and len(node.elts) == 2 and text_of(node.elts[0])[:1].isupper():
            key = node.elts[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            key = node.args[0] if node.args and ast.unparse(node.func.value).endswith("headers") else None
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("headers"):
            key = node.slice
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("headers"):
            key = node.left
        if key is not None and (TITLE_CASE.fullmatch(text_of(key)) or WORD.fullmatch(text_of(key))):
            found.add(text_of(key))
    return {name.lower() for name in found}


def query_names(source: str) -> set[str]:
    """Query parameters: what is asked of `wanted`, and tuples given to `parse.query`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr == "get" and ast.unparse(node.func.value) == "wanted":
                found.add(text_of(node.args[0]))
            elif node.func.attr == "query":
                found.update(text_of(item) for item in ast.walk(node.args[-1]))
    return found - {""}


def mapped_routes(source: str, whole: bool) -> set[str]:
    """Routes in the map of a module's docstring: first columns in front of methods; in a `whole` map, every path."""
    text = ast.get_docstring(ast.parse(source), clean=False) or ""
    found = {columns.partition(",")[0] for columns in METHODS_COLUMN.findall(text)}
    if whole:
        found |= {word.strip(".") for word in re.findall(r"(?<!\S)(?:\.\.\.)?/[^\s,;:`]*", text)}
    return {route for route in found if route.strip("/")}


def reached(source: str, sources: Mapping[str, str]) -> set[str]:
    """The modules among `sources` that `source` imports, and those that they import, and so on."""
    found: set[str] = set()
    waiting = [source]
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop())):
            if isinstance(node, ast.ImportFrom):
                names = {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
                fresh = names & sources.keys() - found
                found |= fresh
                waiting += [sources[name] for name in fresh]
    return found


def registered_routes(source: str, names: Mapping[str, Any]) -> set[str]:
    """What routes and groups are given calls and pages for, and paths compared with; `names` are the module's."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("routes.page", "routes.call", "groups.call"):
            path = text_of(node.args[0]) or names.get(ast.unparse(node.args[0]))
            if not isinstance(path, str):
                raise ValueError(f"line {node.lineno}: cannot tell which route {ast.unparse(node.args[0])} is")
            found.add(f"/__headwater/groups/{{g}}/{path}" if ast.unparse(node.func) == "groups.call" else path)
        elif isinstance(node, ast.Compare):
            found.update(text_of(side) for side in node.comparators if text_of(side).startswith("/"))
    return found


def metric_names(source: str) -> set[str]:
    """Names as Prometheus shows them: a number that only grows ends in _total."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Gauge" and node.args:
            marks = [*node.args[3:4], *(word.value for word in node.keywords if word.arg == "counts")]
            total = any(isinstance(mark, ast.Constant) and mark.value is True for mark in marks)
            found.add(f"headwater_{text_of(node.args[0])}{'_total' if total else ''}")
    return found


def check_names(source: str) -> set[str]:
    """Checks behind /readyz."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {text_of(node.args[0]) for node in calls if ast.unparse(node.func) == "health.add"}


def commands(group: Any, path: str = "headwater") -> Iterator[str]:
    """Every command of a command line, with its groups in front."""
    if not hasattr(group, "commands"):
        yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{path} {name}")


# --- what the guides say ------------------------------------------------------------------------------------


def missing(kind: str, names: Iterable[str], text: str) -> list[str]:
    """Names that stand nowhere in the text as whole words; case does not count."""
    return [
        f"no guide says anything of the {kind} {name}"
        for name in sorted(names)
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE) is None
    ]


def unquoted(kind: str, names: Iterable[str], text: str) -> list[str]:
    """The same of names that have to stand in a code span: paths, parameters. One that ends in a slash is a prefix."""
    spans = "\n".join(re.findall(r"`([^`]*)`", without_fences(text)))
    return [
        f"no guide says anything of the {kind} {name}"
        for name in sorted(names)
        if re.search(rf"(?<!\w){re.escape(name)}{'' if name.endswith('/') else '(?![/{]|[-_]?[A-Za-z0-9])'}", spans)
        is None
    ]


def code_complaints(table: Mapping[Any, errors.Row], text: str) -> list[str]:
    """Error codes that no line holds together with their status."""
    lines = text.splitlines()
    return [
        f"no line of the guide tells that {row.code} is {row.status}"
        for row in table.values()
        if not any(f"`{row.code}`" in line and re.search(rf"\b{row.status}\b", line) for line in lines)
    ]


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def without_fences(text: str) -> str:
    return re.sub(r"(?ms)^```.*?^```$", "", text)


def link_complaints(text: str, page: Path, root: Path) -> list[str]:
    """Relative links to no file, and anchors of no heading."""
    complaints = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_fences(text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            complaints.append(f"{page.relative_to(root)} links to {link}, which is not there")
        elif anchor:
            other = text if target == page else target.read_text()
            headings = re.findall(r"^#+ (.*)$", without_fences(other), re.MULTILINE)
            if anchor not in map(anchor_of, headings):
                complaints.append(f"{page.relative_to(root)} links to {link}, which is no heading there")
    return complaints


# --- what the guides show -----------------------------------------------------------------------------------


class Example(NamedTuple):
    """A fenced block marked `<!-- run -->`, and the `text` block behind it, if there is one."""

    language: str
    code: str
    shown: str | None


def examples_of(text: str) -> list[Example]:
    pattern = r"(?ms)<!-- run -->\n```(\w+)\n(.*?)^```$(?:\n```text\n(.*?)^```$)?"
    return [Example(match[1], match[2], match[3]) for match in re.finditer(pattern, text)]


def output_complaints(example: Example, output: str) -> list[str]:
    """`…` stands for anything within a line; alone on a line for any lines. An error has to be shown."""
    output = output.replace("\r\n", "\n").rstrip("\n") + "\n"
    if example.shown is None:
        return [f"it was refused: {output}"] if '"error":' in output else []
    parts = [
        "(?:.*\n)*?" if line == "…\n" else ".*".join(map(re.escape, line.split("…")))
        for line in example.shown.splitlines(keepends=True)
    ]
    if re.fullmatch("".join(parts), output) is None:
        return [f"it shows\n{example.shown}and does\n{output}"]
    return []


def ran(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)


def printed(folder: Path, *command: object) -> str:
    done = ran(folder, *command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def page_complaints(text: str, url: str, folder: Path) -> list[str]:
    """Runs the `sh` examples of a page one after the other, in one shell."""
    examples = [example for example in examples_of(text) if example.language == "sh"]
    mark = "--- next example ---"
    blocks = [example.code.replace(f"http://{ADDRESS}", url) for example in examples]
    script = f"\necho; echo '{mark}'\n".join(["set -euo pipefail", *blocks])
    done = ran(folder, "env", f"HEADWATER_URL={url}", "bash", "-c", script)
    outputs = done.stdout.replace(url, f"http://{ADDRESS}").split(f"\n{mark}\n")[1:]
    shown = list(zip(examples, outputs, strict=False))
    complaints = [f"{example.code}{why}" for example, output in shown for why in output_complaints(example, output)]
    if done.returncode:
        complaints.append(f"{examples[len(outputs) - 1].code}ended with {done.returncode}: {done.stderr}")
    return complaints


# --- the tree as it is --------------------------------------------------------------------------------------


def guides() -> str:
    return "\n".join(path.read_text() for path in sorted(GUIDES.glob("*.md")))


def door_sources() -> list[str]:
    """Modules of the HTTP door that the node is wired with."""
    folder = PACKAGE / "doors" / "http"
    paths = [(path.relative_to(PACKAGE).with_suffix(""), path) for path in folder.rglob("*.py")]
    sources = {".".join(["headwater", *name.parts]): path.read_text() for name, path in paths}
    return [sources[name] for name in reached((PACKAGE / "node.py").read_text(), sources)]


def none(complaints: list[str]) -> None:
    assert not complaints, "\n".join(["", *complaints])


def test_every_setting_is_in_the_guides() -> None:
    names = [name for setting in config.TABLE for name in (setting.name, setting.flag, setting.variable)]
    none(missing("setting", names, guides()))


def test_every_error_code_is_in_the_guides_with_its_status() -> None:
    none(code_complaints(errors.TABLE, guides()))


def test_every_route_is_in_the_guides() -> None:
    router = (PACKAGE / "doors" / "http" / "routes.py").read_text()
    routes = registered_routes(router, {}) | registered_routes((PACKAGE / "node.py").read_text(), vars(wiring))
    routes |= mapped_routes(router, whole=True)
    for source in door_sources():
        routes |= mapped_routes(source, whole=False)
    for path in (PACKAGE / "doors" / "http" / "admin").glob("*.py"):
        routes |= {route for route in registered_routes(path.read_text(), {}) if route.startswith("/__headwater/")}
    none(unquoted("route", routes - {wiring.MEMBERS_PREFIX}, guides()))  # which is between processes of a node alone


def test_every_header_and_query_parameter_is_in_the_http_guide_or_in_that_of_topics() -> None:
    guide = "\n".join((GUIDES / name).read_text() for name in ("http.md", "topics.md"))
    sources = door_sources()
    failures = [path.read_text() for path in (PACKAGE / "errors").glob("*.py")]
    headers = {name for source in [*sources, *failures] for name in header_names(source)}
    parameters = {name for source in sources for name in query_names(source)}
    none(missing("header", headers, guide) + unquoted("query parameter", parameters, guide))


def test_every_metric_and_readiness_check_is_in_the_guides() -> None:
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    metrics = {name for source in sources for name in metric_names(source)}
    checks = {name for source in sources for name in check_names(source)}
    none(missing("metric", metrics, guides()) + unquoted("check", checks, guides()))


def test_every_command_is_in_the_guides() -> None:
    none(missing("command", commands(typer.main.get_command(command_line)), guides()))


def test_every_link_leads_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    none([complaint for page in pages for complaint in link_complaints(page.read_text(), page, ROOT)])


@pytest.mark.parametrize("page", ["README.md", "docs/guides/http.md", "docs/guides/topics.md"])
def test_the_shell_examples_of_a_page_do_what_it_shows(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text()
    if not examples_of(text):
        pytest.skip("no example of this page is marked to be run")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    with Node.started(tmp_path / "node") as node:
        none(page_complaints(text, node.url, tmp_path))


@pytest.mark.parametrize("language", ["js", "python"])
def test_the_examples_with_official_clients_do_what_they_show(language: str, tmp_path: Path) -> None:
    if language == "js" and not (NODE_MODULES / "@durable-streams" / "client").exists():
        pytest.skip("the official client is not installed: make node-modules")
    if language == "python" and importlib.util.find_spec("durable_streams") is None:
        pytest.skip("the package durable-streams is not installed")
    program, file = ("node", "example.mjs") if language == "js" else (sys.executable, "example.py")
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    examples = [found for found in examples_of((GUIDES / "clients.md").read_text()) if found.language == language]
    assert examples
    with Node.started(tmp_path / "node") as node:
        for example in examples:
            (tmp_path / file).write_text(example.code.replace(f"http://{ADDRESS}", node.url))
            none(output_complaints(example, printed(tmp_path, program, file)))


# --- the examples -------------------------------------------------------------------------------------------


def test_the_quickstart_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True) as node:
        output = printed(tmp_path, EXAMPLES / "quickstart.sh", node.url)
        for part in ("first: 200\n  second: 204\n", '[{"step":1},{"step":2},{"step":3}]\n', '"streamClosed":true'):
            assert part in output
        assert node.request("GET", "/_default/streams").json()["streams"] == []


def test_the_exactly_once_example_appends_each_line_once_however_often_it_runs(tmp_path: Path) -> None:
    with Node.started(tmp_path / "node") as node:
        lines = tmp_path / "lines"
        lines.write_bytes(b"one\n\ntwo\n")
        script = (tmp_path, sys.executable, EXAMPLES / "exactly_once.py", f"{node.url}/v1/stream/journal", lines)
        assert printed(*script) == "3 lines appended, 0 were there already\n"
        lines.write_bytes(b"one\n\ntwo\nthree\n")
        assert printed(*script) == "1 lines appended, 3 were there already\n"
        assert node.request("GET", "/v1/stream/journal").body == b"one\n\ntwo\nthree\n"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_following_example_goes_on_after_the_node_was_killed(tmp_path: Path) -> None:
    json = {"Content-Type": "application/json"}
    with Node.started(tmp_path) as node:
        node.listen = f"127.0.0.1:{node.port}"
        node.request("PUT", "/v1/stream/journal", json, b'[{"n":1},{"n":2}]')
        follow = ["node", str(EXAMPLES / "follow.mjs"), f"{node.url}/v1/stream/journal", str(tmp_path / "offset")]
        with subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
            try:
                deadline_s = time.monotonic() + RUN_TIMEOUT_S
                while not (tmp_path / "offset").exists():
                    assert time.monotonic() < deadline_s, "the follower has written no offset"
                    time.sleep(0.01)
                node.restart()
                node.request("POST", "/v1/stream/journal", {**json, "Stream-Closed": "true"}, b'{"n":3}')
                output, trouble = follower.communicate(timeout=RUN_TIMEOUT_S)
            finally:
                follower.kill()
        assert output == '{"n":1}\n{"n":2}\n{"n":3}\n', trouble
        assert follower.returncode == 0


# --- the rules themselves -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('x = [("Stream-Seq", v), ("ETag", tag), ("name", v)]', {"stream-seq", "etag"}),
        ('headers.get(b"host"); request.headers[b"expect"]; b"x-y" in headers', {"host", "expect", "x-y"}),
        ('raise BadHeader("Stream-TTL", "two Words")', {"stream-ttl"}),
        ('x = b"HTTP/1.1 204 No\\r\\nStream-Next-Offset: %d", f"Date: {x}\\r\\n"', {"stream-next-offset", "date"}),
        ('EXPOSED = "Stream-Cursor, ETag, " "If-Match"; METHODS = "GET, HEAD"', {"stream-cursor", "if-match"}),
        ('"""Speaks of Some-Header."""\nx = "as Some-Header: Bearer"; wanted.get("after"); MODE = "no-cache"', set()),
    ],
)
def test_header_names_are_told_from_other_text(source: str, found: set[str]) -> None:
    assert header_names(source) == found


def test_query_parameters_are_found_where_they_are_asked_for() -> None:
    assert query_names('wanted.get("limit", 1); parse.query(q, ("a", "b")); headers.get("c")') == {"limit", "a", "b"}


def test_routes_are_found_in_maps_and_in_code() -> None:
    text = '"""Map.\n\n    /v1/{path}  /ds/{b}    or/not\n    .../snapshot    /x/...\n    a/{id}/b, c    GET, PUT\n"""'
    assert mapped_routes(text, whole=True) == {"/v1/{path}", "/ds/{b}", "/snapshot", "/x/", "a/{id}/b"}
    assert mapped_routes(text, whole=False) == {"a/{id}/b"}
    source = 'routes.page("/a", p); routes.call(NAME, c); other.call("/z"); path == b"/b"'
    assert registered_routes(source, {"NAME": "/n"}) == {"/a", "/n", "/b"}
    with pytest.raises(ValueError, match="cannot tell"):
        registered_routes("routes.call(unknown, c)", {})


def test_only_modules_that_are_imported_somehow_are_reached() -> None:
    sources = {"p.a": "from p import b", "p.b": "from p.c import x", "p.c": "", "p.d": "from p import a"}
    assert reached("from p.a import y", sources) == {"p.a", "p.b", "p.c"}


def test_metrics_checks_and_commands_are_found() -> None:
    source = 'Gauge("a", "A.", f); Gauge("b", "B.", f, counts=True); Gauge("c", "C.", f, True); health.add("disk", f)'
    assert metric_names(source) == {"headwater_a", "headwater_b_total", "headwater_c_total"}
    assert check_names(source) == {"disk"}
    inner, outer = typer.Typer(), typer.Typer()
    inner.command("one")(lambda: None)
    inner.command("two")(lambda: None)
    outer.add_typer(inner, name="group")
    assert list(commands(typer.main.get_command(outer), "x")) == ["x group one", "x group two"]


def test_a_name_that_is_missing_or_only_part_of_another_is_found() -> None:
    assert missing("header", ["stream-seq"], "the Stream-Sequel and X-Stream-Seq")
    assert missing("header", ["stream-seq"], "a `Stream-Seq` that grows") == []
    for text in ("/metrics", "`/metric`", "`/x/metrics`", "`/metrics/{x}`", "```sh\ncurl `/metrics`\n```"):
        assert unquoted("route", ["/metrics"], text)
    assert unquoted("route", ["/metrics", "/a/", "after"], "`GET /metrics`, `/a/b`, `…/a/b`, `after=1`") == []


def test_a_code_without_its_status_is_found() -> None:
    table = {1: errors.Row(409, "taken", "", True, True)}
    assert code_complaints(table, "409 `taken`") == []
    assert code_complaints(table, "404 `taken`\n409 `taken_too`")


def test_a_dead_link_is_found_and_a_live_one_is_not(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# Some `Title`: here\n```sh\n# no heading\n```\n")
    text = "# Top\n[a](other.md#some-title-here) [b](#top) [c](https://example.com/x)\n```\n[x](gone)\n```\n"
    page.write_text(text)
    assert link_complaints(text, page, tmp_path) == []
    for bad in ("[a](gone.md)", "[a](#gone)", "[a](other.md#no-heading)"):
        assert link_complaints(text + bad, page, tmp_path)


@pytest.mark.parametrize(
    ("shown", "output", "fits"),
    [
        ("a…c\n…\nz\n", "abc\nm\nn\nz\n", True),
        ("a…c\n…\nz\n", "abc\nz", True),
        ("a.c\n", "abc\n", False),
        ("a\n", "a\nb\n", False),
        (None, "fine", True),
        (None, '{"error":{"code":"bad"}}', False),
    ],
)
def test_output_is_compared_with_what_is_shown(shown: str | None, output: str, fits: bool) -> None:
    assert (output_complaints(Example("sh", "x\n", shown), output) == []) is fits


def test_only_marked_examples_are_run_and_a_failing_one_is_named(tmp_path: Path) -> None:
    url, mark = "http://127.0.0.1:1", "<!-- run -->\n```sh\n"
    good = (
        f"```sh\nexit 9\n```\n{mark}X=http://{ADDRESS}/a\n```\n{mark}echo $X\n```\n```text\nhttp://{ADDRESS}/a\n```\n"
    )
    assert page_complaints(good, url, tmp_path) == []
    assert page_complaints(good.replace("echo $X", "echo no"), url, tmp_path)
    (complaint,) = page_complaints(f"{good}{mark}false\n```\n{mark}true\n```\n", url, tmp_path)
    assert complaint.startswith("false\nended with 1")
