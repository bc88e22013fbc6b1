"""Spark under test: a small local session, and a real standalone cluster on loopback (a master and two workers).
It owns the processes and ends them by their id; it imports nothing of the product but its session's defaults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import class_archive
from tests.support.ports import reserved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_QUICK = class_archive.options()
READY_S_MAX = 120.0


def local_session(directory: Path, **conf: str) -> SparkSession:
    from headwater.spark.session import session

    return session(
        "headwater tests",
        "local[2]",
        **{
            "spark_driver_memory": "1g",
            "spark_driver_extraJavaOptions": f"{JAVA_QUICK} -Dderby.system.home={directory}",
            "spark_sql_shuffle_partitions": "2",
            "spark_local_dir": str(directory),
            "spark_sql_warehouse_dir": str(directory / "warehouse"),
            **conf,
        },
    )


def spark_class() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent / "bin" / "spark-class")


class Cluster:
    """A running standalone cluster. Workers may be killed and started again by a test."""

    def __init__(self, directory: Path, port: int, web_port: int) -> None:
        self.directory = directory
        self.port = port
        self.web_port = web_port
        self.workers: list[subprocess.Popen[bytes]] = []
        self._master: subprocess.Popen[bytes] | None = None
        self._worker_count = 0

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @classmethod
    @contextmanager
    def started(cls, directory: Path, workers_count: int = 2) -> Iterator[Cluster]:
        with reserved(2) as ports:
            cluster = cls(directory, *ports)
            try:
                cluster.start()
                for _ in range(workers_count):
                    cluster.start_worker()
                cluster.wait_for_workers(workers_count)
                yield cluster
            finally:
                cluster.stop()

    def start(self) -> None:
        self._master = self._launch(
            "master",
            "org.apache.spark.deploy.master.Master",
            ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.web_port)],
        )

    def start_worker(self, cores: int = 1, memory: str = "1g") -> subprocess.Popen[bytes]:
        self._worker_count += 1
        work = self.directory / f"work-{self._worker_count}"
        worker = self._launch(
            f"worker-{self._worker_count}",
            "org.apache.spark.deploy.worker.Worker",
            [
                *("--host", "127.0.0.1", "--webui-port", "0", "--cores", str(cores), "--memory", memory),
                *("--work-dir", str(work), self.url),
            ],
        )
        self.workers.append(worker)
        return worker

    def kill_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """SIGKILL to the worker and to the executors it started: they share its session."""
        _end(worker, signal.SIGKILL)
        self.workers.remove(worker)

    def wait_for_workers(self, count: int) -> None:
        """Returns when the master knows so many workers that are alive."""
        address = f"http://127.0.0.1:{self.web_port}/json/"
        deadline_s = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline_s:
            with suppress(OSError, ValueError), urllib.request.urlopen(address, timeout=5) as answer:
                if json.load(answer)["aliveworkers"] == count:
                    return
            time.sleep(0.2)
        logs = "".join(path.read_text()[-2_000:] for path in sorted(self.directory.glob("*.log")))
        raise TimeoutError(f"the cluster has not {count} workers after {READY_S_MAX} s:\n{logs}")

    def stop(self) -> None:
        for process in [*self.workers, *([self._master] if self._master is not None else [])]:
            _end(process, signal.SIGKILL)
        self.workers.clear()

    def conf(self) -> Mapping[str, str]:
        """Settings of a session on this cluster, as `headwater.spark.session.session` takes them."""
        return {
            "spark_driver_host": "127.0.0.1",
            "spark_driver_bindAddress": "127.0.0.1",
            "spark_driver_memory": "1g",
            "spark_executor_memory": "512m",
            "spark_driver_extraJavaOptions": JAVA_QUICK,
            "spark_executor_extraJavaOptions": JAVA_QUICK,
            "spark_sql_shuffle_partitions": "2",
        }

    def _launch(self, name: str, main: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": JAVA_QUICK,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self.directory / f"{name}.log").open("wb") as log:
            # A session of its own: what it starts (executors, Python workers) can be ended with it.
            return subprocess.Popen(
                [spark_class(), main, *arguments], env=env, stdout=log, stderr=log, start_new_session=True
            )


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """The address of a real Spark Connect server, a process of its own with its own working directory."""
    with reserved(1) as (port,):
        yield from _serving(directory, port)


def _serving(directory: Path, port: int) -> Iterator[str]:
    import pyspark

    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": f"{JAVA_QUICK} -Dderby.system.home={directory}",
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--driver-memory", "1g", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    # The class is in Spark's own jars, so no application is named.
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    log = directory / "connect.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "spark-internal"], env=env, cwd=directory, stdout=out, stderr=out, start_new_session=True
        )
    try:
        deadline_s = time.monotonic() + READY_S_MAX
        while "Spark Connect server started" not in log.read_text():
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise TimeoutError(f"the Spark Connect server did not start:\n{log.read_text()[-2_000:]}")
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        _end(server, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    process.wait(timeout=30)
