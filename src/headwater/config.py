"""Settings: every limit of the server, how limits relate, and where each value came from.
Owns the one table behind flags, variables, TOML keys and the guide; alone reads environment and TOML.
Never opens a socket, creates a directory or prints: bad settings are raised together as one BadSettings."""

from __future__ import annotations

import difflib
import itertools
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast

from headwater.access_settings import AccessSettings, open_doors
from headwater.access_settings import contradictions as access_contradictions
from headwater.client import tls_files
from headwater.setting_rows import (
    CLUSTER,
    DAY_MS,
    HOUR_MS,
    HTTP,
    LOGGING,
    MINUTE_MS,
    READING,
    S3P,
    SERVING,
    STORAGE,
    STREAMS,
    choice,
    place,
    row,
    size,
    text,
    whole,
)
from headwater.setting_rules import CLUSTER_RULES, MEMORY_RULE, RELATIONS
from headwater.setting_values import (
    AUTO,
    GIB,
    KIB,
    MIB,
    OFF,
    PREFIX,
    TIB,
    Setting,
    Value,
    Wrong,
    parse_listen,
    parsed,
    without_credentials,
)
from headwater.web_settings import contradictions as web_contradictions

CONFIG_VARIABLE = "HEADWATER_CONFIG"
URL_VARIABLE = "HEADWATER_URL"
TOKEN_VARIABLE = "HEADWATER_TOKEN"
CLIENT_VARIABLES = (CONFIG_VARIABLE, URL_VARIABLE, TOKEN_VARIABLE, *tls_files.VARIABLES)
"""Of this prefix, and not settings of a server."""
URL_DEFAULT = "http://127.0.0.1:4437"

