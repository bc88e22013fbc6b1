"""What an operator asks of a node: settings in force, a checkpoint now, a shorter log, and who owns a group."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headwater import config
from headwater.config import Settings
from headwater.doors.http.admin.administration import in_force
from headwater.setting_values import REDACTED
from tests.doors.http.extensions.surface import TEXT, Stream, metric
from tests.doors.http.operations.conftest import FLAGS
from tests.support.http import EventStream
from tests.support.node import Node

GROUP = "/__headwater/groups/0"
PATIENT = ("--checkpoint-interval-ms", "3600000", "--flush-interval-ms", "86400000")


def test_every_setting_in_force_is_told(node: Node) -> None:
    found = node.request("GET", "/__headwater/config").json()["settings"]
    assert set(found) == {setting.name for setting in config.TABLE}
    assert found["checkpoint_interval_ms"] == int(FLAGS[1]) and found["body_bytes_max"] == 40 << 20
    assert found["memory"] is False and found["data"] == str(node.data_directory)


def test_credentials_in_a_setting_are_not_told() -> None:
    settings = dataclasses.replace(Settings(), lake_endpoint="https://key:secret@store.example:9000/x", lake="s3://b/p")
    found = in_force(settings)
    assert found["lake_endpoint"] == f"https://{REDACTED}@store.example:9000/x"
    assert found["lake"] == "s3://b/p"


def test_a_checkpoint_is_taken_when_it_is_asked_for(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=PATIENT) as node:
        stream = Stream(node, "/v1/stream/kept", TEXT)
        assert stream.create(b"one;").status == 201
        answer = node.request("POST", f"{GROUP}/snapshot")
        assert answer.status == 200, answer
        found = answer.json()
        position = node.request("GET", "/__headwater/groups").json()["groups"][0]["position"]
        assert found["group"] == 0 and found["rows"] > 0 and 0 < found["position"] <= position
        again = node.request("POST", f"{GROUP}/snapshot").json()
        assert again == {**found, "rows": 0}, "nothing changed since"
        node.restart()
        assert Stream(node, stream.path, TEXT).read().body == b"one;"


def test_purging_drops_log_files_that_the_lake_and_a_checkpoint_cover(tmp_path: Path) -> None:
    small = ("--log-file-bytes", "2MiB", "--body-bytes-max", "1MiB", "--s3p-append-bytes-max", "1MiB")
    with Node.started(tmp_path, flags=(*PATIENT, *small)) as node:
        stream = Stream(node, "/v1/stream/large", TEXT)
        assert stream.create().status == 201
        for _ in range(8):
            stream.append(b"x" * 900_000)
        kept = node.request("POST", f"{GROUP}/purge").json()
        assert kept["log_head"] == kept["log_head_before"], "only the log holds the records"
        assert node.request("POST", "/__headwater/flush").status == 200
        purged = node.request("POST", f"{GROUP}/purge").json()
        assert purged["log_head"] > purged["log_head_before"] == kept["log_head"]
        node.restart()
        assert len(Stream(node, stream.path, TEXT).read().body) > 0


def test_one_node_owns_its_groups_and_hands_them_to_nobody_else(node: Node) -> None:
    address = f"127.0.0.1:{node.port}"
    expected = {"group": 0, "owner": address, "worker": 0, "nodes": [address]}
    assert node.request("GET", f"{GROUP}/owner").json() == expected
    assert node.request("POST", f"{GROUP}/owner/{address}").json() == expected
    answer = node.request("POST", f"{GROUP}/owner/node-b")
    assert (answer.status, answer.json()["error"]["code"]) == (404, "no_such_node")
    assert address in answer.json()["error"]["message"]
    assert node.request("GET", f"{GROUP}/owner").json() == expected


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/__headwater/config", 405),
        ("GET", "/__headwater/config/listen", 404),
        ("GET", f"{GROUP}/snapshot", 405),
        ("GET", f"{GROUP}/purge", 405),
        ("POST", f"{GROUP}/purge/all", 404),
        ("POST", f"{GROUP}/owner", 405),
        ("GET", f"{GROUP}/owner/node-b", 405),
        ("POST", f"{GROUP}/owner/a/b", 404),
        ("POST", "/__headwater/groups/1/snapshot", 404),
        ("GET", "/__headwater/groups/1/owner", 404),
        ("GET", "/__headwater/groups/00/owner", 404),
        ("GET", "/__headwater/groups/x/owner", 404),
        ("GET", "/__headwater/groups/0/ownership", 404),
        ("GET", "/__headwater/groups/0", 404),
    ],
)
def test_other_methods_and_paths_are_refused(node: Node, method: str, path: str, status: int) -> None:
    assert node.request(method, path).status == status


def test_flushing_one_stream_settles_that_one_alone(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=PATIENT) as node:
        streams = [Stream(node, f"/v1/stream/lake/{name}", TEXT) for name in ("one", "two", "cli")]
        for stream in streams:
            assert stream.create(b"12345678").status == 201
        one = metric(node, "hot_bytes") / 3
        assert one >= 8
        answer = node.request("POST", "/__headwater/flush/lake/two")
        assert (answer.status, answer.json()["flushed_bytes"]) == (200, 8)
        assert metric(node, "hot_bytes") == 2 * one
        assert node.request("POST", "/__headwater/flush/lake/two").json()["flushed_bytes"] == 0
        assert node.request("POST", "/__headwater/flush/v1/stream/lake/cli").json()["flushed_bytes"] == 8
        assert node.request("POST", "/__headwater/flush/lake/none").status == 404
        node.restart()
        assert metric(node, "hot_bytes") == one
        assert [Stream(node, stream.path, TEXT).read().body for stream in streams] == [b"12345678"] * 3
        assert node.request("POST", "/__headwater/flush").json()["flushed_bytes"] == 8


def test_the_tail_of_many_streams_tells_a_stream_from_its_successor(node: Node) -> None:
    stream = Stream(node, "/v1/stream/tailed/again", TEXT)
    seen = []
    for body in (b"first;", b"second;"):
        assert stream.create(body).status == 201
        with node.connect() as connection:
            for event in EventStream.open(connection, "/__headwater/tail?stream=tailed/again&from=start"):
                if event.name == "data":
                    seen.append((event.json()["data"], event.json()["incarnation"]))
                    break
        assert stream.head().header("etag") == f'"{seen[-1][1]}:{len(body)}"'
        assert stream.delete().status == 204
    assert [data for data, _ in seen] == ["first;", "second;"]
    assert seen[0][1] != seen[1][1]
