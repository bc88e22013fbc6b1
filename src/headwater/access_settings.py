"""The settings of who may use the server: a part of the table in `config`.

Owns these rows and how they contradict each other. Never reads a file that one of them names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headwater.setting_rows import DAY_MS, HOUR_MS, SECURITY, choice, row, text, whole
from headwater.setting_values import AUTO, OFF, is_loopback, parse_listen
from headwater.web_settings import WebSettings

OPEN_RULE = (
    "give auth: on, so that clients need a key (`--auth on`; the first key is printed at start), or open_to_everyone "
    "(`--open-to-everyone`) where a network or a proxy in front lets only the right clients through"
)
"""What to do instead of serving everybody who reaches the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings(WebSettings):
    auth: str = choice(
        SECURITY,
        AUTO,
        (AUTO, "on", OFF),
        "Whether clients need a key, a token or a signed URL; auto is off, and refuses to start on another address.",
    )
    open_to_everyone: bool = row(
        SECURITY, "flag", False, "Serve without authentication on addresses that other machines reach."
    )
    admin_key_file: str = text(
        SECURITY,
        AUTO,
        "auto, or a path",
        "File with a key that may do everything, whatever the directory of keys says; auto is none.",
    )

    audit: str = choice(
        SECURITY,
        AUTO,
        (AUTO, "on", OFF),
        "Whether who changed what, and who was refused, is told in _headwater/audit; auto is on where auth is on.",
    )
    audit_age_ms: int = whole(
        SECURITY, 400 * DAY_MS, HOUR_MS, 36_500 * DAY_MS, "How long records of the audit log are kept."
    )
    secrets_key_file: str = text(
        SECURITY,
        AUTO,
        "auto, or a path",
        "File with the key that the node's own secrets are encrypted with; auto keeps them as they are.",
    )

    jwt_keys: str = text(
        SECURITY,
        OFF,
        "off, a path, or https://HOST/PATH",
        "Where the public keys (JWKS) are that signed tokens (JWT) are verified by; off takes no tokens.",
    )
    jwt_issuer: str = text(SECURITY, AUTO, "auto, or a text", "Issuer (iss) that tokens must have; auto is none.")
    jwt_audience: str = text(SECURITY, AUTO, "auto, or a text", "Audience (aud) that tokens must have; auto is none.")
    jwt_claim: str = text(SECURITY, "scope", "a name", "Claim of a token that has its scopes.")

    @property
    def auth_on(self) -> bool:
        return self.auth == "on"

    @property
    def audit_on(self) -> bool:
        return self.audit == "on" or (self.audit == AUTO and self.auth_on)


def open_doors(values: Mapping[str, Any]) -> list[str]:
    """The settings by which clients on other machines reach this one."""
    doors = [name for name in ("listen", "s3p", "admin_listen") if values[name] != OFF]
    return [name for name in doors if not is_loopback(parse_listen(values[name])[0])]


def contradictions(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The setting that is to be changed, what is wrong with it, and what to change."""
    if values["auth"] != "on" and not values["open_to_everyone"]:
        for name in open_doors(values):
            wrong = f"{values[name]} can be reached from other machines, and authentication is off"
            yield name, wrong, OPEN_RULE
    if values["jwt_keys"] != OFF:
        for name, what in (("jwt_issuer", "issuer"), ("jwt_audience", "audience")):
            if values[name] == AUTO:
                yield "jwt_keys", f"tokens of any {what} would count", f"give {name}: the {what} that tokens must name"
        if values["auth"] != "on":
            yield "jwt_keys", "tokens count only where authentication is on", "give auth: on, or leave out jwt_keys"