WORKERS_MAX, GROUPS_MAX = 256, 1_024


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings(AccessSettings):
    """The table. `load` is the way in: building one directly skips validation (the defaults are valid)."""

    def __repr__(self) -> str:
        """What is not as it is by default, and no credential: it may come into a trace."""
        given = {setting.name: getattr(self, setting.name) for setting in TABLE}
        told = (f"{name}={value!r}" for name, value in given.items() if value != BY_NAME[name].default)
        return f"Settings({without_credentials(', '.join(told))})"

    listen: str = row(SERVING, "listen", "127.0.0.1:4437", "Address to serve HTTP on.")
    s3p: str = row(SERVING, "door", "127.0.0.1:4438", "Address to serve S3P on; off closes that door.")
    data: str = row(SERVING, "path", "./headwater-data", "Directory that keeps the log and the catalog.")
    memory: bool = row(SERVING, "flag", False, "Keep nothing on disk: everything is gone when the server stops.")
    durability: str = choice(
        SERVING,
        "fsync",
        ("fsync", "disk", "memory"),
        "When appends to a new stream are acknowledged: after the sync, after the write, or at once.",
    )
    workers: int | str = row(
        SERVING,
        "count",
        1,
        "Processes that share the work; auto is one for each processor, as far as the directory has groups.",
        low=1,
        high=WORKERS_MAX,
    )
    groups: int | str = row(
        SERVING,
        "count",
        AUTO,
        "Groups that a new data directory is made with, for good; auto is one for each worker.",
        low=1,
        high=GROUPS_MAX,
    )
    shutdown_grace_ms: int = whole(
        SERVING, 10_000, 0, 10 * MINUTE_MS, "Time that open requests have to finish when the server stops."
    )
    webhook_allow_local: bool = row(
        SERVING, "flag", False, "Let webhooks call http://localhost and 127.0.0.x; for development only."
    )

    cluster: str = row(
        CLUSTER,
        "log",
        OFF,
        "Where the logs of a cluster are: NATS servers, or a place for objects; off is a node by itself.",
    )
    cluster_name: str = text(
        CLUSTER,
        "headwater",
        "letters, digits, - and _",
        "Name of the cluster's streams in NATS.",
    )
    cluster_replicas: int = whole(CLUSTER, 3, 1, 5, "Copies of a log in NATS: 3 or 5, or 1 for development.")
    cluster_monitors: str = text(
        CLUSTER,
        AUTO,
        "auto, or http://HOST:PORT,...",
        "Monitoring addresses of the NATS servers, which are checked at start; auto is port 8222 of their hosts.",
    )
    cluster_credentials: str = text(
        CLUSTER, AUTO, "auto, or a path", "Credentials file for the NATS servers; auto is none."
    )
    cluster_listen: str = row(CLUSTER, "listen", "127.0.0.1:4439", "Address where other nodes of the cluster connect.")
    cluster_advertise: str = text(
        CLUSTER, AUTO, "auto, or HOST:PORT", "Where other nodes reach this one; auto is cluster_listen."
    )
    public_address: str = text(
        CLUSTER, AUTO, "auto, or HOST:PORT", "Where clients reach this node, as redirects say; auto is listen."
    )
    cluster_secret_file: str = text(
        CLUSTER,
        AUTO,
        "a path",
        "File with the secret that nodes of the cluster know each other by; needed in a cluster.",
    )
    cluster_lease_ms: int = whole(
        CLUSTER,
        2_000,
        500,
        MINUTE_MS,
        "How long an owner serves a group without an answer of its log, and after which another node takes it over.",
    )
    zone: str = text(
        CLUSTER, AUTO, "auto, or a name", "Zone that this node is in: standbys are in another; auto is none."
    )

    log_file_bytes: int = size(STORAGE, 128 * MIB, MIB, 4 * GIB, "Size of one log file, preallocated.")
    disk_sync_ms: int = whole(STORAGE, 50, 1, MINUTE_MS, "How often writes of the durability class disk are synced.")
    checkpoint_interval_ms: int = whole(
        STORAGE, 5_000, 10, HOUR_MS, "How often the catalog is checkpointed with its log position."
    )
    hot_bytes_max: int = size(
        STORAGE,
        2 * GIB,
        MIB,
        16 * TIB,
        "Memory for records that have not settled and what waits for the disk; above it appends are answered 503.",
    )

    lake: str = text(
        STORAGE,
        "auto",
        "auto, a directory, or s3://BUCKET/PREFIX",
        "Where older records settle; auto is DATA/lake.",
    )
    lake_endpoint: str = text(
        STORAGE, "auto", "auto, or http(s)://HOST:PORT", "Address of an S3 server; auto is Amazon's."
    )
    lake_region: str = text(
        STORAGE, "auto", "auto, or a name such as eu-central-1", "Region of the S3 bucket; auto asks the environment."
    )
    flush_bytes: int = size(STORAGE, 64 * MIB, KIB, 16 * TIB, "Memory taken by records at which they begin to settle.")
    flush_interval_ms: int = whole(
        STORAGE, 300_000, 10, 365 * DAY_MS, "Longest time a record stays in memory and log alone."
    )
    lake_file_bytes: int = size(STORAGE, 128 * MIB, KIB, 4 * GIB, "Payload in one file of the lake, about.")
    lake_cache_bytes: int = size(STORAGE, 256 * MIB, MIB, 16 * TIB, "Memory for parts of the lake that are read.")
    lake_disk_cache_bytes: int = size(
        STORAGE, 0, 0, 16 * TIB, "Local disk, in DATA/cache, for parts of an S3 lake that are read; 0 is off."
    )
    lake_gc_interval_ms: int = whole(
        STORAGE, 600_000, 100, 365 * DAY_MS, "How often what nothing refers to any more is looked for in the lake."
    )
    lake_grace_ms: int = whole(
        STORAGE,
        HOUR_MS,
        MINUTE_MS,
        365 * DAY_MS,
        "How long a file without records of any stream stays, for whoever still reads it.",
    )
    streams_loaded_max: int = whole(
        STORAGE, 200_000, 1_000, 1_000_000_000, "Streams whose metadata stays in memory while they are idle."
    )

    body_bytes_max: int = size(HTTP, 64 * MIB, KIB, 4 * GIB, "Longest request body; a longer one is answered 413.")
    snapshot_bytes_max: int = size(HTTP, 128 * MIB, KIB, 4 * GIB, "Longest snapshot; a longer one is answered 413.")
    bodies_bytes_max: int = size(
        HTTP,
        GIB,
        MIB,
        16 * TIB,
        "Request bodies that arrive or are being read, all together; above it more are answered 503.",
    )
    head_bytes_max: int = size(HTTP, 32 * KIB, KIB, MIB, "Longest request line and headers together.")
    header_count_max: int = whole(HTTP, 100, 8, 10_000, "Most headers in one request.")
    head_timeout_ms: int = whole(HTTP, 10_000, 10, HOUR_MS, "Time for the head of a request to arrive.")
    body_timeout_ms: int = whole(HTTP, 60_000, 10, HOUR_MS, "How long a body may bring less than 1KiB a second.")
    idle_timeout_ms: int = whole(HTTP, 75_000, 10, DAY_MS, "How long a connection is kept open between two requests.")
    connections_max: int = whole(HTTP, 20_000, 1, 1_000_000, "Most connections open at once, in each worker.")
    write_buffer_bytes_max: int = size(
        HTTP, 256 * KIB, KIB, GIB, "Unsent bytes of one connection before its reader is held back."
    )
    # At most as many as have their sizes within FRAME_BYTES_RESERVED; at least what the Spark sink puts into a chunk.
    append_records_max: int = whole(
        HTTP,
        10_000,
        1_000,
        200_000,
        "Most records in one append; one request of many appends brings ten times as many. More are answered 413.",
    )

    s3p_name_bytes_max: int = whole(S3P, 1_024, 1, 16_384, "Longest stream name, in bytes.")
    s3p_count_default: int = whole(S3P, 100, 1, 1_000_000, "Most records that a READ without COUNT returns.")
    s3p_count_max: int = whole(S3P, 10_000, 1, 1_000_000, "Greatest COUNT of a READ.")
    s3p_block_ms_max: int = whole(S3P, 60_000, 0, DAY_MS, "Greatest BLOCK of a READ.")
    # At most as many as have their sizes within FRAME_BYTES_RESERVED.
    s3p_records_max: int = whole(S3P, 10_000, 1, 200_000, "Most records in one APPEND.")
    s3p_record_bytes_max: int = size(S3P, 16 * MIB, 1, 2 * GIB, "Longest record.")
    s3p_append_bytes_max: int = size(S3P, 32 * MIB, 1, 4 * GIB, "Most payload in one APPEND.")
    s3p_idle_timeout_ms: int = whole(
        S3P, 300_000, 10, DAY_MS, "How long a connection may bring no command; a blocked READ counts as one."
    )
    s3p_connections_max: int = whole(S3P, 10_000, 1, 1_000_000, "Most S3P connections open at once, in each worker.")

    read_bytes_max: int = size(
        READING, 4 * MIB, KIB, GIB, "Longest body of one catch-up response; most payload of one S3P READ."
    )
    long_poll_timeout_ms: int = whole(
        READING, 20_000, 1, HOUR_MS, "How long a long-poll waits for data before it is answered 204."
    )
    sse_keepalive_ms: int = whole(
        READING, 15_000, 10, HOUR_MS, "Longest silence on an SSE connection before a comment line is sent."
    )
    sse_lifetime_ms: int = whole(
        READING, 60_000, 20, DAY_MS, "Age at which an SSE connection is ended so that its client reconnects."
    )

    stream_name_bytes_max: int = whole(STREAMS, 1_024, 1, 16_384, "Longest stream name, decoded, in bytes.")
    content_type_bytes_max: int = whole(STREAMS, 256, 16, 8_192, "Longest content type of a stream.")
    stream_seq_bytes_max: int = whole(STREAMS, 256, 1, 8_192, "Longest Stream-Seq value.")
    producer_id_bytes_max: int = whole(STREAMS, 256, 1, 8_192, "Longest Producer-Id value.")
    producers_per_stream_max: int = whole(STREAMS, 10_000, 1, 10_000_000, "Most producers one stream remembers.")
    producer_idle_ms: int = whole(
        STREAMS, 7 * DAY_MS, 1, 3_650 * DAY_MS, "How long a producer that writes nothing is remembered."
    )

    log_level: str = choice(LOGGING, "info", ("debug", "info", "warning", "error"), "Least severe line that is logged.")
    log_format: str = choice(
        LOGGING,
        "auto",
        ("auto", "text", "json"),
        "Form of log lines; auto is text on a terminal and json elsewhere.",
    )

    slow_request_ms: int = whole(
        LOGGING, 1_000, 0, HOUR_MS, "Requests that take so long are logged, unless they wait for records; 0 is off."
    )
    access_log: bool = row(LOGGING, "flag", False, "Log a line for each HTTP request that is no append.")

    traces: bool = row(
        LOGGING, "flag", False, "Send OpenTelemetry traces, as the variables OTEL_... say; needs the extra otel."
    )
    trace_one_in: int = whole(
        LOGGING, 0, 0, 1_000_000_000, "Of requests without a traceparent, one in so many is traced; 0 is none."
    )

    profile: str = text(LOGGING, "off", "off, or a file", "File for a profile of the event loop, written on shutdown.")

    @property
    def workers_wanted(self) -> int | None:
        """None when as many as there are processors are wanted."""
        return None if isinstance(self.workers, str) else self.workers

    @property
    def groups_wanted(self) -> int | None:
        """None when the directory decides, or for a new one the number of workers."""
        return None if isinstance(self.groups, str) else self.groups

    @property
    def in_cluster(self) -> bool:
        return self.cluster != OFF

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host, without brackets, and port of `listen`."""
        return parse_listen(self.listen)

    @property
    def s3p_address(self) -> tuple[str, int] | None:
        """The same of `s3p`; None when it is off."""
        return None if self.s3p == OFF else parse_listen(self.s3p)


TABLE: tuple[Setting, ...] = tuple(
    Setting(name=found.name, default=cast(Value, found.default), **found.metadata)
    for found in sorted(fields(Settings), key=lambda found: place(found.metadata["panel"]))
)
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in TABLE}


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal: where the setting came from, what is wrong with it, what to change."""

    where: str
    wrong: str
    change: str

    def __str__(self) -> str:
        return f"{self.where}: {self.wrong}; {self.change}"


