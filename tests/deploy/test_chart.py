"""The Helm chart: rendered by helm, each object held against Kubernetes' schemas, its settings read by the node's code.
Nothing is installed anywhere: helm gets no cluster."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from headwater import __version__, config
from tests.deploy.dockerfile import DEPLOY, container_settings, one_of, stages, variables
from tests.deploy.tools import program, ran

CHART = DEPLOY / "helm" / "headwater"
# Every value that renders something of its own.
VALUES = {
    "image": {"tag": "1.2.3"},
    "imagePullSecrets": [{"name": "pull"}],
    "settings": {"connections_max": 30_000_000, "lake": 's3://bucket/a "quoted" & <odd> prefix'},
    "environmentSecret": "lake-credentials",
    "tls": {"secretName": "certificate"},
    "persistence": {"size": "1Ti", "storageClass": "fast"},
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "podAnnotations": {"c": "d"},
    "nodeSelector": {"disk": "local"},
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}


def helm(*arguments: object) -> str:
    # No configuration of the caller's reaches helm, so no cluster does.
    done = ran(program("helm", "make setup"), *arguments, env={"KUBECONFIG": "/dev/null", "HOME": "/nonexistent"})
    assert done.returncode == 0, done.stdout
    return done.stdout


def rendered(tmp_path: Path, values: dict[str, Any], chart: Path = CHART, release: str = "headwater") -> str:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    return helm("template", release, chart, "--namespace", "streams", "--values", tmp_path / "values.yaml")


def objects(text: str) -> dict[str, dict[str, Any]]:
    """By their kinds; of two Services the one that comes first, which is that of clients."""
    found: dict[str, dict[str, Any]] = {}
    for one in yaml.safe_load_all(text):
        if one:
            found.setdefault(one["kind"], one)
    return found


def pod_of(text: str) -> dict[str, Any]:
    return objects(text)["StatefulSet"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("values", [{}, VALUES], ids=["defaults", "everything"])
def test_helm_finds_nothing_wrong_with_the_chart(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, "--values", tmp_path / "values.yaml")


@pytest.mark.parametrize("version", ["1.25.0", "1.37.0"])
@pytest.mark.parametrize("values", [{}, VALUES], ids=["defaults", "everything"])
def test_kubernetes_knows_every_field_that_is_rendered(values: dict[str, Any], version: str, tmp_path: Path) -> None:
    (tmp_path / "rendered.yaml").write_text(rendered(tmp_path, values))
    tool = program("kubernetes-validate", "make setup")
    done = ran(tool, "--strict", "--kubernetes-version", version, tmp_path / "rendered.yaml")
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"passed for resource", done.stdout)) == 4


def test_the_schemas_of_kubernetes_find_a_planted_fault(tmp_path: Path) -> None:
    text = rendered(tmp_path, {}).replace("enableServiceLinks", "enableServiceLink")
    (tmp_path / "rendered.yaml").write_text(text)
    done = ran(program("kubernetes-validate", "make setup"), "--strict", tmp_path / "rendered.yaml")
    assert done.returncode != 0 and "enableServiceLink" in done.stdout


@pytest.mark.parametrize(
    "values",
    [
        {"settings": {"data": "/elsewhere"}},
        {"settings": {"listen": "0.0.0.0:80"}},
        {"settings": {"log_level": None, "Workers": 2}},
        {"settings": {"workers": 1.5}},
        {"replicas": 3},
        {"replicas": 0},
        {"cluster": {"log": "nats://a:4222"}, "settings": {"lake": "s3://bucket"}},
        {"cluster": {"log": "nats://a:4222", "secretName": "s"}},
        {"cluster": {"log": "file:///tmp", "secretName": "s"}, "settings": {"lake": "s3://bucket"}},
        {"settings": {"cluster": "nats://a:4222"}},
        {"settings": {"zone": "a"}},
        {"service": {"type": "Headless"}},
        {"persistence": {"size": "much"}},
        {"podDisruptionBudget": {"maxUnavailable": -1}},
    ],
)
def test_values_that_the_chart_cannot_keep_are_refused(values: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="values don't meet the specifications of the schema"):
        rendered(tmp_path, values)


@pytest.mark.parametrize("values", [{}, VALUES], ids=["defaults", "everything"])
def test_the_node_reads_the_settings_that_are_rendered(values: dict[str, Any], tmp_path: Path) -> None:
    text = objects(rendered(tmp_path, values))["ConfigMap"]["data"]["headwater.toml"]
    if values:  # More than is allowed, to show how long numbers are written.
        assert "connections_max = 30000000\n" in text
        text = text.replace("30000000", "30000")
    (tmp_path / "headwater.toml").write_text(text)
    settings = config.load({}, {}, tmp_path / "headwater.toml")
    image = container_settings()
    assert (settings.listen, settings.s3p, settings.data) == (image.listen, image.s3p, image.data)
    if values:
        assert settings.connections_max == 30_000 and settings.lake == VALUES["settings"]["lake"]  # type: ignore[index]


def test_the_pod_is_what_the_image_expects(tmp_path: Path) -> None:
    pod = pod_of(rendered(tmp_path, {}))
    container = pod["containers"][0]
    user, group = map(int, one_of(stages()[-1], "USER").split(":"))
    rights = pod["securityContext"]
    assert (rights["runAsUser"], rights["runAsGroup"], rights["fsGroup"]) == (user, group, group)
    assert container["image"] == f"headwater:{__version__}"
    assert container["args"][-1] == variables(stages()[-1])["HEADWATER_CONFIG"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["data"] == one_of(stages()[-1], "VOLUME")
    assert Path(container["args"][-1]).parent == Path(mounts["settings"])
    assert pod["terminationGracePeriodSeconds"] * 1_000 > config.Settings().shutdown_grace_ms


def test_probes_ask_for_health_and_readiness_on_a_port_of_the_service(tmp_path: Path) -> None:
    text = rendered(tmp_path, {})
    container = pod_of(text)["containers"][0]
    asked = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert asked == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    inside = {port["name"]: port["containerPort"] for port in container["ports"]}
    outside = {port["targetPort"]: port["port"] for port in objects(text)["Service"]["spec"]["ports"]}
    assert inside == outside == {"http": 4437, "s3p": 4438}


def test_service_and_budget_select_the_pod(tmp_path: Path) -> None:
    found = objects(rendered(tmp_path, {}))
    labels = found["StatefulSet"]["spec"]["template"]["metadata"]["labels"].items()
    assert found["Service"]["spec"]["selector"].items() <= labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels
    assert found["StatefulSet"]["spec"]["serviceName"] == found["Service"]["metadata"]["name"]


def test_kubernetes_sets_no_variables_that_the_node_would_refuse(tmp_path: Path) -> None:
    # Those of a Service called headwater.
    with pytest.raises(config.BadSettings):
        config.load({}, {"HEADWATER_PORT": "tcp://10.0.0.1:4437"}, None)
    assert pod_of(rendered(tmp_path, {}))["enableServiceLinks"] is False


def test_changed_settings_start_the_pod_again(tmp_path: Path) -> None:
    def mark(values: dict[str, Any]) -> str:
        template = objects(rendered(tmp_path, values))["StatefulSet"]["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/settings"]

    assert mark({}) == mark({"podAnnotations": {"a": "b"}}) != mark({"settings": {"log_level": "debug"}})


def notes(tmp_path: Path, values: dict[str, Any], release: str) -> str:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    # helm shows notes only to who installs on a cluster; as an annotation of an object they are rendered without one.
    (chart / "templates" / "NOTES.txt").rename(chart / "notes")
    wrapped = '{{ dict "kind" "Notes" "apiVersion" "v1" "text" (tpl (.Files.Get "notes") .) | toJson }}\n'
    (chart / "templates" / "notes.yaml").write_text(wrapped)
    return objects(rendered(tmp_path, values, chart, release))["Notes"]["text"]


def test_the_notes_name_what_was_made(tmp_path: Path) -> None:
    name = objects(rendered(tmp_path, {}, release="mine"))["Service"]["metadata"]["name"]
    told = notes(tmp_path, {"service": {"type": "NodePort"}}, "mine")
    addresses = (f"http://{name}.streams:4437", f"{name}.streams:4438")
    for part in (*addresses, f"statefulset/{name}", f"data-{name}-0", "NodePort"):
        assert part in told


def test_the_chart_has_the_version_of_the_product() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


def test_with_a_certificate_its_files_are_where_the_settings_say_and_probes_use_https(tmp_path: Path) -> None:
    pod = pod_of(rendered(tmp_path, {"tls": {"secretName": "certificate"}}))
    container = pod["containers"][0]
    named = {one["name"]: one["value"] for one in container["env"]}
    found = config.load({}, named, None)
    (mount,) = (one["mountPath"] for one in container["volumeMounts"] if one["name"] == "tls")
    assert (found.tls_certificate, found.tls_key) == (f"{mount}/tls.crt", f"{mount}/tls.key")
    assert [one["secret"]["secretName"] for one in pod["volumes"] if one["name"] == "tls"] == ["certificate"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    plain = pod_of(rendered(tmp_path, {}))["containers"][0]
    assert "env" not in plain and "scheme" not in plain["readinessProbe"]["httpGet"]
