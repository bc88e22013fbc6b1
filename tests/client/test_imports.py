"""What importing the client loads, and what it offers. Asked of fresh interpreters, which have loaded nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import headwater.client as client


def loaded(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_the_client_loads_no_part_of_a_server() -> None:
    ours = {name for name in loaded("from headwater.client import Headwater, Worker") if name.startswith("headwater")}
    assert {name for name in ours if not name.startswith("headwater.client")} == {"headwater"}


def test_the_command_line_loads_the_client_only_for_a_command_that_needs_it() -> None:
    assert loaded("import headwater.cli.main").isdisjoint({"headwater.client.clients", "headwater.client.worker"})


def test_a_connection_alone_loads_nothing_that_an_executor_may_lack() -> None:
    names = loaded("import headwater.client.connection, headwater.client.backoff")
    assert names.isdisjoint({"msgspec", "httptools", "uvloop", "asyncio", "headwater.client.clients"})


def test_every_name_that_is_offered_is_there_and_listed_once() -> None:
    offered = client.__all__
    assert len(offered) == len(set(offered))
    assert set(offered) == set(client._PLACE_OF)
    for name in offered:
        place = import_module(f"headwater.client.{client._PLACE_OF[name]}")
        assert getattr(client, name) is getattr(place, name)
    assert set(offered) <= set(dir(client))
    assert not hasattr(client, "nothing_of_this_name")
