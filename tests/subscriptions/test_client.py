"""The webhook client against real sockets: which address it connects to, what it sends, and what it makes of replies.
It owns small scripted servers on loopback; names are resolved by the tests themselves."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headwater.subscriptions import webhooks
from headwater.subscriptions.targets import Target, TargetRefused
from headwater.subscriptions.webhooks import DeliveryFailed, DeliveryQueue, Reply, WebhookClient

URL = "https://hook.example/take?x=1"
DONE = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"done":true}'
TIMEOUT_S = 20.0
"""Longer than any of these takes: only the tests of time limits name a shorter one."""


class Receiver:
    """A server on loopback that says what it is told to, and keeps what it was sent."""

    def __init__(self, *says: bytes, holds: bool = False) -> None:
        self.says = says
        self.holds = holds
        self.requests: list[bytes] = []
        self.port = 0

    async def __aenter__(self) -> Receiver:
        self._release = asyncio.Event()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._release.set()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            self.requests.append(head + await reader.readexactly(int(length.partition(b":")[2])))
            for part in self.says:
                writer.write(part)
                await writer.drain()
            if self.holds:
                await self._release.wait()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


class Wiring:
    """Resolves names as told, and leads every connection to the receiver, remembering where it was meant to go."""

    def __init__(self, receiver: Receiver | None, *answers: list[str]) -> None:
        self.receiver = receiver
        self.answers = list(answers)
        self.resolved: list[str] = []
        self.connected: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        self.resolved.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def connect(
        self, target: Target, address: str, tls: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.connected.append(address)
        assert self.receiver is not None
        return await asyncio.open_connection("127.0.0.1", self.receiver.port)

    def client(self) -> WebhookClient:
        return WebhookClient(False, self.resolve, self.connect)


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


def posted(*says: bytes, holds: bool = False, timeout_s: float = TIMEOUT_S) -> Reply:
    """What one delivery comes to when the receiver says this."""

    async def work() -> Reply:
        async with Receiver(*says, holds=holds) as receiver:
            wiring = Wiring(receiver, ["1.1.1.1"])
            return await wiring.client().post(URL, [], b"{}", timeout_s)

    return asyncio.run(asyncio.wait_for(work(), 60))


# ---- where it goes --------------------------------------------------------------------------------------------------


def test_it_connects_to_the_address_that_was_checked_and_names_the_host_in_the_request() -> None:
    async def work() -> None:
        async with Receiver(DONE) as receiver:
            wiring = Wiring(receiver, ["1.1.1.1", "2606:4700::1111"])
            reply = await wiring.client().post(URL, [("Webhook-Signature", "t=1")], b'{"a":1}', TIMEOUT_S)
            assert reply.done
            assert (wiring.resolved, wiring.connected) == (["hook.example"], ["1.1.1.1"])
            (request,) = receiver.requests
            assert request.startswith(b"POST /take?x=1 HTTP/1.1\r\nHost: hook.example\r\nWebhook-Signature: t=1\r\n")
            assert request.endswith(b'\r\n\r\n{"a":1}')

    run(work)


def test_a_name_that_resolves_elsewhere_the_second_time_is_never_followed_there() -> None:
    async def work() -> None:
        async with Receiver(DONE) as receiver:
            wiring = Wiring(receiver, ["1.1.1.1"], ["1.1.1.1"], ["127.0.0.1"], ["1.1.1.1", "169.254.169.254"])
            client = wiring.client()
            await client.check(URL)
            await client.post(URL, [], b"{}", TIMEOUT_S)
            assert wiring.connected == ["1.1.1.1"]
            for _ in range(2):
                with pytest.raises(DeliveryFailed, match="not allowed"):
                    await client.post(URL, [], b"{}", TIMEOUT_S)
            assert wiring.connected == ["1.1.1.1"]
            assert len(receiver.requests) == 1

    run(work)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_failed_delivery_and_is_not_followed(status: int) -> None:
    async def work() -> None:
        async with Receiver(b"") as inside:
            location = f"http://127.0.0.1:{inside.port}/"
            answer = f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
            async with Receiver(answer.encode()) as receiver:
                wiring = Wiring(receiver, ["1.1.1.1"])
                with pytest.raises(DeliveryFailed, match="redirects are not followed"):
                    await wiring.client().post(URL, [], b"{}", TIMEOUT_S)
                assert wiring.connected == ["1.1.1.1"]
            assert inside.requests == []

    run(work)


def test_a_url_that_is_refused_is_not_even_resolved() -> None:
    async def work() -> None:
        wiring = Wiring(None, ["1.1.1.1"])
        for url in ("http://hook.example/", "https://127.0.0.1/", "https://[::ffff:10.0.0.1]/"):
            with pytest.raises(DeliveryFailed, match="not allowed"):
                await wiring.client().post(url, [], b"{}", TIMEOUT_S)
            with pytest.raises(TargetRefused):
                await wiring.client().check(url)
        assert wiring.resolved == []

    run(work)


def test_a_name_that_does_not_resolve_may_be_created_and_fails_to_be_delivered() -> None:
    async def nowhere(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    async def work() -> None:
        client = WebhookClient(False, nowhere)
        await client.check(URL)
        with pytest.raises(DeliveryFailed, match="no such name"):
            await client.post(URL, [], b"{}", TIMEOUT_S)

    run(work)


def test_the_next_checked_address_is_tried_when_one_does_not_answer() -> None:
    async def work() -> None:
        async with Receiver(DONE) as receiver:
            wiring = Wiring(receiver, ["1.1.1.1", "1.0.0.1"])
            connect = wiring.connect

            async def first_is_dead(target: Target, address: str, tls: ssl.SSLContext | None):
                if address == "1.1.1.1":
                    wiring.connected.append(address)
                    raise ConnectionRefusedError("refused")
                return await connect(target, address, tls)

            client = WebhookClient(False, wiring.resolve, first_is_dead)
            assert (await client.post(URL, [], b"{}", TIMEOUT_S)).done
            assert wiring.connected == ["1.1.1.1", "1.0.0.1"]

    run(work)


# ---- what it makes of replies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "done"),
    [
        ([DONE], True),
        ([DONE[:20], DONE[20:50], DONE[50:]], True),
        ([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", DONE], True),
        ([b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{"done\r\n7\r\n":true}\r\n0\r\n\r\n'], True),
        ([b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"done":true}'], True),
        ([b'HTTP/1.0 200 OK\r\n\r\n{"done":true}'], True),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], False),
        ([b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}"], False),
        ([b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"done":"true"}'], False),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue"], False),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n<p>"], False),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xff"], False),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"[" * 5000], False),
    ],
)
def test_a_2xx_reply_is_a_delivery_and_says_whether_the_work_is_done(said: list[bytes], done: bool) -> None:
    assert posted(*said).done is done


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 410 Gone\r\nContent-Length: 13\r\n\r\n{"done":true}',
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00\x01\x02",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
def test_anything_else_is_a_failed_delivery(said: bytes) -> None:
    with pytest.raises(DeliveryFailed):
        posted(said)


def test_a_reply_is_read_up_to_its_bound_and_no_further() -> None:
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    assert posted(endless, *[chunk] * 64, holds=True) == Reply(200, b"")
    with pytest.raises(DeliveryFailed, match="no end"):
        posted(b"HTTP/1.1 200 OK\r\n", *[b"X-Filler: " + b"x" * 4_000 + b"\r\n"] * 64, holds=True)


def test_a_receiver_that_does_not_answer_is_given_up() -> None:
    with pytest.raises(DeliveryFailed, match="no answer in time"):
        posted(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", holds=True, timeout_s=0.2)


# ---- TLS --------------------------------------------------------------------------------------------------------


def certificate_for(name: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate for `name`, and a client's that trusts its issuer alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain, private = folder / "cert.pem", folder / "key.pem"
    chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    unprotected = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unprotected))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain, private)
    return server, ssl.create_default_context(cafile=str(chain))


@pytest.mark.parametrize(("host", "taken"), [("hook.example", True), ("other.example", False)])
def test_the_certificate_goes_by_the_name_although_the_connection_goes_by_the_address(
    tmp_path: Path, host: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_tls, client_tls = certificate_for("hook.example", tmp_path)
    names: list[str | None] = []
    server_tls.sni_callback = lambda _socket, name, _context: names.append(name)
    # The product's own way of connecting, with loopback standing in for a public address.
    monkeypatch.setattr(webhooks.targets, "why_never", lambda address: None)

    async def resolver(name: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(DONE)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_tls)
        port = server.sockets[0].getsockname()[1]
        client = WebhookClient(False, resolver, tls=client_tls)
        url = f"https://{host}:{port}/"
        try:
            if taken:
                assert (await client.post(url, [], b"{}", TIMEOUT_S)).done
            else:
                with pytest.raises(DeliveryFailed, match="certificate"):
                    await client.post(url, [], b"{}", TIMEOUT_S)
        finally:
            server.close()

    run(work)
    assert names == [host]


# ---- how many at once -----------------------------------------------------------------------------------------------


def test_deliveries_run_so_many_at_once_and_so_many_to_one_host() -> None:
    async def work() -> None:
        queue = DeliveryQueue(running_max=4, per_host_max=2)
        running: dict[str, int] = {"slow": 0, "quick": 0, "other": 0}
        most: dict[str, int] = dict(running, all=0)
        ended: list[str] = []
        release = asyncio.Event()

        def job(host: str) -> Callable[[], Awaitable[None]]:
            async def deliver() -> None:
                running[host] += 1
                most[host] = max(most[host], running[host])
                most["all"] = max(most["all"], sum(running.values()))
                if host == "slow":
                    await release.wait()
                else:
                    await asyncio.sleep(0)
                running[host] -= 1
                ended.append(host)

            return deliver

        for host in ["slow"] * 5 + ["quick"] * 5 + ["other"] * 5:
            queue.submit(host, job(host))
        while len(ended) < 10:
            await asyncio.sleep(0)
        assert set(ended) == {"quick", "other"}  # a receiver that hangs holds up nobody else
        release.set()
        while len(ended) < 15:
            await asyncio.sleep(0)
        assert most == {"slow": 2, "quick": 2, "other": 2, "all": 4}
        await queue.stop()

    run(work)


def test_a_stopped_queue_starts_nothing_and_leaves_nothing_running() -> None:
    async def work() -> None:
        queue = DeliveryQueue(running_max=1, per_host_max=1)
        started: list[int] = []
        ended: list[int] = []

        def job(number: int) -> Callable[[], Awaitable[None]]:
            async def deliver() -> None:
                started.append(number)
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(number)

            return deliver

        for number in range(3):
            queue.submit("host", job(number))
        await asyncio.sleep(0)
        await queue.stop()
        queue.submit("host", job(9))
        await asyncio.sleep(0)
        assert started == ended == [0]

    run(work)
