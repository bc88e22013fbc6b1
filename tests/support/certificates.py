"""Certificates for tests, made when they are needed: an authority, servers on loopback, and clients with subjects.
It owns their files, in a directory of the test; nothing of it is kept in the tree."""

from __future__ import annotations

import ipaddress
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, each in a file."""

    certificate: Path
    key: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """Those of a node that is served with it."""
        return ("--tls-certificate", str(self.certificate), "--tls-key", str(self.key))

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate(self.certificate.read_bytes()).serial_number

    def become(self, other: Pair) -> None:
        """Has the other's files under this one's names, each replaced at once, the key last."""
        for mine, theirs in ((self.certificate, other.certificate), (self.key, other.key)):
            part = mine.with_name(mine.name + ".part")
            part.write_bytes(theirs.read_bytes())
            os.replace(part, mine)


class Authority:
    """Signs certificates into `directory`."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = directory / f"{name.replace(' ', '-')}.pem"
        builder = _builder(self._name, self._name, self._key, timedelta(days=2))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def node(self, name: str) -> Pair:
        """For loopback, of a node that connects to others as well."""
        return self.server(name, usages=(ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH))

    def server(
        self,
        name: str = "server",
        *names: str,
        valid: timedelta = timedelta(days=2),
        usages: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.SERVER_AUTH,),
    ) -> Pair:
        """For loopback, or for other `names`."""
        hosts: list[x509.GeneralName] = [x509.DNSName(host) for host in names or ("localhost",)]
        if not names:
            hosts.append(x509.IPAddress(ipaddress.ip_address(HOST)))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._pair(name, subject, usages, hosts, valid)

    def client(self, name: str, organisation: str = "Example") -> Pair:
        """Its subject is `CN=<name>,O=<organisation>`."""
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        return self._pair(name, subject, (ExtendedKeyUsageOID.CLIENT_AUTH,), [], timedelta(days=2))

    def trusting(self, client: Pair | None = None) -> ssl.SSLContext:
        """What a client connects with that trusts this authority."""
        context = ssl.create_default_context(cafile=str(self.file))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context

    def _pair(
        self,
        name: str,
        subject: x509.Name,
        usages: tuple[x509.ObjectIdentifier, ...],
        hosts: list[x509.GeneralName],
        valid: timedelta,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key, valid)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self.directory / f"{name}.pem", self.directory / f"{name}.key")
        pair.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        pair.key.chmod(0o600)
        return pair


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begins = min(now, now + valid) - timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(now + valid)
    )