class BadSettings(Exception):
    """Every problem of one set of settings, in the order flags, environment, file, relations."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with the place each one came from: a flag, a variable, `FILE: key`, or `default`."""

    settings: Settings
    sources: Mapping[str, str]

    @property
    def warnings(self) -> list[str]:
        """What is allowed and worth a second look before serving."""
        found = []
        for name in () if self.settings.auth_on else open_doors(asdict(self.settings)):
            found.append(
                f"{self.sources[name]}: {getattr(self.settings, name)} can be reached from other machines and "
                "authentication is off: whoever reaches it can read, write and delete everything; "
                "turn auth on, or let only a trusted network or proxy through"
            )
        if self.settings.webhook_allow_local:
            found.append(
                f"{self.sources['webhook_allow_local']}: webhooks may call this machine's own services; "
                "turn webhook_allow_local off outside development"
            )
        return found


def load(flags: Mapping[str, object], environ: Mapping[str, str], config_path: Path | None) -> Settings:
    """Settings by precedence flags, environment, TOML file, default. A flag of None was not given.

    Reads `config_path`, or the file that HEADWATER_CONFIG names. Raises BadSettings with every problem of
    every layer, also of values that a higher layer overrides."""
    return resolve(flags, environ, config_path).settings


def resolve(flags: Mapping[str, object], environ: Mapping[str, str], config_path: Path | None) -> Resolved:
    """As `load`, and says where each setting came from."""
    problems: list[Problem] = []
    values: dict[str, Any] = {setting.name: setting.default for setting in TABLE}
    sources = dict.fromkeys(values, "default")
    broken: set[str] = set()
    # Lowest layer first, so that a higher one overwrites it.
    layers = (_from_file(environ, config_path, problems), _from_environment(environ), _from_flags(flags))
    for given in itertools.chain.from_iterable(layers):
        setting = BY_NAME.get(given.name)
        if setting is None:
            problems.append(_unknown(given))
            continue
        try:
            values[setting.name] = parsed(setting, given.raw, typed=given.spelling == "name")
            sources[setting.name] = given.where
        except Wrong as why:
            broken.add(setting.name)
            problems.append(Problem(given.where, why.wrong, why.change))
    problems += _contradictions(values, sources, broken)
    if problems:
        raise BadSettings(problems)
    return Resolved(Settings(**values), sources)


