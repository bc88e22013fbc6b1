"""SIGKILL in the middle of deliveries, claims, acknowledgements and creation: what was promised is there afterwards.
It owns the moments of the kills; the node is met over HTTP only."""

from __future__ import annotations

import os
import random
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater.subscriptions.keys import FILE_NAME
from tests.subscriptions.support import Api, Call, Said, a_node, receiving, tails_of
from tests.subscriptions.test_keys import verify
from tests.support.http import BadResponse, ConnectionEnded
from tests.support.node import Node
from tests.support.waiting import until

START = "0" * 20
HELD_MS = 600_000
BUSY_CHECKPOINTS = ("--checkpoint-interval-ms", "20")
CUT_OFF = (ConnectionEnded, ConnectionError, BadResponse, TimeoutError)
KILLS = int(os.environ.get("HEADWATER_CRASH_KILLS", "6"))


@contextmanager
def steady(directory: Path, flags: tuple[str, ...] = ()) -> Iterator[tuple[Node, Api]]:
    """A node that comes back on the port it had, so that callback URLs stay good."""
    with a_node(directory, flags=flags) as (node, api):
        node.listen = f"127.0.0.1:{node.port}"
        yield node, api


def kid_of(api: Api) -> str:
    return api.call("GET", "__ds/jwks.json").json()["keys"][0]["kid"]


@pytest.mark.parametrize("flags", [(), BUSY_CHECKPOINTS], ids=["log", "checkpoints"])
def test_a_webhook_in_flight_is_delivered_again_as_the_same_wake(tmp_path: Path, flags: tuple[str, ...]) -> None:
    hold = threading.Event()

    def answer(call: Call) -> Said:
        hold.wait(60)
        return 200, {}

    with steady(tmp_path, flags) as (node, api), receiving(answer) as receiver:
        api.webhook("sub", receiver.url, lease_ttl_ms=HELD_MS)
        kid, jwks = kid_of(api), api.call("GET", "__ds/jwks.json").body
        api.stream("events/a", 1)
        first = receiver.next()
        node.kill()
        node.start()
        second = receiver.next()
        for fact in ("wake_id", "generation", "callback_token", "callback_url"):
            assert second.body[fact] == first.body[fact]
        assert kid_of(api) == kid
        verify(jwks, second.headers["webhook-signature"], second.raw)
        assert api.cursors("sub") == {"events/a": START}
        # The receiver of the first one may be done, too: it is the same wake.
        assert api.ack("sub", first.body, first.tails(), done=True).json() == {"ok": True, "next_wake": False}
        assert api.ack("sub", second.body, second.tails(), done=True).json()["error"]["code"] == "FENCED"
        assert api.cursors("sub") == first.tails()
        hold.set()


def test_a_delivered_wake_keeps_its_lease_and_is_not_delivered_twice(tmp_path: Path) -> None:
    with steady(tmp_path) as (node, api), receiving() as receiver:
        api.webhook("sub", receiver.url, lease_ttl_ms=HELD_MS)
        api.stream("events/a", 1)
        call = receiver.next()
        # A valid callback proves that the lease runs, and that its renewal is durable.
        assert api.ack("sub", call.body, {}).status == 200
        node.restart()
        assert api.ack("sub", call.body, call.tails(), done=True).json() == {"ok": True, "next_wake": False}
        assert receiver.quiet()


def test_the_retry_schedule_goes_on_where_it_was(tmp_path: Path) -> None:
    with steady(tmp_path) as (node, api), receiving((500, {})) as receiver:
        api.webhook("sub", receiver.url)
        api.stream("events/a", 1)
        first = receiver.next()

        def failed_thrice() -> Any:
            view = api.show("sub")
            return view if view.get("retry", {}).get("failures", 0) >= 3 else None

        before = until(failed_thrice, "three failures")
        node.restart()
        after = api.show("sub")
        assert after["status"] == "failed"
        assert after["retry"]["failures"] >= before["retry"]["failures"]
        if after["retry"]["failures"] == before["retry"]["failures"]:
            assert after["retry"]["next_attempt_at"] == before["retry"]["next_attempt_at"]
        receiver.answer = lambda _: (200, {"done": True})
        until(lambda: api.cursors("sub") == first.tails(), "the delivery after the restart")
        assert receiver.calls[-1].body["wake_id"] == first.body["wake_id"]


