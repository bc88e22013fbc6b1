"""What a client was told at its making: where the server is, its token, how long to wait, how often to try.

Plain values that both transports share; nothing here sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.client.connection import Address, address, printable
from headwater.client.retries import Retries
from headwater.client.tls_files import TlsFiles

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    address: Address
    headers: Mapping[str, str]
    """Of every request."""
    timeout_s: float
    retries: Retries
    idempotent: bool


def settings(
    url: str, token: str | None, timeout_s: float, retries: Retries, idempotent: bool, tls: TlsFiles | None = None
) -> Settings:
    """Raises ValueError for what is not the address of a server. Without `tls` the environment names its files."""
    server = address(url, tls)
    if server is None:
        raise ValueError(f"{printable(url)!r} is not the address of a server; write it as http://HOST:PORT")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return Settings(server, headers, timeout_s, retries, idempotent)
