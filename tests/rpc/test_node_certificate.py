"""Certificates of nodes that change or are revoked while nodes run: both ends, new connections and open ones."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.rpc.conftest import Run
from tests.rpc.raft_nodes import until
from tests.server.tls.certificates import Authority

from mainstem.errors import ConfigError
from mainstem.rpc.blocking import BlockingClient
from mainstem.rpc.errors import RpcError, TlsRefused
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Method, Nothing, Reply
from mainstem.rpc.wire.node_certificate import NodeCertificate
from mainstem.rpc.wire.tls import RpcTlsConfig

ECHO = Method(200, "test.echo", Nothing, Nothing)
WAIT = Method(201, "test.wait", Nothing, Nothing)


class Certified:
    """A node's end whose certificate lies in files of its own."""

    def __init__(self, node_id: int, authority: Authority, directory: Path, crl: Path | None = None) -> None:
        self.node_id, self._directory = node_id, directory / f"node-{node_id}"
        self._directory.mkdir()
        self._trusted = self._directory / "ca.pem"
        self.shown = self.show(authority)
        self.trust(authority)
        self.config = RpcTlsConfig(
            certificate=self._file("pem"), key=self._file("key"), ca=str(self._trusted), crl=str(crl or "")
        )
        self.certificate = NodeCertificate(self.config, looks_seconds=0.02)
        handlers = Handlers()

        async def echo(call: RpcCall[Nothing]) -> Reply[Nothing]:
            return Reply(Nothing())

        async def wait(call: RpcCall[Nothing]) -> Reply[Nothing]:
            self.waited_for.set()
            await asyncio.sleep(10 * PATIENCE_SECONDS)
            return Reply(Nothing())

        handlers.unary(ECHO, echo)
        handlers.unary(WAIT, wait)
        identity = Identity("cluster", node_id, bytes([node_id]) * 16)
        self.waited_for = asyncio.Event()
        self.end = NodeEnd(identity, handlers, random=Random(node_id), certificate=self.certificate)
        self.address = "", 0

    def show(self, authority: Authority) -> tuple[str, str]:
        """Replace the files by a new certificate of this authority; returns where it issued them."""
        issued = authority.issue(f"mainstem-node-{self.node_id}")
        for file, ending in zip(issued, ("pem", "key"), strict=True):
            replaced(Path(self._file(ending)), Path(file).read_bytes())
        self.shown = issued
        return issued

    def trust(self, *authorities: Authority) -> None:
        replaced(self._trusted, b"".join(Path(authority.ca).read_bytes() for authority in authorities))

    async def call(self, other: Certified) -> None:
        await self.end.calls.call(other.node_id, ECHO, Nothing(), timeout_seconds=20)

    def _file(self, ending: str) -> str:
        return str(self._directory / f"node.{ending}")


def replaced(file: Path, content: bytes) -> None:
    other = file.with_suffix(".new")
    other.write_bytes(content)
    other.rename(file)


def copied(file: Path, to: str) -> None:
    replaced(Path(to), file.read_bytes())


@asynccontextmanager
async def connected(*nodes: Certified) -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for node in nodes:
            node.address = await node.end.start("127.0.0.1", 0)
        for node in nodes:
            for other in nodes:
                node.end.record_calls.know(other.node_id, "{}:{}".format(*other.address))
                node.end.calls.hear(other.node_id, "{}:{}".format(*other.address))
        try:
            yield
        finally:
            for node in nodes:
                await node.end.close()


