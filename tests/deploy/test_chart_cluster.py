"""The Helm chart with the values of a cluster: rendered by helm, held against Kubernetes' schemas, read by the node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headwater import config
from headwater.cluster_groups import LEAVE_S_MAX
from headwater.setting_values import parse_listen
from tests.deploy.test_chart import CHART, VALUES, helm, notes, objects, pod_of, rendered
from tests.deploy.tools import program, ran

CLUSTER = {
    "replicas": 3,
    "cluster": {"log": "nats://nats-0.nats:4222,nats-1.nats:4222,nats-2.nats:4222", "secretName": "cluster-secret"},
    "settings": {"lake": "s3://bucket/lake", "workers": 4, "groups": 32},
}
OBJECTS = {**CLUSTER, "cluster": {"log": "s3://bucket/log", "secretName": "cluster-secret"}}
EVERYTHING = {**VALUES, **CLUSTER, "settings": {**VALUES["settings"], **CLUSTER["settings"]}}  # type: ignore[dict-item]
POD_VARIABLES = {"POD_NAME": "headwater-2", "POD_ZONE": ""}


def services(text: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in yaml.safe_load_all(text) if one and one["kind"] == "Service"}


def environment(text: str) -> dict[str, str]:
    """As the pod's node sees it: Kubernetes puts in what `$(NAME)` stands for."""
    given = {one["name"]: one.get("value", "") for one in pod_of(text)["containers"][0]["env"]}
    assert set(given) >= set(POD_VARIABLES)
    found = {name: re.sub(r"\$\((\w+)\)", lambda match: POD_VARIABLES[match[1]], text) for name, text in given.items()}
    return {name: value for name, value in found.items() if name.startswith("HEADWATER_")}


def settings_of(text: str, folder: Path) -> config.Settings:
    (folder / "headwater.toml").write_text(objects(text)["ConfigMap"]["data"]["headwater.toml"])
    return config.load({}, environment(text), folder / "headwater.toml")


@pytest.mark.parametrize("values", [CLUSTER, EVERYTHING], ids=["cluster", "everything"])
def test_helm_finds_nothing_wrong_with_the_chart(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, "--values", tmp_path / "values.yaml")


@pytest.mark.parametrize("version", ["1.25.0", "1.37.0"])
def test_kubernetes_knows_every_field_that_is_rendered(version: str, tmp_path: Path) -> None:
    (tmp_path / "rendered.yaml").write_text(rendered(tmp_path, EVERYTHING))
    tool = program("kubernetes-validate", "make setup")
    done = ran(tool, "--strict", "--kubernetes-version", version, tmp_path / "rendered.yaml")
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"passed for resource", done.stdout)) == 5


def test_the_schemas_of_kubernetes_find_a_planted_fault(tmp_path: Path) -> None:
    text = rendered(tmp_path, CLUSTER).replace("podManagementPolicy: Parallel", "podManagementPolicies: Parallel")
    (tmp_path / "rendered.yaml").write_text(text)
    done = ran(program("kubernetes-validate", "make setup"), "--strict", tmp_path / "rendered.yaml")
    assert done.returncode != 0 and "podManagementPolicies" in done.stdout


@pytest.mark.parametrize("values", [CLUSTER, OBJECTS], ids=["nats", "objects"])
def test_a_node_reads_the_settings_that_are_rendered(values: dict[str, Any], tmp_path: Path) -> None:
    settings = settings_of(rendered(tmp_path, values), tmp_path)
    assert settings.cluster == values["cluster"]["log"] and settings.lake == values["settings"]["lake"]
    assert (settings.workers, settings.groups) == (1, 32)
    assert settings.zone == "zone-"


def test_a_node_is_told_to_others_by_a_name_that_a_service_gives_it(tmp_path: Path) -> None:
    text = rendered(tmp_path, CLUSTER)
    settings, found = settings_of(text, tmp_path), objects(text)["StatefulSet"]["spec"]
    nodes = services(text)[found["serviceName"]]["spec"]
    # Without an address of its own a Service is one of names; nodes meet before they are ready.
    assert nodes["clusterIP"] == "None" and nodes["publishNotReadyAddresses"] is True
    assert nodes["selector"].items() <= found["template"]["metadata"]["labels"].items()
    host = f"{POD_VARIABLES['POD_NAME']}.{found['serviceName']}.streams.svc"
    assert parse_listen(settings.cluster_advertise) == (host, parse_listen(settings.cluster_listen)[1])
    assert parse_listen(settings.public_address) == (host, settings.listen_address[1])
    inside = {port["name"]: port["containerPort"] for port in pod_of(text)["containers"][0]["ports"]}
    assert inside == {port["targetPort"]: port["port"] for port in nodes["ports"]}
    assert inside["cluster"] == parse_listen(settings.cluster_listen)[1]


def test_clients_are_not_sent_to_a_node_that_is_not_ready(tmp_path: Path) -> None:
    clients = services(rendered(tmp_path, CLUSTER))["headwater"]["spec"]
    assert "publishNotReadyAddresses" not in clients
    assert {port["name"] for port in clients["ports"]} == {"http", "s3p"}


def test_the_secret_is_mounted_where_the_node_reads_it_and_for_the_node_alone(tmp_path: Path) -> None:
    text = rendered(tmp_path, CLUSTER)
    pod = pod_of(text)
    (volume,) = [one["secret"] for one in pod["volumes"] if one["name"] == "secret"]
    (mount,) = [one["mountPath"] for one in pod["containers"][0]["volumeMounts"] if one["name"] == "secret"]
    assert volume["secretName"] == CLUSTER["cluster"]["secretName"]  # type: ignore[index]
    assert f"{mount}/{volume['items'][0]['path']}" == settings_of(text, tmp_path).cluster_secret_file
    assert volume["defaultMode"] == 0o440 and pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_a_node_has_the_time_to_hand_its_groups_over(tmp_path: Path) -> None:
    pod = pod_of(rendered(tmp_path, CLUSTER))
    name, paused_s = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    needed_s = int(paused_s) + LEAVE_S_MAX + 2 * config.Settings().shutdown_grace_ms / 1_000
    assert name == "sleep" and pod["terminationGracePeriodSeconds"] > needed_s


def test_one_node_at_a_time_is_taken_away_and_they_lie_apart(tmp_path: Path) -> None:
    found = objects(rendered(tmp_path, CLUSTER))
    assert found["StatefulSet"]["spec"]["replicas"] == 3
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    labels = found["StatefulSet"]["spec"]["template"]["metadata"]["labels"].items()
    spread = found["StatefulSet"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    assert all(one["labelSelector"]["matchLabels"].items() <= labels for one in spread)


def test_probes_are_those_of_a_node_alone(tmp_path: Path) -> None:
    alone, node = (pod_of(rendered(tmp_path, values))["containers"][0] for values in ({}, CLUSTER))
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert node[probe] == alone[probe]


def test_more_replicas_start_no_pod_again(tmp_path: Path) -> None:
    three, five = (pod_of(rendered(tmp_path, {**CLUSTER, "replicas": count})) for count in (3, 5))
    assert three == five


def test_a_release_that_is_no_cluster_has_nothing_of_one(tmp_path: Path) -> None:
    text = rendered(tmp_path, {})
    assert "4439" not in text and "secret" not in text and "podManagementPolicy" not in text


def test_the_notes_say_how_to_look_at_the_cluster(tmp_path: Path) -> None:
    told = notes(tmp_path, CLUSTER, "headwater")
    for part in ("/__headwater/cluster", "s3://bucket/lake", "nats://nats-0.nats:4222", "data-headwater-N"):
        assert part in told
