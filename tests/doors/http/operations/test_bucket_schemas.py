"""The JSON schema of a bucket over HTTP: kept, versioned, gone with its bucket, and no judge of appends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.node import Node

JSON = {"Content-Type": "application/json"}
PATH = "/__headwater/buckets/{}/schema"


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in properties.items()}}


def put(node: Node, bucket: str, document: Any, **headers: str) -> Any:
    return node.request(
        "PUT",
        PATH.format(bucket),
        {**JSON, **{k.replace("_", "-"): v for k, v in headers.items()}},
        json.dumps(document).encode(),
    )


def test_a_schema_counts_versions_and_goes_with_its_bucket(node: Node) -> None:
    path = PATH.format("kept")
    assert put(node, "kept", schema(n="integer")).json()["error"]["code"] == "bucket_not_found"
    node.request("PUT", "/kept")
    assert node.request("GET", path).json()["error"]["code"] == "schema_not_found"

    first = put(node, "kept", schema(n="integer"))
    assert (first.status, first.json()["version"], first.header("etag")) == (200, 1, '"1"')
    assert put(node, "kept", schema(n="integer")).json()["version"] == 1
    assert put(node, "kept", schema(n="number"), If_Match='"7"').status == 412
    assert put(node, "kept", schema(n="number"), If_Match='"1"').json()["version"] == 2
    shown = node.request("GET", path)
    assert (shown.json()["schema"], shown.header("etag")) == (schema(n="number"), '"2"')
    assert node.request("HEAD", path).status == 200

    assert node.request("DELETE", path, {"If-Match": '"1"'}).status == 412
    assert node.request("DELETE", path).status == 204
    assert (node.request("GET", path).status, node.request("DELETE", path).status) == (404, 404)
    assert put(node, "kept", schema(n="number"), If_Match="*").status == 412
    assert put(node, "kept", schema(n="number"), If_Match='"0"').json()["version"] == 3

    assert node.request("DELETE", "/kept").status == 204
    assert node.request("GET", path).json()["error"]["code"] == "bucket_not_found"
    node.request("PUT", "/kept")
    assert node.request("GET", path).json()["error"]["code"] == "schema_not_found"
    assert put(node, "kept", schema(n="integer")).json()["version"] == 1


def test_what_no_columns_can_be_made_of_is_refused_and_appends_are_not_looked_at(node: Node) -> None:
    node.request("PUT", "/plain")
    refused = put(node, "plain", schema(n="integr"))
    assert (refused.status, refused.json()["error"]["code"]) == (400, "bad_schema")
    assert "/properties/n/type" in refused.json()["error"]["message"]
    assert node.request("POST", PATH.format("plain")).status == 405
    assert put(node, "plain", schema(n="integer"), If_Match="1").json()["error"]["code"] == "bad_header"

    deep = json.loads("[" * 800 + "]" * 800)
    assert put(node, "plain", {**schema(n="integer"), "default": deep}).status == 200
    assert node.request("GET", PATH.format("plain")).json()["schema"]["default"] == deep
    node.request("PUT", "/plain/a", JSON)
    assert node.request("POST", "/plain/a", JSON, b'{"n": "no number"}').status == 204


def test_a_bucket_that_was_never_made_by_name_has_no_schema_but_the_default_one_may(node: Node) -> None:
    node.request("PUT", "/v1/stream/by-the-way/a", JSON)
    assert put(node, "by-the-way", schema(n="integer")).status == 404
    assert put(node, "_default", schema(n="integer")).status == 200


def test_a_schema_survives_kills_and_checkpoints_and_every_worker_has_it(tmp_path: Path) -> None:
    flags = ("--checkpoint-interval-ms", "50", "--workers", "2")
    with Node.started(tmp_path, flags=flags) as node:
        node.request("PUT", "/kept")
        put(node, "kept", schema(n="integer"))
        node.kill()
    with Node.started(tmp_path, flags=flags) as node:
        for _ in range(8):  # each on a connection of its own, which either worker may take
            found = node.request("GET", PATH.format("kept")).json()
            assert (found["version"], found["schema"]) == (1, schema(n="integer"))
        put(node, "kept", schema(n="number"))
        node.terminate()
    with Node.started(tmp_path, flags=flags) as node:
        assert node.request("GET", PATH.format("kept")).json()["version"] == 2
