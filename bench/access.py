"""B16, appends with a credential: a key or a signed token with each request, beside a node that asks for none.

Owns the key, the token and what signs it. The load itself is `load`.
"""

import dataclasses
import http.client
import json
import tempfile
import time
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from bench.append import caveats, load_spec, run_load, summary
from bench.generator import Failed
from bench.peers import FSYNC, MEMORY, Peer, Server, headwater
from bench.report import Result, show
from bench.rounds import Settings, alternate, median, ratio
from headwater.ports import SystemRng
from headwater.security import keys

OPEN, KEY, TOKEN = "open", "key", "token"
ISSUER, AUDIENCE = "https://id.example.com", "headwater"
SCOPE = "create,append:bench"
AIM = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Credentials:
    admin_file: Path
    admin: str
    keys_file: Path
    token: str

    @classmethod
    def made(cls, directory: Path) -> "Credentials":
        admin = keys.make(SystemRng()).text
        signs = ECKey.generate_key("P-256", {"kid": "bench"})
        made = cls(directory / "admin-key", admin, directory / "jwks.json", signed(signs))
        for path, text in (
            (made.admin_file, admin),
            (made.keys_file, json.dumps(KeySet([signs]).as_dict(private=False))),
        ):
            path.write_text(text)
            path.chmod(0o600)
        return made

    def flags(self) -> list[str]:
        issuer = ["--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE]
        return ["--auth", "on", "--admin-key-file", str(self.admin_file), "--jwt-keys", str(self.keys_file), *issuer]

    def bearer(self, server: Server) -> str | None:
        if server.peer.name == OPEN:
            return None
        return f"Bearer {self.token if server.peer.name == TOKEN else self.new_key(server)}"

    def new_key(self, server: Server) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        body = json.dumps({"name": "bench", "scopes": [SCOPE]})
        connection.request("POST", "/__headwater/tokens", body, {"Authorization": f"Bearer {self.admin}"})
        answer = connection.getresponse()
        told = answer.read()
        connection.close()
        if answer.status != 201:
            raise Failed(f"no key was made: {answer.status} {told[:300]!r}")
        made: str = json.loads(told)["token"]
        return made


def signed(key: ECKey) -> str:
    now_s = int(time.time())
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "bench", "scope": SCOPE, "iat": now_s, "exp": now_s + 3_600}
    return jwt.encode({"alg": "ES256", "kid": "bench"}, said, key, ["ES256"])


def run_b16(settings: Settings) -> list[Result]:
    found = []
    with tempfile.TemporaryDirectory() as directory:
        credentials = Credentials.made(Path(directory))
        for mode in (FSYNC, MEMORY):
            found += _compared(settings, mode, credentials)
    return found


def _compared(settings: Settings, mode: str, credentials: Credentials) -> list[Result]:
    plain = headwater(mode)

    def peer(name: str) -> Peer:
        flags = [] if name == OPEN else credentials.flags()
        return dataclasses.replace(plain, name=name, command=lambda data: [*plain.command(data), *flags])

    def measure(server: Server) -> dict:
        return run_load(load_spec(server, settings, authorization=credentials.bearer(server)))

    results = alternate(settings, tuple(peer(name) for name in (OPEN, KEY, TOKEN)), measure)
    details = {"mode": mode, "rounds": results, "medians": summary(results)}
    if OPEN not in results:
        ((name, rounds),) = results.items()
        return [Result("B16", f"{name} {mode} appends_per_s", median(rounds, "appends_per_s"), details=details)]
    before = median(results[OPEN], "appends_per_s")
    cpu_before = median(results[OPEN], "server_cpu_us_per_append")
    figures = []
    for name in (KEY, TOKEN):
        if name not in results:
            continue
        cpu = ratio(median(results[name], "server_cpu_us_per_append"), cpu_before)
        note = " ".join(["cpu_ratio", show(cpu), caveats(results[name])]).rstrip()
        value = ratio(median(results[name], "appends_per_s"), before)
        figures.append(Result("B16", f"{name}_{mode}_ratio", value, AIM, note=note, details=details))
    return figures
