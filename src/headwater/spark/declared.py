"""A declared pipeline: one file that names a source, tables, streams and folds, and how each comes from the others.

Owns the file's shape and everything that can be wrong with it. Never runs anything: `declared_run` does. A complaint
names the file, the part and the key.

    source --schema--> table --sql--> table --sql--> table          refresh: append, day or full
       |                 +--sql--> streams, through the sink
       +--fold--> snapshots
"""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from headwater.spark.folding import BadFold, Fold
from headwater.spark.job_runs import JobRefused
from headwater.spark.lake_place import Place
from headwater.spark.options import BadOptions, for_streaming
from headwater.spark.quarantine import Allowed

SOURCE = "source"
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""Of tables, as SQL takes them without quotes."""
Refresh = Literal["append", "day", "full"]
_READING = {"url": "http://127.0.0.1:1"}
"""Stands in for the node's address, which comes when the pipeline is run."""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which streams are read. At most one of the first three; without any it is every stream."""

    bucket: str | None = None
    subscribe: str | None = None
    subscribe_pattern: str | None = None
    url: str | None = None
    """The node; what the command line says goes first."""
    options: dict[str, str] = {}
    """Further options of `format("headwater")`."""

    def reading(self) -> dict[str, str]:
        said = {"bucket": self.bucket, "subscribe": self.subscribe, "subscribePattern": self.subscribe_pattern}
        return {**{name: value for name, value in said.items() if value is not None}, **self.options}


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A table. From the source it takes a schema, from other tables SQL or (in Python) a function of frames."""

    name: str
    layer: str = "bronze"
    """A name for the folder, and for who reads the file."""
    from_: str | list[str] = msgspec.field(default=SOURCE, name="from")
    """What it comes from. Of several the first is followed; the others are read as they are."""
    schema: str | None = None
    sql: str | None = None
    transform: Callable[..., Any] | None = None
    refresh: Refresh | None = None
    """append: new rows become new rows. day: days with new rows are computed anew. full: everything is."""
    target: str | None = None
    quarantine: str | None = None
    day_from: str | None = None
    any_content_type: bool = False
    quarantined_max: int | str = 0
    """More records than this, or than a share such as 2%, in the quarantine are a finding."""

    @property
    def sources(self) -> list[str]:
        return [self.from_] if isinstance(self.from_, str) else list(self.from_)

    @property
    def is_typed(self) -> bool:
        return self.sources == [SOURCE]

    @property
    def how(self) -> Refresh:
        return self.refresh or "append"


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Rows of a table back out onto streams. The SQL gives `stream` (bucket/name) and `payload`."""

    name: str
    from_: str = msgspec.field(name="from")
    sql: str
    content_type: str = "application/json"
    order_by: list[str] = []


