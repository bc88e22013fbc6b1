"""The S3 of a local cluster: one SeaweedFS process.

Owns its configuration, its credentials and its buckets. All of its ports are reserved, so several may run at once.
"""

from __future__ import annotations

import json
from concurrent.futures import Executor
from pathlib import Path

from headwater.client.connection import Failed
from headwater.cluster_dev.binaries import WEED, program
from headwater.cluster_dev.child import Child
from headwater.cluster_dev.loopback import ask, environment
from headwater.cluster_dev.reserved_ports import HOST, ReservedPorts

READY_S_MAX = 60.0
ASK_S_MAX = 10.0
BUCKET = "headwater"
ACCESS_KEY, SECRET_KEY, REGION = "headwater", "headwater-secret", "us-east-1"
PORT_NAMES = ("master", "volume", "filer", "s3")


class S3Server(Child):
    def __init__(self, directory: Path, log: Path, spawner: Executor, ports: ReservedPorts) -> None:
        super().__init__("s3", log, spawner)
        self.directory = directory
        self._ports = {name: (ports.take(), ports.take()) for name in PORT_NAMES}
        """Of each of its services: for HTTP and for gRPC."""

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._ports['s3'][0]}"

    @property
    def credentials(self) -> dict[str, str]:
        """As variables for clients."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}

    def start(self, wait: bool = True) -> None:
        """Returns when the bucket is there and takes objects."""
        weed = program(WEED)
        self.directory.mkdir(parents=True, exist_ok=True)
        keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        identities = {"identities": [{"name": "all", "credentials": keys, "actions": ["Admin"]}]}
        (self.directory / "s3.json").write_text(json.dumps(identities))
        ports = [
            flag
            for name, (http, grpc) in self._ports.items()
            for flag in (f"-{name}.port={http}", f"-{name}.port.grpc={grpc}")
        ]
        command = [
            *(weed, "server", f"-dir={self.directory}", f"-ip={HOST}", f"-ip.bind={HOST}", "-master.telemetry=false"),
            *("-filer", "-s3", f"-s3.config={self.directory / 's3.json'}", *ports),
            *("-master.volumeSizeLimitMB=256", "-volume.max=100", "-master.resumeState=false"),
            # Its other services listen on fixed ports unless they are turned off.
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        ]
        self.spawn(command, environment())
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """An open port is too early: ready is when the bucket takes an object and S3 answers for it."""
        self.wait_until(self._takes_objects, "ready", READY_S_MAX)

    def _takes_objects(self) -> bool:
        filer, bucket = f"http://{HOST}:{self._ports['filer'][0]}", f"/buckets/{BUCKET}"
        try:
            made = ask(filer, f"{bucket}/", "POST", b"", ASK_S_MAX).status
            put = ask(filer, f"{bucket}/.ready", "PUT", b"1", ASK_S_MAX).status
            removed = ask(filer, f"{bucket}/.ready", "DELETE", None, ASK_S_MAX).status
            ask(self.endpoint, f"/{BUCKET}")  # unsigned: a refusal is an answer
        except Failed:
            return False
        return (made < 300 or made == 409) and put < 300 and removed < 300

    def stop(self) -> None:
        """SIGKILL: told to stop it takes more than ten seconds, and killed it loses nothing that it answered."""
        self.kill()

    def kill(self) -> None:
        super().kill()
        for port in (port for both in self._ports.values() for port in both):
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)