def process_environment() -> Mapping[str, str]:
    """The environment of this process; everything else takes it as an argument."""
    return os.environ


def client_url(flag: str | None, environ: Mapping[str, str]) -> str:
    """The server that client commands talk to: the flag, then HEADWATER_URL, then the default address."""
    return flag or environ.get(URL_VARIABLE) or URL_DEFAULT


def client_token(environ: Mapping[str, str]) -> str | None:
    """The key or token that client commands send: HEADWATER_TOKEN, which `headwater --token` sets."""
    return environ.get(TOKEN_VARIABLE) or None


def give_token(text: str) -> None:
    """As if HEADWATER_TOKEN had been set when the process was started."""
    os.environ[TOKEN_VARIABLE] = text


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as some layer gives it; `spelling` is how that layer writes a setting's name."""

    where: str
    name: str
    raw: object
    spelling: Literal["flag", "variable", "name"]


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Given]:
    for name, raw in flags.items():
        if raw is not None:
            yield _Given("--" + name.replace("_", "-"), name, raw, "flag")


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in CLIENT_VARIABLES:
            # Swapped, not lowered: HEADWATER_listen is not HEADWATER_LISTEN and must be refused.
            name = variable.removeprefix(PREFIX).swapcase()
            yield _Given(variable, name, environ[variable], "variable")


