"""The settings of TLS, of proxies in front of the node, and of browsers: a part of the table in `config`.

Owns these rows and how they contradict each other. Never reads a file that one of them names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headwater.limit_settings import LimitSettings
from headwater.setting_rows import MINUTE_MS, SECOND_MS, SERVING, TLS, WEB, choice, row, text, whole
from headwater.setting_values import AUTO, OFF, parse_listen

NONE = "none"
FORWARDED = "forwarded"
X_FORWARDED = "x-forwarded"
OPTIONAL, REQUIRED = "optional", "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings(LimitSettings):
    tls_certificate: str = text(
        TLS, OFF, "off, or a PEM file", "Certificate chain that HTTP and S3P are served with; off is no TLS."
    )
    tls_key: str = text(TLS, AUTO, "auto, or a PEM file", "Private key of the certificate; auto is the same file.")
    tls_client_ca: str = text(
        TLS, OFF, "off, or a PEM file", "Authorities whose client certificates are taken; off is none."
    )
    tls_client_certificates: str = choice(
        TLS, OFF, (OFF, OPTIONAL, REQUIRED), "Whether clients are asked for a certificate, and cut off without one."
    )
    tls_client_scopes: str = text(
        TLS, OFF, "off, or a TOML file", "What the subjects of client certificates may do; off is what anybody may."
    )
    cluster_tls_ca: str = text(
        TLS, OFF, "off, or a PEM file", "Authorities of other nodes' certificates; off is no TLS between nodes."
    )
    tls_handshake_timeout_ms: int = whole(
        TLS, 10 * SECOND_MS, 10, 10 * MINUTE_MS, "Time for a TLS handshake; a slower one is cut off."
    )
    tls_hsts_s: int = whole(
        TLS, 0, 0, 2 * 365 * 86_400, "Seconds for which browsers are told to use https alone (HSTS); 0 tells nothing."
    )

    admin_listen: str = row(
        SERVING, "door", OFF, "Address for the node's own calls and metrics, which listen does not serve then."
    )

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
    def admin_address(self) -> tuple[str, int] | None:
        """Host, without brackets, and port of `admin_listen`; None when it is off."""
        return None if self.admin_listen == OFF else parse_listen(self.admin_listen)

    @property
    def tls(self) -> bool:
        return self.tls_certificate != OFF

    @property
    def scheme(self) -> str:
        """That of the node's own HTTP addresses."""
        return "https" if self.tls else "http"

    @property
    def cors_origins(self) -> tuple[str, ...]:
        return tuple(self.cors_origin.split(","))


def contradictions(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The setting that is to be changed, what is wrong with it, and what to change."""
    if values["tls_certificate"] == OFF:
        offs = {"tls_key": AUTO, "tls_client_ca": OFF, "tls_client_certificates": OFF, "cluster_tls_ca": OFF}
        for name, off in offs.items():
            if values[name] != off:
                yield name, "there is no TLS without a certificate", "give tls_certificate, or leave it out"
    elif values["tls_client_certificates"] != OFF and values["tls_client_ca"] == OFF:
        yield "tls_client_certificates", "nothing says whose certificates to take", "give tls_client_ca"
    elif values["tls_client_certificates"] == OFF and values["tls_client_ca"] != OFF:
        change = "give tls_client_certificates: optional or required"
        yield "tls_client_ca", "clients are not asked for certificates", change
    if values["tls_client_scopes"] != OFF:
        if values["tls_client_certificates"] == OFF:
            yield "tls_client_scopes", "clients are not asked for certificates", "give tls_client_certificates"
        if values["auth"] != "on":
            yield "tls_client_scopes", "authentication is off: everybody may do everything", "give auth: on"
    if values["public_url"] == FORWARDED and values["trusted_proxies"] == NONE:
        yield (
            "public_url",
            "forwarded believes what proxies say, and nobody is one",
            "give trusted_proxies the addresses of the proxies, such as 127.0.0.1",
        )
    if values["cors_credentials"] and values["cors_origin"] == "*":
        yield "cors_credentials", "a page of any origin could act as its user", "name the origins in cors_origin"


RULES = (
    "tls_key, tls_client_ca, tls_client_certificates and cluster_tls_ca need tls_certificate",
    "tls_client_ca and tls_client_certificates need each other",
    "tls_client_scopes needs tls_client_certificates, and auth = on",
    "public_url = forwarded needs trusted_proxies",
    "cors_credentials does not go with cors_origin = *, because a page of any origin could act as its user",
)
"""The same as the guide tells it."""
