"""A Spark session as the jobs want it, and what is missing when there can be none.

Owns the defaults: this Python in the workers, loopback only, quiet. Never overrides what the user's Spark settings say.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from headwater.spark.failures import cause
from headwater.spark.launch import refusal, starting, why

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_MIN = (4, 2)
JAVA_MIN = 17
SESSION_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
DEFAULTS = {"spark.ui.enabled": "false", **SESSION_DEFAULTS}
QUIET = {"spark.ui.showConsoleProgress": "false"}
"""Asked for at the start: Spark takes a session in Python for a shell, and sets it to true there."""
LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
"""Where the master is this machine."""
ADVICE = "Name the Spark to run on with --master, such as local[*] or spark://HOST:7077"


_NONE: Mapping[str, str] = MappingProxyType({})


class SparkMissing(Exception):
    """Spark cannot start here; the message says what is missing and how to get it."""


class Finding(NamedTuple):
    what: str
    found: str
    advice: str
    """What to do; empty when all is well."""


def findings(connect: bool = False) -> list[Finding]:
    """What Spark needs of this machine, as it is. Costs a start of `java -version`, but for Spark Connect."""
    return [_pyspark(), _pandas(), _connect() if connect else _java()]


def session(
    app: str,
    master: str | None = None,
    *,
    verbose: bool = False,
    settings: Mapping[str, str] = _NONE,
    **conf: str,
) -> SparkSession:
    """The running session, or a new one: on `master`, else on what Spark's own settings say, else on `local[*]`.

    A master `sc://…` is a Spark Connect server. `settings` are Spark's, by name; names in `conf` are written with
    underscores for dots. What Spark says while it starts is left out unless `verbose`. Raises SparkMissing, also for a
    setting that a Connect server does not take from a session.
    """
    remote = _remote(master)
    wrong = [finding for finding in findings(remote is not None) if finding.advice]
    if wrong:
        raise SparkMissing("; ".join(f"{finding.what}: {finding.found}. {finding.advice}" for finding in wrong))
    # Workers would pick whatever `python3` is first in their path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {**{name.replace("_", "."): value for name, value in conf.items()}, **settings}
    named = remote or master
    if named is not None and (refused := refusal(named)) is not None:
        raise SparkMissing(refused)
    if remote is not None:
        return _connected(app, remote, settings)
    return _started(app, master, settings, verbose)


def _started(app: str, master: str | None, settings: dict[str, str], verbose: bool) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    if SparkContext._active_spark_context is not None:
        return builder.getOrCreate()
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    asked = {"spark.app.name": app, **QUIET, **({} if master is None else {"spark.master": master}), **settings}
    try:
        with starting(SparkConf(loadDefaults=False).setAll(list(asked.items())), verbose) as gateway:
            # All of Spark's own settings, its files and arguments included: only the JVM knows them.
            given = SparkConf(_jvm=gateway.jvm).setAll(list(asked.items()))
            local = (given.get("spark.master") or "local").startswith("local")
            for name, value in (DEFAULTS | LOOPBACK if local else DEFAULTS).items():
                given.setIfMissing(name, value)
            context = SparkContext(conf=given, gateway=gateway)
            made = builder.getOrCreate()
            if not verbose:
                context.setLogLevel("ERROR")
            return made
    except Exception as error:
        where = "" if master is None else f" on {master}"
        raise SparkMissing(f"Spark did not start{where}: {why(error)}. {ADVICE}") from error


def _remote(master: str | None) -> str | None:
    if master is not None:
        return master if master.startswith("sc://") else None
    return os.environ.get("SPARK_REMOTE")


def _connected(app: str, remote: str, settings: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        builder = SparkSession.builder.appName(app).remote(remote)
        for name, value in SESSION_DEFAULTS.items():
            builder = builder.config(name, value)
        made = builder.getOrCreate()
        made.range(1).count()  # the first call that needs the server
    except Exception as error:
        raise SparkMissing(f"there is no session at {remote}: {cause(error)}. {ADVICE}") from error
    for name, value in settings.items():
        try:
            # Not with the builder: that passes over what the server refuses.
            made.conf.set(name, value)
        except Exception as error:
            made.stop()
            if "CANNOT_MODIFY" not in str(error):
                raise SparkMissing(
                    f"the Spark Connect server at {remote} does not take {name}: {cause(error)}"
                ) from error
            raise SparkMissing(
                f"the Spark Connect server at {remote} takes {name} only when it starts: set it there, and leave it out"
            ) from error
    return made


def _pyspark() -> Finding:
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return Finding("pyspark", "not installed", "Install it with: pip install 'headwater[spark]'")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    advice = "" if numbers >= PYSPARK_MIN else "Upgrade it with: pip install 'headwater[spark]'"
    return Finding("pyspark", version, advice)


def _pandas() -> Finding:
    try:
        version = importlib.metadata.version("pandas")
    except importlib.metadata.PackageNotFoundError:
        return Finding("pandas", "not installed", "Install it with: pip install 'headwater[spark]'")
    advice = "" if int(version.split(".")[0]) < 3 else "Install one below 3 with: pip install 'pandas<3'"
    return Finding("pandas", version, advice)


def _connect() -> Finding:
    """The packages that PySpark needs as a client of Spark Connect, which it does not bring along."""
    wanted = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")
    try:
        versions = [importlib.metadata.version(name) for name in wanted]
    except importlib.metadata.PackageNotFoundError as missing:
        what = f"{missing.name} is not installed"
        return Finding("Spark Connect", what, "Install what it needs with: pip install 'pyspark[connect]'")
    return Finding("Spark Connect", f"grpcio {versions[0]}", "")


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = f"Install Java {JAVA_MIN} or later, on Debian: apt-get install openjdk-{JAVA_MIN}-jre-headless"
    if program is None or not Path(program).is_file():
        return Finding("java", "not found" if home is None else f"not found below JAVA_HOME ({home})", advice)
    try:
        shown = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", f"{program} does not run ({error})", advice)
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < JAVA_MIN:
        return Finding("java", shown.partition("\n")[0] or "of an unknown version", advice)
    return Finding("java", shown.partition("\n")[0], "")
