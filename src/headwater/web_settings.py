"""The settings of proxies in front of the node, and of browsers: a part of the table in `config`.

Owns these rows and how they contradict each other. Never reads a file that one of them names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headwater.setting_rows import WEB, choice, row
from headwater.setting_values import AUTO

NONE = "none"
FORWARDED = "forwarded"
X_FORWARDED = "x-forwarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    public_url: str = row(
        WEB,
        "base",
        AUTO,
        "Where clients reach the server, for URLs in answers: by Host or what a trusted proxy says, or as given.",
    )
    trusted_proxies: str = row(
        WEB,
        "networks",
        NONE,
        "Proxies whose forwarding headers are believed: addresses and networks, with commas between; none is nobody.",
    )
    trusted_proxy_headers: str = choice(
        WEB,
        X_FORWARDED,
        (X_FORWARDED, FORWARDED),
        "Which headers those are: X-Forwarded-For, -Proto and -Host, or Forwarded (RFC 7239).",
    )
    cors_origin: str = row(
        WEB, "origin", "*", "Web origins whose pages may use the server from a browser, with commas between; * is all."
    )
    cors_credentials: bool = row(
        WEB, "flag", False, "Let pages of those origins send credentials that the browser keeps; not with *."
    )

    @property
    def scheme(self) -> str:
        """That of the node's own HTTP addresses."""
        return "http"

    @property
    def cors_origins(self) -> tuple[str, ...]:
        return tuple(self.cors_origin.split(","))


def contradictions(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The setting that is to be changed, what is wrong with it, and what to change."""
    if values["public_url"] == FORWARDED and values["trusted_proxies"] == NONE:
        yield (
            "public_url",
            "forwarded believes what proxies say, and nobody is one",
            "give trusted_proxies the addresses of the proxies, such as 127.0.0.1",
        )
    if values["cors_credentials"] and values["cors_origin"] == "*":
        yield "cors_credentials", "a page of any origin could act as its user", "name the origins in cors_origin"


RULES = (
    "public_url = forwarded needs trusted_proxies",
    "cors_credentials does not go with cors_origin = *, because a page of any origin could act as its user",
)
"""The same as the guide tells it."""
