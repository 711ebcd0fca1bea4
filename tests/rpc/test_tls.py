"""TLS between nodes and from splitters: who is let in, whose certificate is whose, and what both logs say."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
import trustme
from tests.harness.patience import PATIENCE_SECONDS
from tests.rpc.conftest import Run
from tests.rpc.raft_nodes import Node, append, entries_of, until

from mainstem.errors import ConfigError
from mainstem.rpc.blocking import BlockingClient
from mainstem.rpc.client import Client
from mainstem.rpc.errors import CertificateMismatch, ConnectionLost, ProtocolViolation, RpcError, TlsRefused
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.client_connection import connect_tls
from mainstem.rpc.wire.door import HANDSHAKES_PER_HOST_MAX
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Method, Nothing, Reply
from mainstem.rpc.wire.node_certificate import node_certificate
from mainstem.rpc.wire.tls import RpcTlsConfig, context, names_in

ECHO = Method(200, "test.echo", Nothing, Nothing)


class Authority:
    """Issues certificates into a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self._authority = trustme.CA()
        self._directory = directory / name
        self._directory.mkdir()
        self.ca = self._directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    def issue(
        self,
        *names: str,
        common_name: str | None = None,
        ca: Authority | None = None,
        until: datetime | None = None,
    ) -> RpcTlsConfig:
        """A certificate with these names; `ca`: whom its holder trusts, if not this authority."""
        issued = self._authority.issue_cert(*names or ("anything",), common_name=common_name, not_after=until)
        path = self._directory / f"{'-'.join(names) or common_name or 'plain'}.pem"
        issued.private_key_pem.write_to_path(f"{path}.key")
        chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
        path.write_bytes(chain)
        return RpcTlsConfig(certificate=str(path), key=f"{path}.key", ca=str((ca or self).ca))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


def client_side(config: RpcTlsConfig) -> ssl.SSLContext:
    made = context(config, server_side=False)
    assert made is not None
    return made


def identity(node_id: int) -> Identity:
    return Identity("cluster", node_id, node_id.to_bytes(16, "big"))


@asynccontextmanager
async def serving(config: RpcTlsConfig, node_id: int = 2) -> AsyncIterator[tuple[str, int]]:
    """A node's server that echoes attachments."""
    handlers = Handlers()

    def echo(call: RpcCall[Nothing]) -> Reply[Nothing]:
        return Reply(Nothing(), [call.attachment])

    handlers.prompt(ECHO, echo)
    server = RpcServer(handlers, node=identity(node_id), certificate=node_certificate(config))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield await server.start("127.0.0.1", 0)
    finally:
        await server.close()


def test_large_and_small_calls_go_through(run: Run, authority: Authority) -> None:
    async def test() -> None:
        ours = authority.issue("mainstem-node-1")
        async with (
            serving(authority.issue("mainstem-node-2")) as (host, port),
            Client(host, port, node=identity(1), seeks=2, tls=client_side(ours)) as client,
        ):
            for size in (0, 1, 100_000, 3_000_000):
                data = bytes([size % 251]) * size
                reply = await client.call(ECHO, Nothing(), [data], timeout_seconds=20)
                assert reply.attachment == data

    run(test)


def test_a_splitters_client_calls_with_tls(run: Run, authority: Authority) -> None:
    async def test() -> None:
        async with serving(authority.issue("mainstem-node-2")) as (host, port):
            ours = authority.issue("mainstem-client")

            def use() -> None:
                with BlockingClient(host, port, tls=partial(client_side, ours)) as client:
                    for size in (1, 3_000_000):
                        reply = client.call(ECHO, Nothing(), [bytes(size)], timeout_seconds=20)
                        assert reply.attachment == bytes(size)

            await asyncio.to_thread(use)

    run(test)