def _from_file(environ: Mapping[str, str], config_path: Path | None, problems: list[Problem]) -> Iterator[_Given]:
    named_by = "--config"
    if config_path is None:
        if not environ.get(CONFIG_VARIABLE):
            return
        config_path, named_by = Path(environ[CONFIG_VARIABLE]), CONFIG_VARIABLE
    try:
        document = tomllib.loads(config_path.read_bytes().decode())
    except OSError as why:
        wrong = f"cannot read {config_path}: {why.strerror or why}"
        problems.append(Problem(named_by, wrong, "name a TOML file that can be read"))
    except ValueError as why:
        problems.append(Problem(str(config_path), f"is not TOML: {why}", "correct it there"))
    else:
        for key, raw in document.items():
            yield _Given(f"{config_path}: {key}", key, raw, "name")


def _unknown(given: _Given) -> Problem:
    near = difflib.get_close_matches(given.name.lower().replace("-", "_"), BY_NAME, n=1)
    if near:
        change = f"did you mean {getattr(BY_NAME[near[0]], given.spelling)}?"
    else:
        change = "remove it; `headwater config docs` lists every setting"
    return Problem(given.where, "no such setting", change)


def _contradictions(values: Mapping[str, Any], sources: Mapping[str, str], broken: set[str]) -> Iterator[Problem]:
    if values["memory"] and sources["data"] != "default" and not broken & {"memory", "data"}:
        yield Problem(f"{sources['memory']} and {sources['data']}", MEMORY_RULE, "leave out one of the two")
    if values["cluster"] != OFF and "cluster" not in broken:
        for is_so, rule, change in CLUSTER_RULES:
            if is_so(values):
                yield Problem(sources["cluster"], rule, change)
    for name, wrong, change in () if broken else (*access_contradictions(values), *web_contradictions(values)):
        yield Problem(sources[name], wrong, change)
    for relation in RELATIONS:
        pair = relation.first, relation.second
        if values["s3p"] == OFF and relation.first.startswith("s3p_"):
            continue
        if not broken.intersection(pair) and not relation.holds(*(values[name] for name in pair)):
            shown = (f"{name} = {BY_NAME[name].shown(values[name])} ({sources[name]})" for name in pair)
            yield Problem(" and ".join(shown), relation.rule, relation.change)
