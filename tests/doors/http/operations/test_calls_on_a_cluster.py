"""Admin calls about a group whose log is not in files: what needs such a log is refused by name."""

from __future__ import annotations

from pathlib import Path

from tests.support.groups import Town, town


def test_what_needs_a_log_in_files_is_refused_with_a_code_and_everything_else_is_answered(tmp_path: Path) -> None:
    async def body(built: Town) -> None:
        calls = built.process_of(0)
        await built.write(built.key(0), b"one")
        for owned in calls.engine.owned.values():
            owned.swapper = owned.backups = owned.eraser = None
        below = "/__headwater/groups/0"
        for method, path, wish in (
            ("POST", f"{below}/backup", {}),
            ("GET", f"{below}/backup/1", None),
            ("POST", f"{below}/lake/swap", {"remove": ["a"], "add": []}),
            ("POST", "/__headwater/erase", {"stream": "town/gone"}),
        ):
            answer = await calls.request(method, path, wish)
            assert (answer.status, answer.code) == (501, "not_on_a_cluster"), path
        for method, path, wish in (
            ("GET", "/__headwater/groups", None),
            ("POST", f"{below}/flush", None),
            ("POST", f"{below}/snapshot", None),
            ("POST", f"{below}/purge", None),
            ("GET", f"{below}/lake/files", None),
            ("GET", f"{below}/usage", None),
            ("GET", "/__headwater/lake", None),
            ("POST", "/__headwater/plan", {}),
            ("POST", "/__headwater/erase/known", {"stream": "town/gone"}),
        ):
            assert (await calls.request(method, path, wish)).status == 200, path

    town(tmp_path / "data", body)
