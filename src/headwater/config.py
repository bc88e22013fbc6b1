"""Settings: every limit of the server, how limits relate, and where each value came from.
Owns the one table behind flags, variables, TOML keys and the guide; alone reads environment and TOML.
Never opens a socket, creates a directory or prints: bad settings are raised together as one BadSettings."""

from __future__ import annotations

import difflib
import ipaddress
import itertools
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, assert_never, cast

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000

PREFIX = "HEADWATER_"
CONFIG_VARIABLE = "HEADWATER_CONFIG"
URL_VARIABLE = "HEADWATER_URL"
URL_DEFAULT = "http://127.0.0.1:4437"

# What the frame of one append needs beside its body in a log file: header, names, producer, checksum.
FRAME_BYTES_RESERVED = MIB

Kind = Literal["flag", "choice", "path", "listen", "origin", "size", "whole"]
Value = bool | int | str


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `low` and `high` are inclusive and in the unit that ends the name."""

    name: str
    kind: Kind
    default: Value
    help: str
    panel: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def allowed(self) -> str:
        match self.kind:
            case "flag":
                return "true, false"
            case "choice":
                return ", ".join(self.choices)
            case "path":
                return "a directory"
            case "listen":
                return "HOST:PORT, IPv6 in brackets, port 0 for any free one"
            case "origin":
                return "* or SCHEME://HOST:PORT"
            case "size":
                return f"{shown_size(self.low)} to {shown_size(self.high)}"
            case "whole":
                return f"{self.low} to {self.high}"
            case _:
                assert_never(self.kind)

    def shown(self, value: Value) -> str:
        """The value as a flag, a variable or this guide writes it; reading it back gives the same value."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if self.kind == "size" and isinstance(value, int):
            return shown_size(value)
        return str(value)


SERVING, STORAGE, HTTP = "Serving", "Log and memory", "HTTP connections"
READING, STREAMS, LOGGING = "Reading and following", "Streams and producers", "Logging"


def _row(panel: str, kind: Kind, default: Value, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"panel": panel, "kind": kind, "help": help, **more})


def _size(panel: str, default: int, low: int, high: int, help: str) -> Any:
    return _row(panel, "size", default, help, low=low, high=high)


def _whole(panel: str, default: int, low: int, high: int, help: str) -> Any:
    return _row(panel, "whole", default, help, low=low, high=high)


