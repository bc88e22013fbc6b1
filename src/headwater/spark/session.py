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
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_MIN = (4, 2)
JAVA_MIN = 17
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


class SparkMissing(Exception):
    """Spark cannot start here; the message says what is missing and how to get it."""


class Finding(NamedTuple):
    what: str
    found: str
    advice: str
    """What to do; empty when all is well."""


def findings() -> list[Finding]:
    """What Spark needs of this machine, as it is. Costs a start of `java -version`."""
    return [_pyspark(), _pandas(), _java()]


def session(app: str, master: str | None = None, **conf: str) -> SparkSession:
    """The running session, or a new one: `master`, else what Spark's own settings say, else `local[*]`.

    Names in `conf` are written with underscores for dots. Raises SparkMissing.
    """
    wrong = [finding for finding in findings() if finding.advice]
    if wrong:
        raise SparkMissing("; ".join(f"{finding.what}: {finding.found}. {finding.advice}" for finding in wrong))
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    # Workers would pick whatever `python3` is first in their path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    given = SparkConf()
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    elif not given.contains("spark.master"):
        builder = builder.master("local[*]")
    chosen = master or given.get("spark.master", "local[*]") or "local[*]"
    if chosen.startswith("local") and not given.contains("spark.driver.bindAddress"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    for name, value in DEFAULTS.items():
        if not given.contains(name):
            builder = builder.config(name, value)
    for name, value in conf.items():
        builder = builder.config(name.replace("_", "."), value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
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