async def serial_shown(node: Certified, trusted: Authority) -> str:
    """The serial number of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=trusted.ca)
    context.load_cert_chain(*node.shown)
    _, writer = await asyncio.open_connection(*node.address, ssl=context)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    return str(certificate["serialNumber"])


def test_new_connections_use_new_files_at_both_ends_and_open_ones_stay(run: Run, tmp_path: Path) -> None:
    """The cluster moves to another authority, node by node, without a call that fails."""

    async def test() -> None:
        old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
        one, two = Certified(1, old, tmp_path), Certified(2, old, tmp_path)
        async with connected(one, two):
            await one.call(two)
            first = await serial_shown(two, old)
            for step in ("trust both", "show new", "trust new"):
                for node in (one, two):
                    if step == "show new":
                        node.show(new)
                    else:
                        node.trust(*((old, new) if step == "trust both" else (new,)))
                    node.certificate.look()
                    for caller, called in ((one, two), (two, one)):
                        await caller.end.record_calls.call(called.node_id, ECHO, Nothing(), timeout_seconds=20)
                        caller.end.record_calls.close()  # its next call connects anew
                        await caller.call(called)
            assert await serial_shown(two, new) != first
            stranger = Certified(3, old, tmp_path)
            stranger.trust(old, new)
            stranger.certificate.look()
            stranger.end.calls.know(2, "{}:{}".format(*two.address))
            with pytest.raises(TlsRefused, match="does not accept the certificate of this process"):
                await stranger.call(two)
            await stranger.end.close()

    run(test)


def test_files_that_do_not_fit_leave_the_old_ones_in_place(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        authority = Authority(tmp_path)
        one, two = Certified(1, authority, tmp_path), Certified(2, authority, tmp_path)
        async with connected(one, two):
            before = await serial_shown(two, authority)
            certificate, key = (Path(file) for file in authority.issue("mainstem-node-2"))
            copied(certificate, two.config.certificate)
            two.certificate.look()
            await one.call(two)
            assert await serial_shown(two, authority) == before
            copied(key, two.config.key)
            two.certificate.look()
            assert await serial_shown(two, authority) != before

    with caplog.at_level(logging.ERROR, "mainstem.rpc"):
        run(test)
    (told,) = caplog.records
    assert "stays as it was: rpc_tls.certificate = " in told.getMessage()


def test_a_revoked_node_is_refused_and_loses_its_connections(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three nodes, one is revoked: it neither calls nor is called, the others go on over what they have open."""

    async def test() -> None:
        authority, crl = Authority(tmp_path), tmp_path / "nodes.crl"
        crl.write_bytes(authority.revocation_list())
        one, two, three = (Certified(node_id, authority, tmp_path, crl) for node_id in (1, 2, 3))
        async with connected(one, two, three):
            for caller in (one, two, three):
                for called in (one, two, three):
                    if caller is not called:
                        await caller.call(called)
            out = asyncio.create_task(three.end.record_calls.call(1, WAIT, Nothing(), timeout_seconds=100))
            back = asyncio.create_task(one.end.record_calls.call(3, WAIT, Nothing(), timeout_seconds=100))
            await one.waited_for.wait()
            await three.waited_for.wait()
            replaced(crl, b"no list")
            await until(lambda: "no list of revoked certificates is in it" in caplog.text)
            await three.call(one)
            replaced(crl, authority.revocation_list(three.shown))  # the task of each node sees it
            for waiting in (out, back):
                with pytest.raises(RpcError):
                    await waiting
            for other in (one, two):
                with pytest.raises(RpcError):
                    await three.call(other)
                with pytest.raises(TlsRefused, match="shows is revoked"):
                    await other.call(three)
            await one.call(two)
            await two.call(one)
            assert all(each.node is None or each.node.node_id != 3 for each in one.end.server.connections)
            assert [each.name for each in one.certificate.samples()] == [
                "mainstem_rpc_certificate_expires_seconds",
                "mainstem_rpc_revocation_list_expires_seconds",
            ]

    with caplog.at_level(logging.INFO, "mainstem.rpc"):
        run(test)
    for told in ("its certificate was revoked meanwhile", "the certificate that it shows is revoked"):
        assert told in caplog.text


def test_a_callee_with_a_revoked_certificate_hears_no_call(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        authority, crl = Authority(tmp_path), tmp_path / "nodes.crl"
        crl.write_bytes(authority.revocation_list())
        one, two = Certified(1, authority, tmp_path, crl), Certified(2, authority, tmp_path)
        crl.write_bytes(authority.revocation_list(two.shown, next_update=datetime.now(UTC) - timedelta(days=1)))
        one.certificate = NodeCertificate(one.config)
        async with connected(two):
            client = NodeEnd(one.end.identity, Handlers(), random=Random(1), certificate=one.certificate)
            client.calls.know(2, "{}:{}".format(*two.address))
            with pytest.raises(TlsRefused, match=r"shows is revoked: renew rpc_tls\.certificate there"):
                await client.calls.call(2, WAIT, Nothing(), timeout_seconds=20)
            assert not two.waited_for.is_set()
            await client.close()

    run(test)


def test_a_splitter_uses_new_files_when_it_connects_again(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
        two, splitter = Certified(2, old, tmp_path), Certified(9, old, tmp_path)
        async with connected(two):

            def call() -> None:
                client.call(ECHO, Nothing(), timeout_seconds=20)

            with BlockingClient(*two.address, tls=splitter.certificate.calling_now) as client:
                await asyncio.to_thread(call)
                for node in (two, splitter):
                    node.show(new)
                    node.trust(new)
                two.certificate.look()
                client.close()
                await asyncio.to_thread(call)
        await splitter.end.close()

    run(test)


def test_a_list_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    authority, crl = Authority(tmp_path), tmp_path / "nodes.crl"
    crl.write_text("no list")
    certificate, key = authority.issue("mainstem-node-1")
    config = RpcTlsConfig(certificate=certificate, key=key, ca=authority.ca, crl=str(crl))
    config.validate()
    with pytest.raises(ConfigError, match=r"rpc_tls\.crl = .* cannot be used"):
        NodeCertificate(config)