class Folding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Snapshots of streams. See the job `fold`."""

    mode: str
    key: list[str] = []
    deleted: str | None = None
    function: str | None = None
    bucket: str | None = None
    pattern: str | None = None
    min_records: int = 100


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    name: str
    tables_at: str = "tables"
    """A directory or URL; tables lie below it by layer and name. A relative one is beside the file."""
    state_at: str | None = None
    """Where checkpoints are: what Spark can write. For local tables it is beside them when nothing is said."""
    endpoint: str | None = None
    region: str | None = None
    source: Source = Source()
    tables: list[Table] = msgspec.field(default=[], name="table")
    streams: list[Stream] = msgspec.field(default=[], name="stream")
    folds: list[Folding] = msgspec.field(default=[], name="fold")

    def table(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)

    def place(self, table: Table, base: Path) -> Place:
        return self._at(table.target or f"{self.tables_at.rstrip('/')}/{table.layer}/{table.name}", base)

    def quarantine(self, table: Table, base: Path) -> Place:
        if table.quarantine is not None:
            return self._at(table.quarantine, base)
        beside = self.place(table, base)
        return beside._replace(url=f"{beside.url}_quarantine")

    def state(self, what: str, base: Path) -> str:
        if self.state_at is None:
            return f"{self._at(self.tables_at, base).store().uri}/_state/{what}"
        is_path = not urlsplit(self.state_at).scheme
        return f"{(base / self.state_at).resolve() if is_path else self.state_at.rstrip('/')}/{what}"

    def _at(self, given: str, base: Path) -> Place:
        if urlsplit(given).scheme:
            s3 = given.startswith("s3://")
            return Place(given, self.endpoint if s3 else None, self.region if s3 else None)
        return Place(str((base / given).resolve()))

    def ordered(self) -> list[Table]:
        """Every table after those it comes from."""
        done: list[Table] = []
        left = list(self.tables)
        while left:
            ready = [table for table in left if not any(name in {one.name for one in left} for name in table.sources)]
            if not ready:
                raise ValueError("the tables go in a circle")
            done += ready
            left = [table for table in left if table not in ready]
        return done

    def lineage(self, name: str) -> list[Table]:
        """The tables between the source and this one, itself included, the source's own first."""
        table = self.table(name)
        return [table] if table.is_typed else [*self.lineage(table.sources[0]), table]


class Loaded(msgspec.Struct, frozen=True):
    pipeline: Pipeline
    file: Path

    @property
    def base(self) -> Path:
        return self.file.parent


# ---- reading ------------------------------------------------------------------------------------------------------


def load(file: str | Path) -> Loaded:
    """The pipeline in a `.toml` or `.py` file, checked as far as that goes without Spark. Raises JobRefused."""
    path = Path(file).resolve()
    try:
        if path.suffix == ".py":
            found = _run(path)
            if not isinstance(found, Pipeline):
                raise JobRefused(f"{path.name} has no `pipeline`", "set pipeline = Pipeline(…) in it")
            pipeline = found
        else:
            pipeline = _from_toml(tomllib.loads(path.read_text()), path.name)
    except OSError as error:
        raise JobRefused(f"{file} cannot be read: {error.strerror}", "name the file of a pipeline") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobRefused(f"{path.name} is not TOML: {error}") from None
    loaded = Loaded(pipeline, path)
    complaints = list(_complaints(pipeline, path.parent))
    if complaints:
        raise JobRefused("; ".join(f"{path.name}: {one}" for one in complaints), "correct it, and nothing has been run")
    return loaded


def _run(path: Path) -> Any:
    try:
        return runpy.run_path(str(path)).get("pipeline")
    except OSError:
        raise
    except Exception as error:  # whatever the user's file raises
        raise JobRefused(f"{path.name} cannot be run: {type(error).__name__}: {error}") from error


def _from_toml(document: dict[str, Any], file: str) -> Pipeline:
    """Part by part, so that a complaint can name the part by its name."""
    kinds: dict[str, Any] = {"table": Table, "stream": Stream, "fold": Folding}
    parts: dict[str, list[Any]] = {}
    for kind, of in kinds.items():
        given = document.pop(kind, [])
        if not isinstance(given, list):
            raise JobRefused(f"{file}: {kind}: write [[{kind}]], once for each")
        parts[kind] = [_part(file, _called(kind, number, one), one, of) for number, one in enumerate(given)]
    source = _part(file, "source", document.pop("source", {}), Source)
    rest = _part(file, "pipeline", {**document, "table": [], "stream": [], "fold": []}, Pipeline)
    return msgspec.structs.replace(
        rest, source=source, tables=parts["table"], streams=parts["stream"], folds=parts["fold"]
    )


def _called(kind: str, number: int, part: Any) -> str:
    name = part.get("name") if isinstance(part, dict) else None
    return f"{kind} {name}" if isinstance(name, str) else f"{kind} number {number + 1}"


def _part(file: str, called: str, given: Any, of: Any) -> Any:
    try:
        return msgspec.convert(given, of)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        key = where.rstrip("`")
        raise JobRefused(f"{file}: {called}: {f'{key}: ' if key else ''}{what}") from None


