"""What the Dockerfile's commands make: its build steps run here, word for word, in a folder instead of an image.
The node then runs from it as the image's user, who can write nothing but the data. Only paths and addresses differ."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.deploy.dockerfile import (
    DEPLOY,
    ROOT,
    all_of,
    copied_from_the_tree,
    health_command,
    one_of,
    stages,
    variables,
)
from tests.deploy.tools import program, ran
from tests.support.guarded import FIRST, bearer
from tests.support.http import request
from tests.support.node import READY

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

BUILD_TIMEOUT_S = 600.0
WAIT_S = 60.0
NO_NETWORK = re.compile(r"NewConnectionError|NameResolutionError|Temporary failure|ConnectTimeout|ReadTimeout")
# One that found its library elsewhere than beside itself is not whole for that user.
USABLE = """
import ensurepip, os, ssl, sqlite3, sys
sys.exit(sys.version_info < (3, 11) or not os.path.realpath(sys.executable).startswith(sys.prefix))
"""


class Image(NamedTuple):
    """A folder that holds what the image would."""

    root: Path

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def programs(self) -> Path:
        return self.root / "opt" / "headwater" / "bin"

    @property
    def settings(self) -> Path:
        return self.root / "headwater.toml"

    @property
    def wheel(self) -> Path:
        (found,) = (self.build / "wheels").glob("*.whl")
        return found


def as_user() -> list[str]:
    """What a command is prefixed with to run as the image's user; nothing when the tests are not root's."""
    if os.geteuid() != 0:
        return []
    user, group = one_of(stages()[-1], "USER").split(":")
    tool = program("setpriv", "it is part of util-linux")
    rights = ["--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    return [tool, f"--reuid={user}", f"--regid={group}", *rights]


def python_for_everybody() -> str:
    """A Python that the image's user can read as well: the tests' own may be in somebody's home."""
    candidates = [os.path.realpath(sys.executable), "/usr/local/bin/python3", "/usr/bin/python3"]
    for candidate in candidates:
        if Path(candidate).exists() and ran(*as_user(), candidate, "-I", "-c", USABLE).returncode == 0:
            return candidate
    pytest.skip(f"the image's user can run none of {', '.join(candidates)} with venv and pip")


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    # Not tmp_path, which only its owner may enter.
    with tempfile.TemporaryDirectory(prefix="headwater-image-") as folder:
        made = Image(Path(folder).resolve())
        made.root.chmod(0o755)
        for source, target in copied_from_the_tree(stages()[0]):
            copy_source(ROOT / source, made.build / target / (source if target == "./" else ""))
        shutil.copy(DEPLOY / "container.toml", made.settings)
        python = made.root / "python"
        done = ran(python_for_everybody(), "-m", "venv", python)
        assert done.returncode == 0, done.stdout
        path = f"{python / 'bin'}{os.pathsep}{os.environ['PATH']}"
        for step in all_of(stages()[0], "RUN"):
            # The cache of pip is the one thing that is different here: it spares the download.
            script = step.replace("/opt/headwater", str(made.root / "opt" / "headwater")).replace("--no-cache-dir ", "")
            done = ran("sh", "-ec", script, timeout_s=BUILD_TIMEOUT_S, cwd=made.build, env={**os.environ, "PATH": path})
            if done.returncode != 0 and NO_NETWORK.search(done.stdout):
                pytest.skip("the packages that the image holds cannot be downloaded here")
            assert done.returncode == 0, f"{script}\n{done.stdout}"
        if os.geteuid() != 0:
            ran("chmod", "-R", "a-w", made.root / "opt")
        yield made
        if os.geteuid() != 0:
            ran("chmod", "-R", "u+w", made.root / "opt")


