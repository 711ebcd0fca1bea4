"""TLS listeners: who may connect, as whom, what hostile peers get, and certificates that change."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import socket
import ssl
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.clock import LoopClock
from tests.server.raw_client import RawClient
from tests.server.scripted import PIPELINED, framed, run, serving, until
from tests.server.tls.certificates import Authority
from tests.server.tls.key_updating_peer import KeyUpdatingPeer

from mainstem.address import Address
from mainstem.errors import ConfigError
from mainstem.model import Sample
from mainstem.process.event_loop import LOOP_VARIABLE
from mainstem.server.listener_config import ListenerConfig
from mainstem.server.paced_steps import PacedSteps
from mainstem.server.tls import handshakes, tls_transport
from mainstem.server.tls.certificates import ListenerCertificate
from mainstem.server.tls.principals import PrincipalMapping


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def either_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOOP_VARIABLE, request.param)


async def answered(client: RawClient) -> bool:
    """Whether a request is answered; the client is closed."""
    try:
        await client.send_frame(b"e")
        return await client.receive() == b"e"
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        await closed(client)


async def closed(client: RawClient) -> None:
    try:
        await client.close()
    except ssl.SSLError:
        pass


async def is_accepted(address: Address, tls: ssl.SSLContext) -> bool:
    try:
        client = await RawClient.connect(address, tls)
    except OSError:
        return False
    return await answered(client)


async def plain(address: Address, *sent: bytes) -> bytes:
    """The answers of the server to these bytes until it closes."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        for part in sent:
            writer.write(part)
            await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def hello(tls: ssl.SSLContext) -> bytes:
    """The first bytes of a client."""
    outgoing = ssl.MemoryBIO()
    client = tls.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_listeners_stand_side_by_side_each_with_its_name_protocol_and_certificate(authority: Authority) -> None:
    async def scenario() -> None:
        listeners = {
            "INSIDE": ListenerConfig(listen="127.0.0.1:0", protocol="PLAINTEXT"),
            "OUTSIDE": authority.listener("outside"),
            "OTHER": authority.listener("other"),
        }
        async with serving(listeners=listeners) as (server, dispatcher):
            inside, *over_tls = server.addresses
            assert await answered(await RawClient.connect(inside))
            shown = []
            for address in over_tls:
                client = await RawClient.connect(address, authority.client())
                certificate = client.writer.get_extra_info("peercert")
                shown += [value for part in certificate["subject"] for key, value in part if key == "commonName"]
                assert await answered(client)
            assert shown == ["outside", "other"]
            found = {(each.listener, each.protocol, each.principal) for each in dispatcher.sessions}
            names = [("INSIDE", "PLAINTEXT"), ("OUTSIDE", "SSL"), ("OTHER", "SSL")]
            assert found == {(name, protocol, "User:ANONYMOUS") for name, protocol in names}

    run(scenario())


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        (("DEFAULT",), "User:CN=orders,OU=Trading,O=Example"),
        ((r"RULE:^CN=(.*?),OU=(.*?),O=.*$/$1@$2/L", "DEFAULT"), "User:orders@trading"),
        ((r"RULE:^CN=(other),.*$/$1/", "DEFAULT"), "User:CN=orders,OU=Trading,O=Example"),
    ],
)
def test_a_certificate_of_a_client_is_its_principal(
    authority: Authority, rules: tuple[str, ...], principal: str
) -> None:
    async def scenario() -> None:
        settings: dict[str, Any] = {"ca": authority.ca, "client_auth": "requested", "principal_mapping_rules": rules}
        async with serving(listeners={"MUTUAL": authority.listener(**settings)}) as (server, dispatcher):
            shows = authority.issue("orders", organization="Example", unit="Trading")
            assert await is_accepted(server.addresses[0], authority.client(shows))
            assert await is_accepted(server.addresses[0], authority.client())
            assert {each.principal for each in dispatcher.sessions} == {principal, "User:ANONYMOUS"}

    run(scenario())


