"""Calls about groups: each is answered by the group in its path, and those without one by all of them, whichever
processes serve them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.groups import Town, town

GROUPS = "/__headwater/groups"
SHAPES = pytest.mark.parametrize("members", [1, 2], ids=["one process", "two processes"])


def seen(state: dict[str, Any]) -> str:
    return f"{state['log']}/{state['incarnations'][-1][0]}/{state['position']}"


def test_each_group_answers_for_itself(tmp_path: Path) -> None:
    async def body(node: Town) -> None:
        (process,) = node.processes
        await node.write(node.key(0), b"zero", b"zero")
        await node.write(node.key(1), b"one")
        for number, rows in enumerate((2, 1)):
            path = f"{GROUPS}/{number}"
            start = node.group(number).lake_position()
            cut = (await process.request("GET", f"{path}/cut?from={start}")).json()
            assert (cut["rows"], cut["position"]) == (rows, node.group(number).log.synced)
            taken = (await process.request("POST", f"{path}/snapshot")).json()
            assert taken["group"] == number and taken["position"] == node.group(number).catalog.position
            assert (await process.request("GET", f"{path}/owner")).json()["group"] == number
            there, away = node.key(number), node.key(1 - number)
            missing = await process.request("POST", f"{path}/matches", {"streams": [there, away]})
            assert missing.json()["missing"] == [away]
            flushed = (await process.request("POST", f"{path}/flush")).json()
            assert flushed["flushed_bytes"] == len(b"zero" * 2 if number == 0 else b"one")
            files = (await process.request("GET", f"{path}/lake/files")).json()
            assert files["group"] == number
            assert [(file["path"].split("/")[1], file["live_rows"]) for file in files["files"]] == [(str(number), rows)]
            assert (await process.request("GET", f"{path}/lake/streams")).status == 200

    town(tmp_path / "data", body)


def test_a_group_that_is_not_there_is_told_from_one_of_another_process(tmp_path: Path) -> None:
    async def body(node: Town) -> None:
        first = node.processes[0]
        for path in (f"{GROUPS}/2/cut", f"{GROUPS}/123456789/owner"):
            answer = await first.request("GET", path)
            assert (answer.status, answer.code) == (404, "no_such_group")
            assert "groups 0 to 1" in answer.json()["error"]["message"]
        for path in (f"{GROUPS}/-1/cut", f"{GROUPS}/01/cut", f"{GROUPS}/x/cut", f"{GROUPS}//cut", f"{GROUPS}/0/cuts"):
            answer = await first.request("GET", path)
            assert (answer.status, answer.code) == (404, "no_such_route"), path
        answer = await first.request("GET", f"{GROUPS}/1/cut")
        assert (answer.status, answer.code) == (503, "member_unavailable")

    town(tmp_path / "data", body, members_count=2)


# ---- a plan -------------------------------------------------------------------------------------------------------


@SHAPES
def test_a_plan_tells_of_every_group_what_its_own_calls_tell(tmp_path: Path, members: int) -> None:
    async def body(node: Town) -> None:
        for number in range(3):
            await node.write(node.key(number), b"settled")
            flushed = await node.process_of(number).request("POST", f"{GROUPS}/{number}/flush")
            assert flushed.status == 200
            await node.write(node.key(number), *[b"hot"] * (number + 2))
        wish = {"from": 0, "max_rows": 2, "max_bytes": None, "files": True}
        for process in node.processes:
            plan = await process.request("POST", "/__headwater/plan", {"groups": {str(n): wish for n in range(3)}})
            found = plan.json()["groups"]
            assert [one["group"] for one in found] == [0, 1, 2]
            for one in found:
                number = one["group"]
                own, path = node.process_of(number), f"{GROUPS}/{number}"
                start = one["cut"].pop("from")
                assert start == one["lake_position"] == node.group(number).lake_position()
                assert one["cut"] == (await own.request("GET", f"{path}/cut?from={start}&max_rows=2")).json()
                assert one["cut"]["rows"] == 2 and one["cut"]["position"] <= one["position"]
                assert one["files"] == (await own.request("GET", f"{path}/lake/files")).json()["files"]
                assert len(one["files"]) == 1 and (one["losses"], one["more_losses"]) == ([], False)
                assert one["log"] == node.group(number).lineage.log

    town(tmp_path / "data", body, groups_count=3, members_count=members)


@SHAPES
def test_a_plan_without_wishes_tells_how_far_every_group_is(tmp_path: Path, members: int) -> None:
    async def body(node: Town) -> None:
        await node.write(node.key(1), b"x")
        for process in node.processes:
            for sent in (None, {}, {"groups": {}}):
                found = (await process.request("POST", "/__headwater/plan", sent)).json()["groups"]
                assert [one["position"] for one in found] == [node.group(n).log.synced for n in range(2)]
                assert not any(one.keys() & {"cut", "files", "losses"} for one in found)
            some = (await process.request("POST", "/__headwater/plan", {"groups": {"1": {}}})).json()["groups"]
            assert [one["group"] for one in some] == [1]

    town(tmp_path / "data", body, members_count=members)


@SHAPES
def test_a_plan_is_refused_when_one_log_is_not_as_expected(tmp_path: Path, members: int) -> None:
    async def body(node: Town) -> None:
        (process, *_) = node.processes
        states = (await process.request("POST", "/__headwater/plan")).json()["groups"]
        good = {str(one["group"]): {"expected": seen(one)} for one in states}
        assert (await process.request("POST", "/__headwater/plan", {"groups": good})).status == 200
        swapped = {"0": good["0"], "1": good["0"]}
        answer = await process.request("POST", "/__headwater/plan", {"groups": swapped})
        assert (answer.status, answer.code) == (409, "another_log")

    town(tmp_path / "data", body, members_count=members)


def test_a_plan_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async def body(node: Town) -> None:
        (process,) = node.processes
        for sent, status, code in (
            ({"groups": {"2": {}}}, 404, "no_such_group"),
            ({"groups": {"-1": {}}}, 404, "no_such_group"),
            ({"groups": {"x": {}}}, 400, "bad_body"),
            ({"groups": {"0": {"from": -1}}}, 400, "bad_body"),
            ({"groups": {"0": {"form": 1}}}, 400, "bad_body"),
            ({"groups": {"0": {"expected": "x"}}}, 400, "bad_body"),
            ([], 400, "bad_body"),
            (b"\xff", 400, "bad_body"),
        ):
            answer = await process.request("POST", "/__headwater/plan", sent)
            assert (answer.status, answer.code) == (status, code), sent
        assert (await process.request("GET", "/__headwater/plan")).status == 405

    town(tmp_path / "data", body)
