"""Calls about groups: each is answered by the group in its path, and those without one by all of them, whichever
processes serve them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.groups import Town, town
from tests.support.node import Node

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


# ---- all groups at once -------------------------------------------------------------------------------------------


@SHAPES
def test_groups_are_told_in_order_by_whichever_process_is_asked(tmp_path: Path, members: int) -> None:
    async def body(node: Town) -> None:
        await node.write(node.key(1), b"x")
        for process in node.processes:
            found = (await process.request("GET", GROUPS)).json()["groups"]
            assert [one["group"] for one in found] == [0, 1, 2]
            assert [one["position"] for one in found] == [node.group(n).log.synced for n in range(3)]
            assert [one["log"] for one in found] == [node.group(n).lineage.log for n in range(3)]

    town(tmp_path / "data", body, groups_count=3, members_count=members)


@SHAPES
def test_what_is_expected_of_several_logs_is_asked_of_each(tmp_path: Path, members: int) -> None:
    async def body(node: Town) -> None:
        for process in node.processes:
            states = (await process.request("GET", GROUPS)).json()["groups"]
            zero, one = map(seen, states)
            for expected, status in (
                (f"0:{zero}", 200),
                (f"0:{zero},1:{one}", 200),
                (f"1:{one}, 0:{zero}", 200),
                (f"0:{zero},1:{zero}", 409),
                (f"0:{one}", 409),
                (f"0:{zero},2:{one}", 404),
                (zero, 400),
                (f"0:{zero},", 400),
                (f"00:{zero}", 400),
                ("1:x", 400),
            ):
                answer = await process.request("GET", GROUPS, headers={"Headwater-Expected-Log": expected})
                assert answer.status == status, expected
            own = process.questions.me
            for expected, status in ((seen(states[own]), 200), (seen(states[1 - own]), 409), (f"{own}:{zero}", 400)):
                headers = {"Headwater-Expected-Log": expected}
                answer = await process.request("GET", f"{GROUPS}/{own}/incarnations", headers=headers)
                assert answer.status == status, expected

    town(tmp_path / "data", body, members_count=members)


@SHAPES
def test_a_flush_settles_every_group_or_the_one_stream(tmp_path: Path, members: int) -> None:
    async def body(node: Town) -> None:
        process = node.processes[-1]
        keys = [node.key(0), node.key(1), node.key(1, number=1)]
        for key in keys:
            await node.write(key, b"12345678")
        done = await process.request("POST", f"/__headwater/flush/{keys[0]}")
        assert (done.status, done.json()["flushed_bytes"]) == (200, 8)
        assert [one["group"] for one in done.json()["groups"]] == [0]
        assert (await process.request("POST", "/__headwater/flush/town/none")).status == 404
        done = await process.request("POST", "/__headwater/flush")
        assert done.json()["flushed_bytes"] == 16
        assert [one["flushed_bytes"] for one in done.json()["groups"]] == [0, 16]
        positions = [one["lake_position"] for one in done.json()["groups"]]
        assert positions == [node.group(number).lake_position() for number in range(2)]

    town(tmp_path / "data", body, members_count=members)


@SHAPES
def test_the_lake_is_summed_over_groups(tmp_path: Path, members: int) -> None:
    async def body(node: Town) -> None:
        process = node.processes[-1]
        await node.write(node.key(0), b"a", b"b")
        await node.write(node.key(1), b"c")
        await process.request("POST", "/__headwater/flush")
        for number in range(2):
            assert (await node.process_of(number).request("POST", f"{GROUPS}/{number}/snapshot")).status == 200
        facts = (await process.request("GET", "/__headwater/lake")).json()
        assert (facts["files"], facts["rows"], facts["rows_live"], facts["rows_dead"]) == (2, 3, 3, 0)
        assert (facts["streams"], facts["extents"]) == (2, 2)
        assert [(one["group"], one["rows"]) for one in facts["groups"]] == [(0, 2), (1, 1)]
        assert [one["catalog_position"] for one in facts["groups"]] == [node.group(n).catalog.position for n in (0, 1)]

    town(tmp_path / "data", body, members_count=members)


@SHAPES
def test_what_was_read_is_summed_by_day_and_bucket(tmp_path: Path, members: int) -> None:
    async def body(node: Town) -> None:
        for number in range(2):
            node.group(number).usage.add("both/s", 10)
            node.group(number).usage.add(f"only{number}/s", number)
            assert (await node.process_of(number).request("POST", f"{GROUPS}/{number}/snapshot")).status == 200
        for process in node.processes:
            whole = (await process.request("GET", "/__headwater/usage")).json()
            lines = [(line["bucket"], line["reads"], line["bytes"]) for line in whole["days"]]
            assert lines == [("both", 2, 20), ("only0", 1, 0), ("only1", 1, 1)] and whole["next"] is None
            paged, after = [], ""
            while after is not None:
                page = (await process.request("GET", f"/__headwater/usage?limit=1{after and '&after='}{after}")).json()
                paged += page["days"]
                after = page["next"]
            assert paged == whole["days"]
        own = (await node.process_of(1).request("GET", f"{GROUPS}/1/usage")).json()["days"]
        assert [(line["bucket"], line["reads"]) for line in own] == [("both", 1), ("only1", 1)]

    town(tmp_path / "data", body, members_count=members)


@SHAPES
def test_a_process_that_is_away_fails_what_needs_it_and_nothing_else(tmp_path: Path, members: int) -> None:
    async def body(node: Town) -> None:
        process = node.processes[0]
        if members == 2:
            node.wire.cut.add(1)
        status = 200 if members == 1 else 503
        for method, path in (("GET", GROUPS), ("GET", "/__headwater/usage"), ("POST", "/__headwater/plan")):
            answer = await process.request(method, path)
            assert answer.status == status and (status == 200 or answer.code == "member_unavailable")
        assert (await process.request("GET", f"{GROUPS}/0/incarnations")).status == 200
        assert (await process.request("POST", "/__headwater/plan", {"groups": {"0": {}}})).status == 200

    town(tmp_path / "data", body, members_count=members)


# ---- erasures and backups -----------------------------------------------------------------------------------------


def traces(directory: Path, name: str) -> list[str]:
    """Files of logs and catalogs that hold the name."""
    files = [*(directory / "wal").rglob("*"), *(directory / "catalog").rglob("*")]
    return [str(path) for path in files if path.is_file() and name.encode() in path.read_bytes()]


@SHAPES
def test_an_erased_name_is_in_the_files_of_no_group(tmp_path: Path, members: int) -> None:
    async def body(node: Town) -> None:
        process = node.processes[0]
        for number in range(2):
            key = node.key(number, bucket="secretly")
            node.processes[0].subscribed[key] = ["watcher"]
            await node.write(key, b"x")
            await node.write(node.key(1 - number), b"stays")
            await node.delete(key)
            assert traces(tmp_path / "data", "secretly")
            known = (await process.request("POST", "/__headwater/erase/known", {"stream": key})).json()
            assert known["subscriptions"] == ["watcher"] and known.keys() == {"stream_hash", "subscriptions"}
            done = (await process.request("POST", "/__headwater/erase", {"stream": key})).json()
            assert done["stream_hash"] == known["stream_hash"] and done["backups_held"] == 0
            assert done["log_positions"].keys() == {"0", "1"}
            assert traces(tmp_path / "data", "secretly") == []

    town(tmp_path / "data", body, members_count=members)


def test_a_backup_is_one_hold_and_one_cut_for_each_group(tmp_path: Path) -> None:
    async def body(node: Town) -> None:
        (process,) = node.processes
        for number in range(2):
            await node.write(node.key(number), b"x" * (number + 1))
        held = [(await process.request("POST", f"{GROUPS}/{number}/backup")).json() for number in range(2)]
        for number, facts in enumerate(held):
            path = f"{GROUPS}/{number}/backup/{facts['id']}"
            assert (facts["group"], facts["groups"]) == (number, 2)
            assert facts["position"] == node.group(number).log.synced
            assert all(name.startswith(f"data/{number}/") for name in facts["files"]) and len(facts["files"]) == 1
            assert len((await process.request("GET", f"{path}/catalog")).body) == facts["catalog_bytes"]
            assert len((await process.request("GET", f"{path}/log")).body) == facts["log_bytes"]
            other = f"{GROUPS}/{1 - number}/backup/{facts['id']}"
            assert (await process.request("GET", other)).status == 404, "a hold is of one group"
            assert (tmp_path / "data" / "held" / str(number) / facts["id"]).is_dir()
        erased = await process.request("POST", "/__headwater/erase", {"stream": "town/gone"})
        assert erased.json()["backups_held"] == 1
        for number, facts in enumerate(held):
            assert (await process.request("DELETE", f"{GROUPS}/{number}/backup/{facts['id']}")).status == 204

    town(tmp_path / "data", body)


# ---- workers ------------------------------------------------------------------------------------------------------


def test_workers_answer_for_each_other(tmp_path: Path) -> None:
    flags = ["--groups", "3", "--workers", "2", "--flush-interval-ms", "3600000"]
    with Node.started(tmp_path, flags=flags) as node:
        for number in range(12):
            assert node.request("PUT", f"/v1/stream/town/s{number}", {"Content-Type": "text/plain"}, b"x").status == 201
        states = node.request("GET", GROUPS).json()["groups"]
        assert [one["group"] for one in states] == [0, 1, 2]
        expected = ",".join(f"{one['group']}:{seen(one)}" for one in states)
        for _ in range(4):  # whichever worker accepts the connection
            assert node.request("GET", GROUPS, {"Headwater-Expected-Log": expected}).status == 200
            wrong = {"Headwater-Expected-Log": f"0:{seen(states[0])},1:{seen(states[0])}"}
            assert node.request("GET", GROUPS, wrong).status == 409
        for state in states:
            path, headers = f"{GROUPS}/{state['group']}", {"Headwater-Expected-Log": seen(state)}
            owner = node.request("GET", f"{path}/owner", headers).json()
            assert (owner["group"], owner["worker"]) == (state["group"], state["group"] % 2)
            wrong = {"Headwater-Expected-Log": seen(states[state["group"] - 1])}
            assert node.request("GET", f"{path}/owner", wrong).status == 409
        done = node.request("POST", "/__headwater/flush").json()
        assert done["flushed_bytes"] == 12 and len(done["groups"]) == 3
        wish = json.dumps({"groups": {str(n): {"from": 0, "files": True} for n in range(3)}}).encode()
        plan = node.request("POST", "/__headwater/plan", {}, wish).json()["groups"]
        assert sum(file["live_rows"] for one in plan for file in one["files"]) == 12
        assert node.request("GET", "/__headwater/lake").json()["rows_live"] == 12
        assert node.request("GET", "/__headwater/usage").status == 200
        assert node.request("DELETE", "/v1/stream/town/s1").status == 204
        erased = node.request("POST", "/__headwater/erase", {}, b'{"stream": "town/s1"}').json()
        assert erased["log_positions"].keys() == {"0", "1", "2"}
        for number in range(3):
            held = node.request("POST", f"{GROUPS}/{number}/backup").json()
            assert (held["group"], held["groups"]) == (number, 3)
            assert node.request("GET", f"{GROUPS}/{number}/backup/{held['id']}/catalog").status == 200
            assert node.request("DELETE", f"{GROUPS}/{number}/backup/{held['id']}").status == 204
        answer = node.request("GET", f"{GROUPS}/3/owner")
        assert (answer.status, answer.json()["error"]["code"]) == (404, "no_such_group")