def copy_source(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


@pytest.fixture
def data(image: Image) -> Iterator[Path]:
    folder = image.root / "data"
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        user, group = one_of(stages()[-1], "USER").split(":")
        os.chown(folder, int(user), int(group))
    yield folder
    shutil.rmtree(folder)


@contextmanager
def container(image: Image, data: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The image's command as its user and with its variables; the process and its port. None is left afterwards."""
    inside = variables(stages()[-1])
    environment = {
        **inside,
        "PATH": inside["PATH"].replace("/opt/headwater/bin", str(image.programs)).replace("$PATH", "/usr/bin:/bin"),
        "HEADWATER_CONFIG": str(image.settings),
        "HEADWATER_DATA": str(data),
        # Only loopback is listened on here; variables win over the file, as the guide says.
        "HEADWATER_LISTEN": "127.0.0.1:0",
        "HEADWATER_S3P": "127.0.0.1:0",
        "PYTHONUNBUFFERED": "1",
    }
    command = [*re.findall(r'"(.*?)"', one_of(stages()[-1], "ENTRYPOINT") + one_of(stages()[-1], "CMD"))]
    command[0] = str(image.programs / command[0])
    with (
        (image.root / "output").open("w") as output,
        subprocess.Popen(
            [*as_user(), *command],
            cwd=data if os.geteuid() != 0 else "/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process, ready_port(process, image.root / "output")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def ready_port(process: subprocess.Popen[str], output: Path) -> int:
    deadline_s = time.monotonic() + WAIT_S
    while (found := READY.search(output.read_text())) is None:
        assert process.poll() is None and time.monotonic() < deadline_s, output.read_text()
        time.sleep(0.02)
    return int(found[1])


def health(image: Image, port: int) -> int:
    command = [word.replace("4437", str(port)) for word in health_command(stages()[-1])]
    return ran(*as_user(), image.programs / command[0], *command[1:], env={}).returncode


def test_the_wheel_holds_every_module_and_nothing_else(image: Image) -> None:
    packages = [ROOT / "src" / "headwater", ROOT / "src" / "pyspark_headwater"]
    files = [path for package in packages for path in package.rglob("*") if path.is_file()]
    wanted = {str(path.relative_to(ROOT / "src")) for path in files if "__pycache__" not in path.parts}
    held = {name for name in zipfile.ZipFile(image.wheel).namelist() if ".dist-info/" not in name}
    assert held == wanted


def test_every_module_of_a_node_can_be_imported_from_the_image(image: Image) -> None:
    walk = (
        "import importlib, pkgutil, headwater\n"
        "for found in pkgutil.walk_packages(headwater.__path__, 'headwater.'):\n"
        # Spark and OpenTelemetry are extras that the image does not have; __main__ would run.
        "    extra = found.name.startswith(('headwater.spark', 'headwater.observe.tracing'))\n"
        "    if not extra and not found.name.endswith('__main__'):\n"
        "        importlib.import_module(found.name)\n"
        "print(headwater.__file__)\n"
    )
    done = ran(*as_user(), image.programs / "python", "-I", "-c", walk, cwd="/")
    assert done.returncode == 0, done.stdout
    assert str(image.root) in done.stdout


def test_the_image_holds_neither_pip_nor_what_only_tests_need(image: Image) -> None:
    listing = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    held = set(ran(image.programs / "python", "-I", "-c", listing).stdout.split())
    assert "headwater" in held and not held & {"pip", "setuptools", "pytest", "ruff", "pyspark"}


def test_the_node_of_the_image_serves_stops_and_finds_its_data_again(image: Image, data: Path) -> None:
    json = {"Content-Type": "application/json"}
    with container(image, data) as (process, port):
        assert request(port, "PUT", "/v1/stream/kept", json).status == 401
        key = bearer(FIRST.search((image.root / "output").read_text())[1])  # type: ignore[index]
        json |= key
        assert health(image, port) == 0
        assert request(port, "GET", "/readyz").status == 200
        assert request(port, "PUT", "/v1/stream/kept", json).status == 201
        assert request(port, "POST", "/v1/stream/kept", json, b'{"n":1}').status in (200, 204)
        # Through pyarrow and deltalake, of which the build removes parts.
        assert request(port, "POST", "/__headwater/flush", key).status == 200
        owners = {path.stat().st_uid for path in data.rglob("*")}
        process.send_signal(getattr(signal, one_of(stages()[-1], "STOPSIGNAL")))
        assert process.wait(WAIT_S) == 0
        assert health(image, port) != 0
    assert owners == {int(one_of(stages()[-1], "USER").split(":")[0]) if os.geteuid() == 0 else os.geteuid()}
    with container(image, data) as (_, port):
        assert request(port, "GET", "/v1/stream/kept?offset=-1", key).body == b'[{"n":1}]'


def test_the_user_of_the_image_can_change_no_file_of_it(image: Image) -> None:
    probe = "import os, sys; print(sum(os.access(d, os.W_OK) for d, _, _ in os.walk(sys.argv[1])))"
    done = ran(*as_user(), image.programs / "python", "-I", "-c", probe, image.root / "opt")
    assert done.stdout.strip() == "0"
