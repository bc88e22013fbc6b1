"""deploy/Dockerfile and deploy/compose.yaml as texts: judged by hadolint and the schema of Compose, and held together.
What the Dockerfile's commands do is in test_image_contents.py."""

from __future__ import annotations

import fnmatch
import tomllib

import yaml

from headwater import config
from tests.deploy.dockerfile import (
    DEPLOY,
    DOCKERFILE,
    FILES_MAX,
    ROOT,
    all_of,
    container_settings,
    copied_from_the_tree,
    one_of,
    stages,
    variables,
)
from tests.deploy.tools import program, ran


def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = ran(program("hadolint", "make setup"), "--no-color", "--failure-threshold", "info", DOCKERFILE)
    assert done.returncode == 0, done.stdout


def test_hadolint_finds_a_planted_fault(tmp_path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.read_text().replace("USER 10001:10001", "USER root"))
    done = ran(program("hadolint", "make setup"), "--no-color", tmp_path / "Dockerfile")
    assert done.returncode != 0 and "DL3002" in done.stdout


def test_the_image_runs_as_a_number_that_is_not_root() -> None:
    user, group = one_of(stages()[-1], "USER").split(":")
    assert int(user) > 0 and int(group) > 0


def test_base_images_are_pinned_to_a_version_and_name_no_host() -> None:
    for stage in stages():
        image = one_of(stage, "FROM").split()[0]
        name, _, tag = image.partition(":")
        assert "/" not in name and tag[0].isdigit(), image


def test_the_settings_of_the_image_are_valid_and_agree_with_its_ports_and_volume() -> None:
    image = stages()[-1]
    settings = container_settings()
    assert settings.listen_address[0] == "0.0.0.0" and settings.s3p_address is not None
    assert one_of(image, "EXPOSE").split() == [str(settings.listen_address[1]), str(settings.s3p_address[1])]
    assert one_of(image, "VOLUME") == settings.data
    assert settings.workers == config.AUTO
    assert dict(copied_from_the_tree(image))["deploy/container.toml"] == variables(image)["HEADWATER_CONFIG"]


def test_no_variable_of_the_image_would_win_over_a_mounted_file() -> None:
    named = {name for name in variables(stages()[-1]) if name.startswith("HEADWATER_")}
    assert named == {config.CONFIG_VARIABLE}


def test_what_the_build_copies_is_all_that_it_is_sent() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    sources = {source for stage in stages() for source, _ in copied_from_the_tree(stage)}
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == sources
    assert all((ROOT / source).exists() for source in sources)
    assert any(fnmatch.fnmatch("src/headwater/__pycache__", rule.replace("**", "*")) for rule in rules[1:])


def test_the_compose_file_fits_the_schema_of_compose() -> None:
    tool = program("check-jsonschema", "make setup")
    done = ran(tool, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stdout


def test_the_schema_of_compose_finds_a_planted_fault(tmp_path) -> None:
    text = (DEPLOY / "compose.yaml").read_text().replace("read_only: true", "readonly: true")
    (tmp_path / "compose.yaml").write_text(text)
    tool = program("check-jsonschema", "make setup")
    done = ran(tool, "--builtin-schema", "vendor.compose-spec", tmp_path / "compose.yaml")
    assert done.returncode != 0 and "readonly" in done.stdout


def test_compose_publishes_the_ports_of_the_image_to_this_machine_only() -> None:
    ports = compose()["services"]["headwater"]["ports"]
    exposed = one_of(stages()[-1], "EXPOSE").split()
    assert ports == [f"127.0.0.1:{port}:{port}" for port in exposed]


def test_compose_builds_this_dockerfile_and_keeps_the_data_in_a_volume() -> None:
    content = compose()
    service = content["services"]["headwater"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DOCKERFILE
    assert service["volumes"] == [f"data:{container_settings().data}"] and "data" in content["volumes"]
    assert service["ulimits"]["nofile"] == FILES_MAX


def test_the_variables_of_compose_are_settings() -> None:
    given = compose()["services"]["headwater"]["environment"]
    config.load({}, given, DEPLOY / "container.toml")


def test_the_image_is_built_with_the_python_that_the_project_asks_for() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert all(one_of(stage, "FROM").split()[0] == f"python:{wanted}-slim" for stage in stages())
    assert all_of(stages()[0], "RUN")