def _choice(panel: str, default: str, choices: tuple[str, ...], help: str) -> Any:
    return _row(panel, "choice", default, help, choices=choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The table. `load` is the way in: building one directly skips validation (the defaults are valid)."""

    listen: str = _row(SERVING, "listen", "127.0.0.1:4437", "Address to serve HTTP on.")
    data: str = _row(SERVING, "path", "./headwater-data", "Directory that keeps the log and the catalog.")
    memory: bool = _row(SERVING, "flag", False, "Keep nothing on disk: everything is gone when the server stops.")
    durability: str = _choice(
        SERVING,
        "fsync",
        ("fsync", "disk", "memory"),
        "When appends to a new stream are acknowledged: after the sync, after the write, or at once.",
    )
    shutdown_grace_ms: int = _whole(
        SERVING, 10_000, 0, 10 * MINUTE_MS, "Time that open requests have to finish when the server stops."
    )
    webhook_allow_local: bool = _row(
        SERVING, "flag", False, "Let webhooks call http://localhost and 127.0.0.x; for development only."
    )

    log_file_bytes: int = _size(STORAGE, 128 * MIB, MIB, 4 * GIB, "Size of one log file, preallocated.")
    disk_sync_ms: int = _whole(STORAGE, 50, 1, MINUTE_MS, "How often writes of the durability class disk are synced.")
    checkpoint_interval_ms: int = _whole(
        STORAGE, 5_000, 10, HOUR_MS, "How often the catalog is checkpointed with its log position."
    )
    hot_bytes_max: int = _size(
        STORAGE, 2 * GIB, MIB, 16 * TIB, "Payload kept in memory; above it appends are answered 503."
    )

    body_bytes_max: int = _size(HTTP, 64 * MIB, KIB, 4 * GIB, "Longest request body; a longer one is answered 413.")
    snapshot_bytes_max: int = _size(HTTP, 128 * MIB, KIB, 4 * GIB, "Longest snapshot; a longer one is answered 413.")
    head_bytes_max: int = _size(HTTP, 32 * KIB, KIB, MIB, "Longest request line and headers together.")
    header_count_max: int = _whole(HTTP, 100, 8, 10_000, "Most headers in one request.")
    head_timeout_ms: int = _whole(HTTP, 10_000, 10, HOUR_MS, "Time for the head of a request to arrive.")
    body_timeout_ms: int = _whole(HTTP, 60_000, 10, HOUR_MS, "Time for the body of a request to arrive.")
    idle_timeout_ms: int = _whole(HTTP, 75_000, 10, DAY_MS, "How long a connection is kept open between two requests.")
    connections_max: int = _whole(HTTP, 20_000, 1, 1_000_000, "Most connections open at once.")
    write_buffer_bytes_max: int = _size(
        HTTP, 256 * KIB, KIB, GIB, "Unsent bytes of one connection before its reader is held back."
    )
    cors_origin: str = _row(HTTP, "origin", "*", "Web origin that may use the server from a browser.")

    read_bytes_max: int = _size(READING, 4 * MIB, KIB, GIB, "Longest body of one catch-up response.")
    long_poll_timeout_ms: int = _whole(
        READING, 20_000, 1, HOUR_MS, "How long a long-poll waits for data before it is answered 204."
    )
    sse_keepalive_ms: int = _whole(
        READING, 15_000, 10, HOUR_MS, "Longest silence on an SSE connection before a comment line is sent."
    )
    sse_lifetime_ms: int = _whole(
        READING, 60_000, 20, DAY_MS, "Age at which an SSE connection is ended so that its client reconnects."
    )

    stream_name_bytes_max: int = _whole(STREAMS, 1_024, 1, 16_384, "Longest stream name, decoded, in bytes.")
    content_type_bytes_max: int = _whole(STREAMS, 256, 16, 8_192, "Longest content type of a stream.")
    stream_seq_bytes_max: int = _whole(STREAMS, 256, 1, 8_192, "Longest Stream-Seq value.")
    producer_id_bytes_max: int = _whole(STREAMS, 256, 1, 8_192, "Longest Producer-Id value.")
    producers_per_stream_max: int = _whole(STREAMS, 10_000, 1, 10_000_000, "Most producers one stream remembers.")
    producer_idle_ms: int = _whole(
        STREAMS, 7 * DAY_MS, 1, 3_650 * DAY_MS, "How long a producer that writes nothing is remembered."
    )

    log_level: str = _choice(
        LOGGING, "info", ("debug", "info", "warning", "error"), "Least severe line that is logged."
    )
    log_format: str = _choice(
        LOGGING,
        "auto",
        ("auto", "text", "json"),
        "Form of log lines; auto is text on a terminal and json elsewhere.",
    )

    profile: str = _row(LOGGING, "path", "off", "File for a profile of the event loop, written on shutdown.")

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host, without brackets, and port of `listen`."""
        return parse_listen(self.listen)


TABLE: tuple[Setting, ...] = tuple(
    Setting(name=row.name, default=cast(Value, row.default), **row.metadata) for row in fields(Settings)
)
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in TABLE}


@dataclass(frozen=True, slots=True)
class Relation:
    """A rule over two settings; `rule` is the sentence that the guide and the refusal both print."""

    first: str
    second: str
    rule: str
    holds: Callable[[int, int], bool]
    change: str


RELATIONS: tuple[Relation, ...] = (
    Relation(
        "body_bytes_max",
        "log_file_bytes",
        "body_bytes_max plus 1MiB must fit log_file_bytes, because one append never spans two log files",
        lambda body, file: body + FRAME_BYTES_RESERVED <= file,
        "lower body_bytes_max or raise log_file_bytes",
    ),
    Relation(
        "read_bytes_max",
        "hot_bytes_max",
        "read_bytes_max must not exceed hot_bytes_max, because one response is gathered in memory",
        lambda read, hot: read <= hot,
        "lower read_bytes_max or raise hot_bytes_max",
    ),
    Relation(
        "sse_keepalive_ms",
        "sse_lifetime_ms",
        "sse_keepalive_ms must be below sse_lifetime_ms, or no keep-alive would ever be sent",
        lambda keepalive, lifetime: keepalive < lifetime,
        "lower sse_keepalive_ms or raise sse_lifetime_ms",
    ),
)

MEMORY_RULE = "memory keeps nothing, so it cannot be combined with a data directory that was given explicitly"


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