@pytest.mark.parametrize("flags", [(), BUSY_CHECKPOINTS], ids=["log", "checkpoints"])
def test_a_claim_survives_with_its_holder_token_and_cursor(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with steady(tmp_path, flags) as (node, api):
        api.stream("wake/pool")
        api.pull("sub", lease_ttl_ms=HELD_MS)
        api.stream("events/a", 1, 2)
        claimed = api.claim("sub", "worker-1").json()
        node.restart()
        refused = api.claim("sub", "worker-2").json()["error"]
        assert (refused["code"], refused["current_holder"]) == ("ALREADY_CLAIMED", "worker-1")
        assert refused["generation"] == claimed["generation"]
        half = {"events/a": "00000000000000000001"}
        assert api.ack("sub", claimed, half).status == 200
        node.restart()
        assert api.cursors("sub") == half
        wrong = api.ack("sub", claimed, tails_of(claimed), done=True, wake_id="w_0")
        assert wrong.json()["error"]["code"] == "FENCED"
        assert api.ack("sub", claimed, tails_of(claimed), done=True).json() == {"ok": True, "next_wake": False}
        node.restart()
        assert api.cursors("sub") == tails_of(claimed)
        assert api.claim("sub").json()["error"]["code"] == "NO_PENDING_WORK"


def test_a_lease_that_passed_while_the_node_was_down_wakes_again(tmp_path: Path) -> None:
    with steady(tmp_path) as (node, api):
        api.stream("wake/pool")
        api.pull("sub", lease_ttl_ms=1_000)
        api.stream("events/a", 1)
        first = api.claim("sub").json()
        node.kill()
        time.sleep(1.1)
        node.start()
        # The first wake's event may stand there already.
        until(
            lambda: any(event["generation"] > first["generation"] for event in api.read("wake/pool")),
            "a wake after the lease",
        )
        assert api.ack("sub", first, tails_of(first), done=True).json()["error"]["code"] == "FENCED"
        assert api.cursors("sub") == {"events/a": START}


def test_subscriptions_keys_and_tombstones_are_all_there(tmp_path: Path) -> None:
    with steady(tmp_path) as (node, api), receiving() as receiver:
        key_file = node.data_directory / FILE_NAME
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
        secret = key_file.read_bytes()
        api.webhook("gone", receiver.url, lease_ttl_ms=HELD_MS)
        api.stream("events/a", 1)
        first = receiver.next()
        assert api.subscription("DELETE", "gone").status == 204
        api.stream("named", "x")
        made = api.webhook("kept", receiver.url, pattern="other/*", streams=["named"], description="text").json()
        node.restart()
        assert key_file.read_bytes() == secret
        assert api.show("kept") == made
        assert api.webhook("kept", receiver.url, pattern="other/*", streams=["named"], description="text").status == 200
        assert api.subscription("GET", "gone").status == 404
        assert api.ack("gone", first.body, first.tails()).status == 404
        api.webhook("gone", receiver.url, lease_ttl_ms=HELD_MS)
        api.append("events/a", 2)
        assert receiver.next().body["generation"] > first.body["generation"]
        tokens = [first.body["callback_token"].encode(), secret.splitlines()[2].split()[1]]
        for path in node.data_directory.rglob("*"):
            if path.is_file() and path != key_file:
                assert not any(token in path.read_bytes() for token in tokens), path
        assert not any(token.decode() in node.stderr() for token in tokens)


@pytest.mark.full
@pytest.mark.parametrize("delay_ms", [0, 5, 20, 60])
def test_a_subscription_whose_creation_was_cut_off_is_whole_when_it_is_confirmed(tmp_path: Path, delay_ms: int) -> None:
    count = 1_500
    with steady(tmp_path, BUSY_CHECKPOINTS) as (node, api):
        with node.connect() as connection:
            for number in range(count):
                path = f"/v1/stream/events/s{number:04d}"
                assert connection.request("PUT", path, {"Content-Type": "text/plain"}, b"old").status == 201

        def create() -> None:
            try:
                api.pull("sub", "wake/pool")
            except CUT_OFF:
                pass

        creating = threading.Thread(target=create)
        creating.start()
        time.sleep(delay_ms / 1000)
        node.kill()
        creating.join()
        node.start()
        assert api.pull("sub", "wake/pool").status in (200, 201)
        assert api.cursors("sub") == {f"events/s{number:04d}": f"{3:020d}" for number in range(count)}
        assert api.claim("sub").json()["error"]["code"] == "NO_PENDING_WORK"


class Worker:
    """Appends, claims and acknowledges until it is told to stop, and remembers what it was promised."""

    def __init__(self, api: Api, seed: int) -> None:
        self.api = api
        self.streams: list[str] = []
        self.named = 0
        self.rng = random.Random(seed)
        self.wake_ids: dict[int, str] = {}
        self.acked: dict[str, str] = {}
        self.appended: dict[str, str] = {}
        self.holding: dict[str, Any] | None = None
        self.stopping = threading.Event()
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.step()
        except CUT_OFF:
            pass  # the node was killed: whether the last call counted is not known
        except BaseException as fault:
            self.fault = fault

    def step(self) -> None:
        if len(self.streams) < 3 or self.rng.random() < 0.2:
            self.named += 1
            self.api.stream(f"events/s{self.named}", "first")
            self.streams.append(f"events/s{self.named}")
        stream = self.rng.choice(self.streams)
        self.appended[stream] = self.api.append(stream, self.rng.randrange(10**6))
        if self.holding is None:
            claim = self.api.claim("sub")
            if claim.status == 409:
                # Only an earlier claim whose answer was cut off can be in the way.
                assert claim.json()["error"]["code"] == "ALREADY_CLAIMED", claim
                return
            assert claim.status == 200, claim
            self.holding = claim.json()
            self.saw(self.holding)
            return
        acks = {path: offset for path, offset in tails_of(self.holding).items() if self.rng.random() < 0.7}
        done = self.rng.random() < 0.6
        holding = self.holding
        if done:
            self.holding = None
        answer = self.api.ack("sub", holding, acks, done)
        if answer.status == 409:
            # A cut-off call may have ended this wake, or moved a cursor beyond what the claim told of.
            assert answer.json()["error"]["code"] in ("FENCED", "INVALID_OFFSET"), answer
            self.holding = None
            return
        assert answer.status == 200, answer
        for path, offset in acks.items():
            self.acked[path] = max(offset, self.acked.get(path, START))

    def saw(self, claimed: dict[str, Any]) -> None:
        """A generation belongs to one wake for ever, and the newest one is the highest."""
        generation = claimed["generation"]
        assert self.wake_ids.setdefault(generation, claimed["wake_id"]) == claimed["wake_id"]
        assert generation == max(self.wake_ids)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flags", [(), BUSY_CHECKPOINTS], ids=["log", "checkpoints"])
def test_kills_at_random_moments_lose_and_double_no_cursor_and_reuse_no_generation(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with steady(tmp_path, flags) as (node, api):
        api.stream("wake/pool")
        api.pull("sub", lease_ttl_ms=1_000)
        worker = Worker(api, seed=7)
        moments = random.Random(11)
        for _ in range(KILLS):
            thread = threading.Thread(target=worker.run)
            thread.start()
            time.sleep(moments.uniform(0.02, 0.3))
            node.kill()
            thread.join()
            if worker.fault is not None:
                raise worker.fault
            node.start()
            cursors = api.cursors("sub")
            for path, offset in worker.acked.items():
                assert cursors[path] >= offset, f"an acknowledged cursor of {path} went back"
            for path in worker.streams:
                tail = api.call("HEAD", path).header("stream-next-offset") or ""
                assert tail >= worker.appended.get(path, START)
                assert cursors[path] <= tail
        assert len(worker.wake_ids) > KILLS, "the run hardly did anything"

        def finished() -> bool:
            """Whoever held the lease is gone: it passes, and then the rest of the work is done."""
            claim = api.claim("sub")
            if claim.status == 200:
                worker.saw(claim.json())
                assert api.ack("sub", claim.json(), tails_of(claim.json()), done=True).status == 200
                return False
            return claim.json()["error"]["code"] == "NO_PENDING_WORK"

        until(finished, "everything is acknowledged")
        names = [f"events/s{number + 1}" for number in range(worker.named)]
        heads = {path: api.call("HEAD", path) for path in names}
        tails = {path: head.header("stream-next-offset") for path, head in heads.items() if head.status == 200}
        assert set(worker.streams) <= set(tails)
        assert api.cursors("sub") == tails
        generations = [event["generation"] for event in api.read("wake/pool")]
        assert generations == sorted(set(generations)), "a wake event is there twice, or out of order"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_append_reaches_the_webhook_across_kills(tmp_path: Path) -> None:
    """At least once, in order, and acknowledged exactly up to what was delivered."""
    with steady(tmp_path, BUSY_CHECKPOINTS) as (node, api), receiving((200, {"done": True})) as receiver:
        api.webhook("sub", receiver.url, lease_ttl_ms=1_000)
        api.stream("events/a", 0)
        tail = START
        moments = random.Random(5)
        for number in range(KILLS):
            for _ in range(3):
                tail = api.append("events/a", number)
            time.sleep(moments.uniform(0, 0.02))
            node.restart()
        until(lambda: api.cursors("sub") == {"events/a": tail}, "the last append is acknowledged")
        told = [call.tails()["events/a"] for call in receiver.calls]
        assert told == sorted(told)
        assert told[-1] == tail
        wakes = {call.body["generation"]: call.body["wake_id"] for call in receiver.calls}
        assert all(wakes[call.body["generation"]] == call.body["wake_id"] for call in receiver.calls)
        generations = [call.body["generation"] for call in receiver.calls]
        assert generations == sorted(generations)
