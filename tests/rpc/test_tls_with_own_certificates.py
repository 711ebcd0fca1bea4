"""TLS between nodes with certificates of `mainstem cert`: nodes and splitters are let in, users are not."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.rpc.client import Client
from mainstem.rpc.errors import CertificateMismatch, TlsRefused
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Method, Nothing, Reply
from mainstem.rpc.wire.node_certificate import node_certificate
from mainstem.rpc.wire.tls import RpcTlsConfig, context
from mainstem.security.certificates import holders
from mainstem.security.certificates.certificate_directory import CertificateDirectory

ECHO = Method(200, "test.echo", Nothing, Nothing)
NOW = datetime.now(UTC)


@pytest.fixture
def certs(tmp_path: Path) -> CertificateDirectory:
    made = CertificateDirectory(tmp_path)
    made.make_authorities("test", NOW)
    return made


def config_of(certs: CertificateDirectory, holder: holders.CertificateHolder) -> RpcTlsConfig:
    written = certs.create(holder, NOW, replace=True)
    ca = certs.authority_file(holders.AuthorityKind.NODES)
    return RpcTlsConfig(certificate=str(written.certificate), key=str(written.key), ca=str(ca))


def identity(node_id: int) -> Identity:
    return Identity("cluster", node_id, node_id.to_bytes(16, "big"))


def call(certs: CertificateDirectory, caller: holders.CertificateHolder, node_id: int | None) -> None:
    """Have `caller` call node 2, as node `node_id` or as nobody."""

    def client_side(config: RpcTlsConfig) -> ssl.SSLContext:
        made = context(config, server_side=False)
        assert made is not None
        return made

    def echo(call: RpcCall[Nothing]) -> Reply[Nothing]:
        return Reply(Nothing(), [call.attachment])

    async def test() -> None:
        handlers = Handlers()
        handlers.prompt(ECHO, echo)
        shown = config_of(certs, holders.node(2, ("127.0.0.1",)))
        server = RpcServer(handlers, node=identity(2), certificate=node_certificate(shown))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                host, port = await server.start("127.0.0.1", 0)
                tls = client_side(config_of(certs, caller))
                nobody = Client(host, port, tls=tls)
                async with nobody if node_id is None else Client(host, port, node=identity(node_id), tls=tls) as client:
                    reply = await client.call(ECHO, Nothing(), [b"data"], timeout_seconds=20)
                    assert reply.attachment == b"data"
        finally:
            await server.close()

    asyncio.run(test())


def test_nodes_and_splitters_are_let_in_as_what_they_are(certs: CertificateDirectory) -> None:
    call(certs, holders.node(1, ("127.0.0.1",)), 1)
    call(certs, holders.splitter(), None)
    with pytest.raises(CertificateMismatch, match="calls itself node 3 with a certificate of mainstem-node-1"):
        call(certs, holders.node(1, ("127.0.0.1",)), 3)
    with pytest.raises(CertificateMismatch, match="with a certificate of mainstem-client"):
        call(certs, holders.splitter(), 1)


def test_users_are_not_let_in(certs: CertificateDirectory) -> None:
    with pytest.raises(TlsRefused, match="not accept the certificate of this process"):
        call(certs, holders.user("alice"), None)