def test_a_client_that_may_not_in_is_told_and_named(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        stranger = Authority(tmp_path, "strangers")
        rules = ("RULE:^CN=orders,.*$/orders/",)
        settings: dict[str, Any] = {"ca": authority.ca, "client_auth": "required", "principal_mapping_rules": rules}
        async with serving(listeners={"MUTUAL": authority.listener(**settings)}) as (server, dispatcher):
            (address,) = server.addresses
            yesterday = datetime.now(UTC) - timedelta(days=1)
            trusting = authority.client()
            trusting.load_cert_chain(*stranger.issue("orders"))
            assert not await is_accepted(address, trusting)
            assert not await is_accepted(address, authority.client(authority.issue("orders", until=yesterday)))
            assert not await is_accepted(address, authority.client())
            assert not await is_accepted(address, authority.client(authority.issue("nobody")))
            assert not await is_accepted(address, stranger.client(authority.issue("orders")))
            assert await is_accepted(address, authority.client(authority.issue("orders")))
            assert {each.principal for each in dispatcher.sessions} == {"User:orders"}
            assert server.counters.handshakes_refused == 5

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("mainstem")]
    reasons = [
        "unable to get local issuer",
        "expired",
        "did not return a certificate",
        "no rule",
        "ended the TLS handshake",
    ]
    assert len(lines) == len(reasons)
    for line, reason in zip(lines, reasons, strict=True):
        assert reason in line
        assert "on listener MUTUAL" in line


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_versions_of_tls_are_refused(authority: Authority) -> None:
    async def scenario() -> None:
        listeners = {"ANY": authority.listener(), "NEW": authority.listener("new", tls_min="1.3")}
        async with serving(listeners=listeners) as (server, _):
            usual, new = server.addresses
            tls = authority.client()
            tls.maximum_version = ssl.TLSVersion.TLSv1_2
            assert await is_accepted(usual, tls)
            assert not await is_accepted(new, tls)
            tls.set_ciphers("ALL:@SECLEVEL=0")
            tls.minimum_version = ssl.TLSVersion.TLSv1_1
            tls.maximum_version = ssl.TLSVersion.TLSv1_1
            assert not await is_accepted(usual, tls)

    run(scenario())


def test_no_session_is_negotiated_anew(authority: Authority) -> None:
    made = ListenerCertificate("TLS", authority.listener()).context
    assert made.options & ssl.OP_NO_RENEGOTIATION
    assert made.options & ssl.OP_NO_COMPRESSION


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        (b"\x00\x00\x00\x15\x00\x12\x00\x03\x00\x00\x00\x01\x00\x0bclient-name", "speaks no TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "speaks no TLS"),
        (b"\x16\x03\x01\xff\xff" + bytes(20_000), "no TLS handshake"),
        (b"\x16\x03\x01\x00\x04\x01\x7f\xff\xff", "no TLS handshake"),
        (b"\x16\x03\x01" + bytes(2) + b"\x16\x03\x01" * 50, "no TLS handshake"),
    ],
)
def test_what_is_no_handshake_is_one_line(
    authority: Authority, sent: bytes, logged: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "SECONDS_MAX", 1.0)  # the last one promises more than it sends

    async def scenario() -> None:
        async with serving(listeners={"TLS": authority.listener()}) as (server, _):
            (address,) = server.addresses
            await plain(address, sent)
            await until(lambda: server.counters.handshakes_refused == 1)
            assert await is_accepted(address, authority.client())
            await until(lambda: not server.handshaking)

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("mainstem")]
    assert logged in line


def test_a_handshake_that_does_not_go_on_is_ended(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "SECONDS_MAX", 0.1)

    async def scenario() -> None:
        async with serving(listeners={"TLS": authority.listener()}) as (server, _):
            (address,) = server.addresses
            assert await plain(address) == b""
            half = hello(authority.client())
            assert await plain(address, half[:20], half[20:100]) == b""
            assert server.handshaking == 0
            assert server.counters.handshakes_refused == 2

    run(scenario())