# ---- checking -----------------------------------------------------------------------------------------------------


def _complaints(pipeline: Pipeline, base: Path) -> Iterable[str]:
    if not pipeline.tables and not pipeline.streams and not pipeline.folds:
        yield "pipeline: it does nothing: name a [[table]], a [[stream]] or a [[fold]]"
    yield from _named_well("pipeline", [pipeline.name])
    yield from _named_well("table", [table.name for table in pipeline.tables])
    yield from _named_well("stream", [stream.name for stream in pipeline.streams])
    try:
        for_streaming({**_READING, **pipeline.source.reading()})
    except BadOptions as error:
        yield f"source: {error}"
    names = {table.name for table in pipeline.tables}
    for table in pipeline.tables:
        yield from (f"table {table.name}: {one}" for one in _table(table, names))
    if not any(True for table in pipeline.tables for one in table.sources if one != SOURCE and one not in names):
        try:
            pipeline.ordered()
        except ValueError as error:
            yield f"table: from: {error}"
        else:
            for stream in pipeline.streams:
                yield from (f"stream {stream.name}: {one}" for one in _stream(pipeline, stream, names))
    if pipeline.state_at is None and "://" in pipeline.tables_at and not pipeline.tables_at.startswith("file://"):
        yield "pipeline: state_at: tables in an object store need a place for checkpoints that Spark can write"
    places = [pipeline.place(table, base).url for table in pipeline.tables]
    for place in sorted({place for place in places if places.count(place) > 1}):
        yield f"table: target: {place} is the place of more than one table"
    for number, one in enumerate(pipeline.folds):
        try:
            Fold.of(one.mode, tuple(one.key), one.deleted, one.function)
        except BadFold as error:
            yield f"fold number {number + 1}: {error}"
        if one.min_records < 1:
            yield f"fold number {number + 1}: min_records: it is at least 1"


def _named_well(kind: str, names: list[str]) -> Iterable[str]:
    for name in names:
        if NAME.fullmatch(name.replace("-", "_") if kind == "pipeline" else name) is None:
            yield f"{kind} {name}: name: use small letters, digits and _, and a letter first"
        if name == SOURCE and kind == "table":
            yield f"{kind} {name}: name: that is what the source is called"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{kind} {name}: name: there is more than one"


def _table(table: Table, names: set[str]) -> Iterable[str]:
    unknown = [one for one in table.sources if one != SOURCE and one not in names]
    for one in unknown:
        yield f"from: there is no table {one}"
    if not table.sources:
        yield "from: name what it comes from"
    if SOURCE in table.sources and len(table.sources) > 1:
        yield "from: the source stands alone"
    if table.name in table.sources:
        yield "from: it cannot come from itself"
    if table.is_typed:
        try:
            Allowed.of(table.quarantined_max)
        except JobRefused as refused:
            yield f"quarantined_max: {refused}"
        for key in ("sql", "transform", "refresh"):
            if getattr(table, key) is not None:
                yield f"{key}: a table from the source has a schema; put it into a table that comes from this one"
    else:
        if (table.sql is None) == (table.transform is None):
            yield "sql: a table that comes from tables has either sql or a transform"
        for key in ("schema", "quarantine", "day_from", "quarantined_max"):
            if getattr(table, key):
                yield f"{key}: only a table from the source has one"


def _stream(pipeline: Pipeline, stream: Stream, names: set[str]) -> Iterable[str]:
    if stream.from_ not in names:
        yield f"from: there is no table {stream.from_}"
        return
    for table in pipeline.lineage(stream.from_):
        if table.how != "append":
            yield f"from: the table {table.name} is computed anew (refresh = {table.how}), and streams only ever grow"
        if len(table.sources) > 1:
            yield f"from: the table {table.name} reads several tables, which a stream cannot follow"
