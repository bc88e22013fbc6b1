"""What a setting's value may look like: numbers, sizes, switches, addresses and origins as text and back.
Owns their syntax and the words of each refusal. Never knows which settings there are: `config` does."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal, assert_never

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
AUTO, OFF = "auto", "off"
PREFIX = "HEADWATER_"
"""Of the environment's variables."""

Kind = Literal[
    "flag", "choice", "path", "text", "listen", "door", "origin", "base", "networks", "log", "size", "whole", "count"
]
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
    form: str = ""
    """What a text may be."""

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
            case "text":
                return self.form
            case "listen":
                return "HOST:PORT, IPv6 in brackets, port 0 for any free one"
            case "door":
                return "as listen, or off"
            case "origin":
                return "* or SCHEME://HOST:PORT,..."
            case "base":
                return "auto, forwarded, or http(s)://HOST:PORT/PATH"
            case "networks":
                return "none, or ADDRESS,NETWORK/BITS,..."
            case "log":
                return "off, nats://HOST:PORT,HOST:PORT, s3://BUCKET/PREFIX, or file:///DIRECTORY"
            case "size":
                return f"{shown_size(self.low)} to {shown_size(self.high)}"
            case "whole":
                return f"{self.low} to {self.high}"
            case "count":
                return f"auto, or {self.low} to {self.high}"
            case _:
                assert_never(self.kind)

    def shown(self, value: Value) -> str:
        """The value as a flag, a variable or this guide writes it; reading it back gives the same value."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if self.kind == "size" and isinstance(value, int):
            return shown_size(value)
        return str(value)


REDACTED = "[redacted]"
_CREDENTIALS = re.compile(r"((?<=://)|(?<=,))[^/@,]*(?=@)")


def without_credentials(value: str) -> str:
    """A setting's text without the user and password in its URL, or in each of several."""
    return _CREDENTIALS.sub(REDACTED, value)


class Wrong(Exception):
    """Why a value is refused, and what to write instead."""

    def __init__(self, wrong: str, change: str) -> None:
        super().__init__(wrong)
        self.wrong, self.change = wrong, change


_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_SIZE_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}
_WHOLE = re.compile(r"[0-9]{1,3}(?:_?[0-9]){0,16}")
_SIZE = re.compile(rf"({_WHOLE.pattern})\s*([A-Za-z]*)")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_BASE = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*")
_SERVER = r"([^\s,/@]+@)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?"
_LOGS = re.compile(rf"nats://{_SERVER}(,(nats://)?{_SERVER})*|s3://[a-z0-9][a-z0-9.-]*(/\S*)?|file:///\S+")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*\.?")


def parsed(setting: Setting, raw: object, typed: bool) -> Value:
    text = raw.strip() if isinstance(raw, str) else None
    if text == "":
        raise Wrong("is empty", f"give a value ({setting.allowed}) or leave it out")
    match setting.kind:
        case "flag":
            if isinstance(raw, bool):
                return raw
            if text is not None and not typed and text.lower() in (*_TRUE, *_FALSE):
                return text.lower() in _TRUE
            raise Wrong(f"{raw!r} is neither true nor false", "write true or false")
        case "count" if text is not None and text.lower() == AUTO:
            return AUTO
        case "whole" | "size" | "count":
            return _bounded(setting, _number(setting, raw, text, typed))
        case "choice" | "path" | "text" | "listen" | "door" | "origin" | "base" | "networks" | "log":
            if text is None:
                raise Wrong(f"{raw!r} is not text", f'write it in quotes: {setting.name} = "{setting.default}"')
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
        raise Wrong(f"{raw!r} is not a size", "write bytes as a whole number, or KiB, MiB, GiB or TiB as in 64MiB")
    if text is not None and not typed and _WHOLE.fullmatch(text):
        return int(text)
    if setting.kind == "count":
        raise Wrong(f"{raw!r} is neither auto nor a whole number", "write auto, or a number such as 2")
    unit = " of milliseconds" if setting.name.endswith("_ms") else ""
    raise Wrong(f"{raw!r} is not a whole number{unit}", f"write a plain number such as {setting.default}")


def _bounded(setting: Setting, value: int) -> int:
    if value < setting.low:
        raise Wrong(f"{value} is too low", f"the least is {setting.shown(setting.low)}")
    if value > setting.high:
        raise Wrong(f"{value} is too high", f"the most is {setting.shown(setting.high)}")
    return value


def _text(setting: Setting, text: str) -> str:
    if not text.isprintable():
        raise Wrong(f"{text!r} has characters that cannot be printed", "remove them")
    if setting.kind == "choice" and text not in setting.choices:
        raise Wrong(f"{text!r} is not one of its values", f"choose one of {setting.allowed}")
    if setting.kind == "listen" or (setting.kind == "door" and text != "off"):
        try:
            parse_listen(text)
        except ValueError as why:
            off = "" if setting.kind == "listen" else ", or off"
            raise Wrong(str(why), f"write HOST:PORT such as {setting.default} or [::1]:4437{off}") from None
    if setting.kind == "origin":
        return _origins(text)
    if setting.kind == "networks" and text != "none":
        return ",".join(str(network) for network in networks(text))
    if setting.kind == "log" and text != "off" and not _LOGS.fullmatch(text):
        example = "nats://10.0.0.1:4222,10.0.0.2:4222,10.0.0.3:4222 or s3://bucket/prefix"
        shown = without_credentials(text)
        raise Wrong(f"{shown!r} is no place for a cluster's logs", f"write off, or an address such as {example}")
    if setting.kind == "base" and text not in ("auto", "forwarded"):
        text = text.rstrip("/")
        if not _BASE.fullmatch(text):
            example = "write auto, forwarded, or a URL such as https://streams.example.com"
            raise Wrong(f"{without_credentials(text)!r} is not where a server can be reached", example)
    return text


def _origins(text: str) -> str:
    origins = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for origin in origins:
        if origin == "*" and len(origins) > 1:
            raise Wrong("* is every origin, and others are named beside it", "write * alone, or the origins alone")
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise Wrong(
                f"{origin!r} is not a web origin",
                "write * or an origin such as https://app.example.com",
            )
    return ",".join(origins)


def networks(text: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Addresses and networks with commas between. Raises Wrong."""
    found = []
    for part in text.split(","):
        try:
            found.append(ipaddress.ip_network(part.strip()))
        except ValueError as why:
            example = "write none, or addresses and networks such as 127.0.0.1,10.0.0.0/8"
            raise Wrong(f"{part.strip()!r} is no address or network: {why}", example) from None
    return found


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
    # What ends in a number alone was meant as an address; node-1 is a name.
    if not _HOST_NAME.fullmatch(host) or (host.rpartition(".")[2].isdigit() and not _is_ipv4(host)):
        raise ValueError(f"{host!r} is neither a host name nor an address")
    return host, int(port)


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ipv4(host: str) -> bool:
    try:
        return bool(ipaddress.IPv4Address(host))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
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