def test_a_peer_that_leaves_before_it_has_said_anything_is_not_worth_a_line(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(listeners={"TLS": authority.listener()}) as (server, _):
            (address,) = server.addresses
            with socket.create_connection((address.host, address.port)):
                await until(lambda: server.handshaking)
            await until(lambda: not server.handshaking)

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    assert not [record for record in caplog.records if record.name.startswith("mainstem")]


def test_connections_without_tls_yet_count_as_connections(authority: Authority) -> None:
    async def scenario() -> None:
        async with serving(listeners={"TLS": authority.listener()}, connections_max=2) as (server, _):
            (address,) = server.addresses
            with socket.create_connection((address.host, address.port)):
                client = await RawClient.connect(address, authority.client())
                assert not await is_accepted(address, authority.client())
                assert server.counters.refused == 1
                assert await answered(client)
            await until(lambda: not server.handshaking and not server.connections)
            assert await is_accepted(address, authority.client())

    run(scenario())


def test_whatever_bytes_come_the_server_goes_on(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    chosen = random.Random(20)
    whole = hello(authority.client())

    def spoilt() -> bytes:
        spoilt = bytearray(whole)
        for _ in range(chosen.randrange(1, 6)):
            spoilt[chosen.randrange(len(spoilt))] = chosen.randrange(256)
        return bytes(spoilt[: chosen.randrange(1, len(spoilt) + 1)]) + chosen.randbytes(chosen.choice((0, 0, 5, 300)))

    async def scenario() -> None:
        async with serving(listeners={"TLS": authority.listener()}) as (server, _):
            (address,) = server.addresses
            bystander = await RawClient.connect(address, authority.client())
            for _ in range(300):
                with socket.create_connection((address.host, address.port)) as peer:
                    peer.sendall(spoilt())
            await until(lambda: not server.handshaking)
            assert await answered(bystander)

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    assert not [record for record in caplog.records if record.exc_info or record.name == "asyncio"]


def test_bytes_that_are_spoilt_behind_the_handshake_end_the_connection(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(listeners={"TLS": authority.listener()}) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0], authority.client())
            await client.send_frame(b"e")
            await client.receive()
            connection = client.writer.get_extra_info("socket")
            os.write(connection.fileno(), b"\x17\x03\x03\x00\x40" + bytes(64))
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await client.receive()
            await until(lambda: not server.connections)
            assert len(dispatcher.gone) == 1

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("mainstem")]
    assert "bad record mac" in line


def test_a_peer_that_only_changes_its_keys_shares_the_loop_and_is_cut_off(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(listeners={"TLS": authority.listener()}) as (server, dispatcher):
            address = server.addresses[0]
            peer = await KeyUpdatingPeer.connect(address, authority.client(), tmp_path / "secrets")
            await until(lambda: bool(server.connections))
            flood = peer.key_updates(tls_transport.BARREN_BYTES_MAX + 64 * 1024)
            peer.writer.write(flood)
            turns = 0
            while server.connections:
                turns += 1
                await asyncio.sleep(0)
            # one piece in each turn but the first, and few of them in the turns that read from the socket
            assert turns >= tls_transport.BARREN_BYTES_MAX // tls_transport.BARREN_PIECE_BYTES // 2
            assert len(dispatcher.gone) == 1
            assert await is_accepted(address, authority.client())
            peer.writer.close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("mainstem")]
    assert "next to no data" in line


@pytest.mark.parametrize("size", [0, 1])
def test_a_peer_whose_records_have_next_to_no_data_is_cut_off(
    authority: Authority, tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(listeners={"TLS": authority.listener()}) as (server, dispatcher):
            peer = await KeyUpdatingPeer.connect(server.addresses[0], authority.client(), tmp_path / "secrets")
            await until(lambda: bool(server.connections))
            frame = (50_000).to_bytes(4, "big") + bytes(50_000)
            flood = b"".join(peer.data(frame[at : at + size]) for at in range(20_000))
            assert len(flood) > tls_transport.BARREN_BYTES_MAX
            peer.writer.write(flood)
            await until(lambda: not server.connections)
            assert len(dispatcher.gone) == 1
            assert await is_accepted(server.addresses[0], authority.client())
            peer.writer.close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("mainstem")]
    assert ("next to no data" if size else "record") in line


class GonePlain(asyncio.Transport):
    """The transport of a peer that is gone, which nobody has been told of yet. As uvloop's it takes no calls then.
    `gone`: it finds out with the first write."""

    def __init__(self, *, gone: bool) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.gone = gone
        self.calls: list[str] = []

    def is_closing(self) -> bool:
        return self.gone

    def pause_reading(self) -> None:
        self._called("pause_reading")

    def resume_reading(self) -> None:
        self._called("resume_reading")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._called("write")
        self.gone = True

    def close(self) -> None:
        self._called("close")

    def _called(self, name: str) -> None:
        if self.gone:
            raise RuntimeError(f"{name} of a transport whose handler is closed")
        self.calls.append(name)