def test_an_expired_certificate_is_refused_as_such_in_both_logs(
    run: Run, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        valid, expired = authority.issue("valid"), authority.issue("expired", until=datetime(2001, 1, 1))
        for ours, theirs, at_caller, at_callee in (
            (expired, valid, "renew rpc_tls.certificate here|be valid now", "expired): renew rpc_tls"),
            (valid, expired, "expired.*renew rpc_tls.certificate there", "be valid now"),
        ):
            caplog.clear()
            async with serving(theirs) as (host, port), Client(host, port, tls=client_side(ours)) as client:
                with pytest.raises(TlsRefused, match=at_caller):
                    await client.call(ECHO, Nothing(), timeout_seconds=20)
                await until(lambda: at_callee in caplog.text)  # noqa: B023 - awaited here

    with caplog.at_level(logging.WARNING, "mainstem.rpc"):
        run(test)


@pytest.mark.parametrize("blocking", [False, True])
def test_the_wrong_authority_is_refused_in_both_logs(
    run: Run, authority: Authority, stranger: Authority, blocking: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller's certificate is not accepted, or the callee's is not."""

    async def test() -> None:
        for config, at_caller, at_callee in (
            (stranger.issue(ca=authority), "not accept the certificate of this process", "is not accepted"),
            (
                authority.issue(ca=stranger),
                "shows is not accepted",
                "does not accept the certificate of this process",
            ),
        ):
            caplog.clear()
            async with serving(authority.issue("mainstem-node-2")) as (host, port):
                with pytest.raises(TlsRefused, match=at_caller):
                    await call_once(host, port, config, blocking)
                await until(lambda at_callee=at_callee: at_callee in caplog.text)  # type: ignore[misc]

    with caplog.at_level(logging.WARNING, "mainstem.rpc.rpc_server"):
        run(test)


async def call_once(host: str, port: int, config: RpcTlsConfig, blocking: bool) -> None:
    if blocking:
        with BlockingClient(host, port, tls=partial(client_side, config)) as client:
            await asyncio.to_thread(client.call, ECHO, Nothing(), timeout_seconds=20)
    else:
        async with Client(host, port, tls=client_side(config)) as client:
            await client.call(ECHO, Nothing(), timeout_seconds=20)


def test_one_end_without_tls_is_told_so(run: Run, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(authority.issue()) as (host, port):
            async with Client(host, port) as client:
                with pytest.raises(RpcError, match=r"set rpc_tls at both|lost|closed"):
                    await client.call(ECHO, Nothing(), timeout_seconds=20)
            await until(lambda: "speaks no TLS" in caplog.text)
        caplog.clear()
        async with serving(RpcTlsConfig()) as (host, port):
            async with Client(host, port, tls=client_side(authority.issue())) as client:
                with pytest.raises(ConnectionLost):
                    await client.call(ECHO, Nothing(), timeout_seconds=20)
            await until(lambda: "these are bytes of TLS" in caplog.text)

    with caplog.at_level(logging.WARNING, "mainstem.rpc.rpc_server"):
        run(test)


@pytest.mark.parametrize(
    ("names", "common_name", "accepted"),
    [
        (("mainstem-node-1",), None, True),
        (("mainstem-node-3", "mainstem-node-1"), None, True),
        (("MAINSTEM-node-1",), None, True),
        (("host.example",), None, True),
        (("host.example",), "mainstem-node-1", True),
        (("mainstem-node-3",), None, False),
        (("mainstem-node-11",), None, False),
        (("mainstem-client",), None, False),
        (("host.example",), "mainstem-node-3", False),
    ],
)
def test_a_certificate_speaks_for_the_nodes_it_names(
    authority: Authority, names: tuple[str, ...], common_name: str | None, accepted: bool
) -> None:
    async def test() -> None:
        config = authority.issue(*names, common_name=common_name)
        async with serving(authority.issue("mainstem-node-2")) as (host, port):
            async with Client(host, port, node=identity(1), tls=client_side(config)) as client:
                if accepted:
                    await client.call(ECHO, Nothing(), timeout_seconds=20)
                else:
                    with pytest.raises(CertificateMismatch, match="calls itself node 1 with a certificate of"):
                        await client.call(ECHO, Nothing(), timeout_seconds=20)
            async with Client(host, port, tls=client_side(config)) as client:  # as a client it may call
                await client.call(ECHO, Nothing(), timeout_seconds=20)
        async with (  # nor may a server be another node
            serving(config, node_id=1) as (host, port),
            Client(host, port, tls=client_side(authority.issue())) as client,
        ):
            if accepted:
                await client.call(ECHO, Nothing(), timeout_seconds=20)
            else:
                with pytest.raises(CertificateMismatch):
                    await client.call(ECHO, Nothing(), timeout_seconds=20)

    asyncio.run(test())


def test_raft_messages_travel_over_tls(run: Run, authority: Authority) -> None:
    async def test() -> None:
        one_tls, two_tls = authority.issue("mainstem-node-1"), authority.issue("mainstem-node-2")
        one, two = Node(1, connect=connect_tls(client_side(one_tls))), Node(2)
        server = RpcServer(two.handlers, node=two.identity, certificate=node_certificate(two_tls))
        one.join(0)
        two.join(0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            one.exchange.set_peers({2: await server.start("127.0.0.1", 0)})  # type: ignore[dict-item]
            data = [bytes([place]) * 700_000 for place in range(12)]
            one.exchange.send(0, [append(1, 2, 0, *data)])
            group = two.members[0]
            await group.until(lambda: len(entries_of(group.messages)) == 12)
            assert entries_of(group.messages) == list(enumerate(data, 1))
        await one.close()
        await server.close()

    run(test)


def test_connections_that_never_shake_hands_are_closed_with_the_server(run: Run, authority: Authority) -> None:
    async def test() -> None:
        async with serving(authority.issue()) as (host, port):
            reader, writer = await asyncio.open_connection(host, port)
            async with Client(host, port, tls=client_side(authority.issue())) as client:
                await client.call(ECHO, Nothing(), timeout_seconds=20)  # the other one was accepted before
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()

    run(test)


# --- settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"certificate": "c"}, "key and ca missing"),
        ({"ca": "a"}, "certificate and key missing"),
        ({"crl": "r"}, "rpc_tls.crl .* takes certificate, key and ca"),
        ({"certificate": "c", "key": "k"}, "ca missing"),
    ],
)
def test_all_files_or_none(given: dict[str, str], missing: str) -> None:
    RpcTlsConfig().validate()
    with pytest.raises(ConfigError, match=missing):
        RpcTlsConfig(**given).validate()


def test_no_files_is_no_tls() -> None:
    assert context(RpcTlsConfig(), server_side=True) is None


def test_files_that_cannot_be_used_are_named(tmp_path: Path, authority: Authority, stranger: Authority) -> None:
    good, other = authority.issue("good"), stranger.issue("other")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for config, named in (
        (
            RpcTlsConfig(certificate=good.certificate, key=good.key, ca="/nowhere/ca.pem"),
            "rpc_tls.ca = '/nowhere",
        ),
        (RpcTlsConfig(certificate=good.certificate, key=good.key, ca=str(nonsense)), "rpc_tls.ca ="),
        (RpcTlsConfig(certificate=str(nonsense), key=good.key, ca=good.ca), "rpc_tls.certificate ="),
        (RpcTlsConfig(certificate=good.certificate, key=other.key, ca=good.ca), "with key ="),
    ):
        with pytest.raises(ConfigError, match=named):
            context(config, server_side=True)


def test_names_of_a_certificate() -> None:
    assert names_in(None) == names_in({}) == frozenset()
    assert names_in({
        "subject": ((("organizationName", "mainstem-node-9"),), (("commonName", "Mainstem-Node-1"),)),
        "subjectAltName": (("DNS", "mainstem-client"), ("DNS", "host"), ("URI", "mainstem-node-8")),
    }) == {"mainstem-node-1", "mainstem-client"}  # fmt: skip


def test_tls_errors_are_losses_of_the_connection() -> None:
    """A client that retries what a lost connection left open retries these as well: they may have been corrected."""
    assert issubclass(TlsRefused, ConnectionLost)
    assert not issubclass(ProtocolViolation, ConnectionLost)


def test_an_address_that_finishes_no_handshake_keeps_no_other_one_out(run: Run, authority: Authority) -> None:
    async def test() -> None:
        silent: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        ours = authority.issue("mainstem-node-1")
        async with serving(authority.issue("mainstem-node-2")) as (host, port), asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(HANDSHAKES_PER_HOST_MAX + 1):
                silent.append(await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0)))
            with contextlib.suppress(ConnectionResetError):
                assert await silent[-1][0].read() == b"", "one too many is closed at once"
            async with Client(host, port, node=identity(1), seeks=2, tls=client_side(ours)) as client:
                await client.call(ECHO, Nothing(), timeout_seconds=20)
            assert not any(reader.at_eof() for reader, _ in silent[:-1])
            for _, writer in silent:
                writer.close()

    run(test)
