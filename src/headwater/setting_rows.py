"""How a row of the table of settings is written down: one function per kind of value, and the panels of the guide.

Owns the panels and their order. Never holds a setting: `config` does, and the parts of it that have a module of their
own (`web_settings`, `access_settings`, `limit_settings`).
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from headwater.setting_values import Kind, Value

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000

SERVING, STORAGE, HTTP, S3P = "Serving", "Log and memory", "HTTP connections", "S3P"
CLUSTER, SECURITY = "Cluster", "Security"
READING, STREAMS, LOGGING = "Reading and following", "Streams and producers", "Logging"
TLS, WEB, LIMITS = "TLS", "Proxies and browsers", "Limits of clients and buckets"
PANELS = (SERVING, SECURITY, TLS, LIMITS, CLUSTER, STORAGE, HTTP, WEB, S3P, READING, STREAMS, LOGGING)
"""In the order of the guide. A panel that is not among them comes after those that are."""


def row(panel: str, kind: Kind, default: Value, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"panel": panel, "kind": kind, "help": help, **more})


def size(panel: str, default: int, low: int, high: int, help: str) -> Any:
    return row(panel, "size", default, help, low=low, high=high)


def whole(panel: str, default: int, low: int, high: int, help: str) -> Any:
    return row(panel, "whole", default, help, low=low, high=high)


def text(panel: str, default: str, form: str, help: str) -> Any:
    return row(panel, "text", default, help, form=form)


def choice(panel: str, default: str, choices: tuple[str, ...], help: str) -> Any:
    return row(panel, "choice", default, help, choices=choices)


def place(panel: str) -> int:
    """Where the panel stands in the guide."""
    return PANELS.index(panel) if panel in PANELS else len(PANELS)