@pytest.mark.parametrize("gone", [True, False])
def test_a_turn_that_comes_too_late_touches_nothing(authority: Authority, gone: bool) -> None:
    async def scenario() -> None:
        told: list[str] = []
        turns = handshakes.Handshakes(PacedSteps(LoopClock()), lambda host: True)
        certificate = ListenerCertificate("TLS", authority.listener())
        listener = tls_transport.TlsListener(
            certificate, PrincipalMapping(()), turns, tls_transport.SharedMemory(), told.append, lambda: None
        )
        transport = tls_transport.TlsTransport(listener, lambda: pytest.fail("there is no connection"))
        below = GonePlain(gone=False)
        transport.connection_made(below)
        content = hello(authority.client())
        transport.get_buffer(-1)[: len(content)] = content
        transport.buffer_updated(len(content))
        below.gone = gone
        transport.step()
        assert below.calls == (["pause_reading"] if gone else ["pause_reading", "write"])
        transport.connection_lost(ConnectionResetError())
        assert (len(turns), told) == (0, [])

    run(scenario())


def test_a_peer_that_resets_its_connection_while_its_handshake_waits_is_no_fault(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Its turn comes when the kernel knows that it is gone, and the event loop does not yet, or has just heard."""

    async def scenario() -> None:
        async with serving(listeners={"TLS": authority.listener()}) as (server, _):
            (address,) = server.addresses
            for _ in range(3):
                peers = [socket.create_connection((address.host, address.port)) for _ in range(100)]
                for peer in peers:
                    peer.sendall(hello(authority.client()))
                await asyncio.sleep(0)
                for peer in peers:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    peer.close()
                await until(lambda: not server.handshaking)
            assert await is_accepted(address, authority.client())

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert [record.getMessage() for record in caplog.records if record.exc_info or record.name == "asyncio"] == []


def test_a_peer_that_changes_its_keys_now_and_then_is_served(authority: Authority, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(listeners={"TLS": authority.listener()}) as (server, _):
            peer = await KeyUpdatingPeer.connect(server.addresses[0], authority.client(), tmp_path / "secrets")
            content = b"e" + bytes(40_000)
            frame = len(content).to_bytes(4, "big") + content
            for _ in range(10):
                barren = peer.key_updates(3 * tls_transport.PIECE_BYTES)
                records = [peer.data(frame[at : at + 16_000]) for at in range(0, len(frame), 16_000)]
                peer.writer.write(barren + b"".join(records))
                assert await peer.receive(len(frame)) == frame
            # in all more than twice what the node takes of them without data
            assert 10 * 3 * tls_transport.PIECE_BYTES > tls_transport.BARREN_BYTES_MAX
            peer.writer.close()

    run(scenario())


@pytest.mark.parametrize("shared", [True, False])
def test_a_connection_reads_in_short_turns_while_tenants_share_the_node(authority: Authority, shared: bool) -> None:
    async def scenario() -> None:
        async with serving(listeners={"TLS": authority.listener()}) as (server, dispatcher):
            dispatcher.takes_turns = shared
            client = await RawClient.connect(server.addresses[0], authority.client())
            content = b"e" + bytes(4_000_000)
            sending = asyncio.ensure_future(client.send_frame(content))
            turns = []
            while not dispatcher.seen:
                before = server.counters.bytes_in
                await asyncio.sleep(0)
                turns.append(server.counters.bytes_in - before)
            await sending
            assert dispatcher.seen == [content]
            assert sum(turns) == len(content) + 4
            few = 3 * tls_transport.SHARED_BYTES_MAX  # the loop may take a turn or two between two of the test's
            assert (max(turns) <= few) == shared
            await client.reset()

    run(scenario())


def test_new_connections_are_shown_the_certificate_that_the_files_have(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def serial(client: RawClient) -> str:
        return str(client.writer.get_extra_info("peercert")["serialNumber"])

    async def scenario() -> None:
        listener = authority.listener()
        async with serving(LoopClock(), listeners={"TLS": listener}) as (server, _):
            (address,) = server.addresses
            old = await RawClient.connect(address, authority.client())
            shutil.copy(__file__, listener.certificate)
            server.look_at_certificates()
            server.look_at_certificates()  # one line, however often
            kept = await RawClient.connect(address, authority.client())
            assert await serial(kept) == await serial(old)
            for new, place in zip(authority.issue("next"), (listener.certificate, listener.key), strict=True):
                shutil.copy(new, place)
            server.look_at_certificates()
            fresh = await RawClient.connect(address, authority.client())
            assert await serial(fresh) != await serial(old)
            for client in (old, kept, fresh):
                assert await answered(client)

    with caplog.at_level(logging.ERROR, "mainstem"):
        run(scenario())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "stays as it was: server.listeners.TLS.certificate" in line


def test_metrics_say_when_a_certificate_expires(authority: Authority) -> None:
    async def scenario() -> None:
        clock = LoopClock()
        ends = datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC)
        certificate, key = authority.issue("late", until=ends)
        listener = ListenerConfig(listen="127.0.0.1:0", protocol="SSL", certificate=certificate, key=key)
        async with serving(clock, listeners={"TLS": listener}) as (server, _):
            (found,) = [
                each for each in server.samples()
                if isinstance(each, Sample) and each.name == "mainstem_certificate_expires_seconds"
            ]  # fmt: skip
            assert found.labels == (("listener", "TLS"),)
            assert found.value + clock.now_ms() / 1000 == pytest.approx(ends.timestamp(), abs=5)

    run(scenario())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"certificate": "/nowhere.pem"}, "No such file"),
        ({"key": "/nowhere.key"}, "No such file"),
        ({"ca": "/nowhere.ca"}, "No such file"),
        ({"key": ""}, "certificate = "),
        ({"principal_mapping_rules": ("RULE:(/$1/",)}, "regular expression"),
        ({"principal_mapping_rules": ("RULE:(.*)/$2/",)}, "no group 2"),
        ({"principal_mapping_rules": ("CN",)}, "is no rule"),
    ],
)
def test_files_and_rules_that_cannot_be_used_are_named(
    authority: Authority, settings: dict[str, Any], said: str
) -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
            async with serving(listeners={"TLS": authority.listener(**settings)}):
                pass

    run(scenario())


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("lower", {}, "capitals"),
        ("PLAINTEXT", {}, "PLAINTEXT"),
        ("TLS", {"certificate": ""}, "certificate is missing"),
        ("TLS", {"client_auth": "required"}, "ca is missing"),
        ("TLS", {"listen": "nowhere"}, "listen"),
        ("TLS", {"advertise": "nowhere"}, "advertise"),
        ("TLS", {"protocol": "PLAINTEXT"}, "has no TLS"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    authority: Authority, name: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        authority.listener(**settings).validate(name)
    authority.listener().validate("TLS")


def test_what_has_come_lies_where_it_is_charged(authority: Authority) -> None:
    """Also of a connection that waits with what it has read: its buffer has it, not its TLS."""

    async def story() -> None:
        async with serving(listeners={"TLS": authority.listener()}) as (server, dispatcher):
            client = await RawClient.connect(server.addresses[0], authority.client())
            echoed = framed(*[b"e" + bytes(1000)] * 1000)
            sending = asyncio.create_task(client.send(echoed))
            await client.reader.readexactly(len(echoed))  # a buffer that has grown
            await sending
            dispatcher.room = False
            waiting = [PIPELINED + bytes([number]) * 1000 for number in range(200)]
            await client.send(framed(*waiting))
            (connection,) = server.connections
            await until(lambda: not connection.is_reading)
            transport = connection._transport  # noqa: SLF001  # what TLS holds is seen nowhere else
            assert isinstance(transport, tls_transport.TlsTransport)
            held = []
            for _ in range(50):
                await asyncio.sleep(0.001)
                held.append(len(transport._held))  # noqa: SLF001
            assert max(held) <= tls_transport.RECEIVED_BYTES_LEAST
            dispatcher.make_room()
            await until(lambda: set(waiting) <= set(dispatcher.seen))
            assert [content for content in dispatcher.seen if content[:1] == PIPELINED] == waiting
            client.writer.transport.abort()  # what was pipelined is not answered

    run(story())
