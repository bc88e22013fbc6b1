"""How settings relate: rules over two or more of them, each as the sentence that the guide and a refusal print.

Owns the rules. Never looks at where a value came from: `config` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headwater.setting_values import AUTO, MIB

# What the frame of one append needs beside its body in a log file: header, names, producer, checksum.
FRAME_BYTES_RESERVED = MIB


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
        "workers",
        "groups",
        "workers must not exceed groups where both are numbers, because a group has one writer",
        lambda workers, groups: isinstance(workers, str) or isinstance(groups, str) or workers <= groups,
        "lower workers or raise groups",
    ),
    Relation(
        "body_bytes_max",
        "log_file_bytes",
        "body_bytes_max plus 1MiB must fit log_file_bytes, because one append never spans two log files",
        lambda body, file: body + FRAME_BYTES_RESERVED <= file,
        "lower body_bytes_max or raise log_file_bytes",
    ),
    Relation(
        "s3p_append_bytes_max",
        "log_file_bytes",
        "unless s3p is off, s3p_append_bytes_max plus 1MiB must fit log_file_bytes, for the same reason",
        lambda append, file: append + FRAME_BYTES_RESERVED <= file,
        "lower s3p_append_bytes_max, raise log_file_bytes or turn s3p off",
    ),
    Relation(
        "s3p_count_default",
        "s3p_count_max",
        "unless s3p is off, s3p_count_default must not exceed s3p_count_max",
        lambda default, greatest: default <= greatest,
        "lower s3p_count_default or raise s3p_count_max",
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

CLUSTER_RULES: tuple[tuple[Callable[[Mapping[str, Any]], bool], str, str], ...] = (
    (
        lambda values: values["memory"],
        "memory keeps nothing, and a cluster promises that nothing is lost",
        "leave out memory",
    ),
    (
        lambda values: values["workers"] != 1,
        "a node of a cluster has one worker",
        "leave out workers; start more nodes",
    ),
    (
        lambda values: values["lake"] == AUTO,
        "the nodes of a cluster share one lake",
        "give lake: s3://BUCKET/PREFIX, or a directory that all nodes see",
    ),
    (
        lambda values: values["cluster_secret_file"] == AUTO,
        "nodes of a cluster know each other by a secret",
        "give cluster_secret_file: a file with 16 bytes or more, the same on all nodes "
        "(`openssl rand -hex 32 > FILE; chmod 600 FILE`)",
    ),
    (
        lambda values: values["secrets_key_file"] != AUTO,
        "the nodes of a cluster share their secrets, encrypted with cluster_secret_file",
        "leave out secrets_key_file",
    ),
)
"""What a cluster rules out: whether it is so, why that cannot be, what to change."""

MEMORY_RULE = "memory keeps nothing, so it cannot be combined with a data directory that was given explicitly"