class _Wrong(Exception):
    def __init__(self, wrong: str, change: str) -> None:
        super().__init__(wrong)
        self.wrong, self.change = wrong, change


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with the place each one came from: a flag, a variable, `FILE: key`, or `default`."""

    settings: Settings
    sources: Mapping[str, str]

    @property
    def warnings(self) -> list[str]:
        """What is allowed and worth a second look before serving."""
        found = []
        host, _ = self.settings.listen_address
        if not _is_loopback(host):
            found.append(
                f"{self.sources['listen']}: {self.settings.listen} can be reached from other machines and "
                "there is no authentication yet: whoever reaches it can read, write and delete everything; "
                "use 127.0.0.1, or let only a trusted network or proxy through"
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
            values[setting.name] = _parsed(setting, given.raw, typed=given.spelling == "name")
            sources[setting.name] = given.where
        except _Wrong as why:
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
        if variable.startswith(PREFIX) and variable not in (CONFIG_VARIABLE, URL_VARIABLE):
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
    for relation in RELATIONS:
        pair = relation.first, relation.second
        if not broken.intersection(pair) and not relation.holds(*(values[name] for name in pair)):
            shown = (f"{name} = {BY_NAME[name].shown(values[name])} ({sources[name]})" for name in pair)
            yield Problem(" and ".join(shown), relation.rule, relation.change)


_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_SIZE_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}
_WHOLE = re.compile(r"[0-9]{1,3}(?:_?[0-9]){0,16}")
_SIZE = re.compile(rf"({_WHOLE.pattern})\s*([A-Za-z]*)")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*\.?")


def _parsed(setting: Setting, raw: object, typed: bool) -> Value:
    text = raw.strip() if isinstance(raw, str) else None
    if text == "":
        raise _Wrong("is empty", f"give a value ({setting.allowed}) or leave it out")
    match setting.kind:
        case "flag":
            if isinstance(raw, bool):
                return raw
            if text is not None and not typed and text.lower() in (*_TRUE, *_FALSE):
                return text.lower() in _TRUE
            raise _Wrong(f"{raw!r} is neither true nor false", "write true or false")
        case "whole" | "size":
            return _bounded(setting, _number(setting, raw, text, typed))
        case "choice" | "path" | "listen" | "origin":
            if text is None:
                raise _Wrong(f"{raw!r} is not text", f'write it in quotes: {setting.name} = "{setting.default}"')
            return _text(setting, text)
        case _:
            assert_never(setting.kind)


def _number(setting: Setting, raw: object, text: str | None, typed: bool) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if setting.kind == "size":
        match = _SIZE.fullmatch(text) if text is not None else None
        if match and match[2].lower() in _SIZE_UNITS:
            return int(match[1]) * _SIZE_UNITS[match[2].lower()]
        raise _Wrong(f"{raw!r} is not a size", "write bytes as a whole number, or KiB, MiB, GiB or TiB as in 64MiB")
    if text is not None and not typed and _WHOLE.fullmatch(text):
        return int(text)
    unit = " of milliseconds" if setting.name.endswith("_ms") else ""
    raise _Wrong(f"{raw!r} is not a whole number{unit}", f"write a plain number such as {setting.default}")


def _bounded(setting: Setting, value: int) -> int:
    if value < setting.low:
        raise _Wrong(f"{value} is too low", f"the least is {setting.shown(setting.low)}")
    if value > setting.high:
        raise _Wrong(f"{value} is too high", f"the most is {setting.shown(setting.high)}")
    return value


def _text(setting: Setting, text: str) -> str:
    if not text.isprintable():
        raise _Wrong(f"{text!r} has characters that cannot be printed", "remove them")
    if setting.kind == "choice" and text not in setting.choices:
        raise _Wrong(f"{text!r} is not one of its values", f"choose one of {setting.allowed}")
    if setting.kind == "listen":
        try:
            parse_listen(text)
        except ValueError as why:
            raise _Wrong(str(why), "write HOST:PORT such as 127.0.0.1:4437 or [::1]:4437") from None
    if setting.kind == "origin" and text != "*" and not _ORIGIN.fullmatch(text):
        raise _Wrong(f"{text!r} is not a web origin", "write * or an origin such as https://app.example.com")
    return text


def parse_listen(text: str) -> tuple[str, int]:
    """Host (IPv6 without its brackets) and port. Raises ValueError that says which part is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError(f"{text!r} has no port from 0 to 65535 at its end")
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])), int(port)
        except ValueError:
            raise ValueError(f"{host!r} is not an IPv6 address") from None
    if ":" in host:
        raise ValueError(f"the IPv6 address in {text!r} is not in brackets")
    if not host:
        raise ValueError(f"{text!r} has no host (0.0.0.0 listens on every address)")
    if not _HOST_NAME.fullmatch(host) or (host[-1].isdigit() and not _is_ipv4(host)):
        raise ValueError(f"{host!r} is neither a host name nor an address")
    return host, int(port)


def _is_ipv4(host: str) -> bool:
    try:
        return bool(ipaddress.IPv4Address(host))
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def shown_size(size_bytes: int) -> str:
    """The largest unit that divides it: 128MiB, 1000 for a size that no unit divides."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)
