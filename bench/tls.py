"""B15, appends over TLS: by the node itself, and by proxies in front of a node without it, beside no TLS at all.

Owns the proxies' configurations and the certificate; the load itself is `load`. Every process but the load's belongs to
the server whose CPU is counted.
"""

import contextlib
import dataclasses
import ipaddress
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bench.append import caveats, load_spec, run_load, summary
from bench.generator import Failed, die_with_parent, end, environment
from bench.peers import FSYNC, Peer, Server, headwater
from bench.report import Result, show
from bench.rounds import Settings, alternate, median, ratio

PLAIN, TLS = "plain", "tls"
SECURE_READY = re.compile(r"ready on https://127\.0\.0\.1:(\d+)")
START_S_MAX = 30.0
SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))


@dataclasses.dataclass(frozen=True, slots=True)
class Files:
    """A certificate for 127.0.0.1 that is its own authority, its key, and both in one file."""

    certificate: Path
    key: Path
    both: Path


def make_files(directory: Path) -> Files:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "benchmark")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    made = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files = Files(directory / "tls.pem", directory / "tls.key", directory / "both.pem")
    for path, content in ((files.certificate, made), (files.key, secret), (files.both, made + secret)):
        path.write_bytes(content)
        path.chmod(0o600)
    return files


def with_tls(files: Files) -> Peer:
    def command(data: Path) -> list[str]:
        pair = ["--tls-certificate", str(files.certificate), "--tls-key", str(files.key)]
        return [*headwater(FSYNC).command(data), *pair]

    return dataclasses.replace(headwater(FSYNC), name=TLS, command=command, ready=SECURE_READY)


def named(name: str) -> Peer:
    """A node without TLS, which `measure` puts a proxy in front of unless it is `plain`."""
    return dataclasses.replace(headwater(FSYNC), name=name)


# ---- proxies: told where the node is, where to listen, and which certificate to show -------------------------------


def nginx(directory: Path, node: int, port: int, files: Files) -> list[str]:
    places = "".join(f"{what}_temp_path {directory}/{what};" for what in ("client_body", "proxy"))
    user = "user root;" if os.geteuid() == 0 else ""
    (directory / "nginx.conf").write_text(
        f"daemon off; {user} pid {directory}/pid; error_log stderr; worker_processes 1;\n"
        "events { worker_connections 1024; }\n"
        f"http {{ access_log off; {places} fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u;\n"
        f"scgi_temp_path {directory}/s; keepalive_requests 100000000;\n"
        f"upstream node {{ server 127.0.0.1:{node}; keepalive 128; keepalive_requests 100000000; }}\n"
        f"server {{ listen 127.0.0.1:{port} ssl; ssl_protocols TLSv1.2 TLSv1.3;\n"
        f"ssl_certificate {files.certificate}; ssl_certificate_key {files.key};\n"
        "location / { proxy_pass http://node; proxy_http_version 1.1; proxy_buffering off;\n"
        'proxy_set_header Connection ""; proxy_set_header Host $http_host; } } }\n'
    )
    return [program("nginx"), "-p", str(directory), "-e", "stderr", "-c", str(directory / "nginx.conf")]


def haproxy(directory: Path, node: int, port: int, files: Files) -> list[str]:
    (directory / "haproxy.cfg").write_text(
        "global\n nbthread 1\n maxconn 1024\n"
        "defaults\n mode http\n option http-keep-alive\n"
        " timeout connect 5s\n timeout client 60s\n timeout server 60s\n"
        f"frontend front\n bind 127.0.0.1:{port} ssl crt {files.both} alpn http/1.1\n default_backend node\n"
        f"backend node\n http-reuse safe\n server node 127.0.0.1:{node}\n"
    )
    return [program("haproxy"), "-db", "-f", str(directory / "haproxy.cfg")]


def stunnel(directory: Path, node: int, port: int, files: Files) -> list[str]:
    (directory / "stunnel.conf").write_text(
        f"foreground = yes\npid = {directory}/pid\nsyslog = no\n[node]\naccept = 127.0.0.1:{port}\n"
        f"connect = 127.0.0.1:{node}\ncert = {files.both}\n"
    )
    return [program("stunnel4"), str(directory / "stunnel.conf")]


Proxy = Callable[[Path, int, int, Files], list[str]]
PROXIES: dict[str, tuple[str, Proxy]] = {
    "nginx": ("nginx", nginx),
    "haproxy": ("haproxy", haproxy),
    "stunnel": ("stunnel4", stunnel),
}
"""By the name that the figure has: the program, and its command."""


def program(name: str) -> str:
    found = shutil.which(name, path=SYSTEM_PATH)
    if found is None:
        raise Failed(f"{name} is not installed: tools/system-packages.sh bench")
    return found


@contextlib.contextmanager
def proxied(name: str, node: Server, files: Files) -> Iterator[tuple[int, int]]:
    """Port and process of a proxy in front of the node; it is gone afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    directory = node.directory / name
    directory.mkdir()
    said = directory / "said.txt"
    command = PROXIES[name][1](directory, node.port, port, files)
    with said.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=environment(),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        deadline = time.monotonic() + START_S_MAX
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{name} does not listen: {said.read_text(errors='replace')[-1000:]}")
            time.sleep(0.02)
        yield port, process.pid
    finally:
        end(process)


# ---- the benchmark -------------------------------------------------


def run_b15(settings: Settings) -> list[Result]:
    there = [name for name, (file, _) in PROXIES.items() if shutil.which(file, path=SYSTEM_PATH) is not None]
    for name in PROXIES.keys() - set(there):
        print(f"  B15: {name} is not installed, and is left out", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as directory:
        files = make_files(Path(directory))

        def measure(server: Server) -> dict:
            name = server.peer.name
            secure = {} if name == PLAIN else {"tls_authority": str(files.certificate)}
            if name not in PROXIES:
                return run_load(load_spec(server, settings, parts={"node": [server.pid]}, **secure))
            with proxied(name, server, files) as (port, pid):
                parts = {"node": [server.pid], "proxy": [pid]}
                pids = [server.pid, pid]
                return run_load(load_spec(server, settings, port=port, server_pid=pids, parts=parts, **secure))

        peers = (named(PLAIN), with_tls(files), *(named(name) for name in there))
        results = alternate(settings, peers, measure)
    return [figure(name, results) for name in (TLS, *there) if name in results]


def figure(name: str, results: dict[str, list[dict]]) -> Result:
    rounds = results[name]
    details = {"mode": FSYNC, "rounds": results, "medians": summary(results)}
    cpu_us = median(rounds, "server_cpu_us_per_append")
    note = " ".join(["cpu_us", show(cpu_us) if cpu_us is not None else "-", caveats(rounds)]).rstrip()
    if PLAIN not in results:
        return Result("B15", f"{name} appends_per_s", median(rounds, "appends_per_s"), note=note, details=details)
    value = ratio(median(rounds, "appends_per_s"), median(results[PLAIN], "appends_per_s"))
    return Result("B15", f"{name}_ratio", value, note=note, details=details)
