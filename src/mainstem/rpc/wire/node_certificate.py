"""The certificate by which a node calls and answers other nodes, made anew when its files change, and the certificates
of others that are revoked.

New connections use the new files, at both ends; those that are open keep what they shook hands with. Files that
cannot be used, such as a new certificate beside its predecessor's key, leave what was there, with a line in the log,
until they change again. A peer that shows a certificate of the list `crl` is refused, and loses the connections that
it has when the list comes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

from mainstem.certificate_files import x509
from mainstem.certificate_files.file_stamps import FileStamp, stamps
from mainstem.certificate_files.pem import first_certificate
from mainstem.certificate_files.revocations import Revocations
from mainstem.errors import ConfigError
from mainstem.model import Sample
from mainstem.rpc.errors import TlsRefused
from mainstem.rpc.wire.client_connection import ClientConnection, connect_tls
from mainstem.rpc.wire.tls import RpcTlsConfig, context

log = logging.getLogger(__name__)

LOOKS_SECONDS = 2.0
"""Between looks at the files: a revoked node is out well within five seconds, for five calls of stat."""


def node_certificate(config: RpcTlsConfig) -> NodeCertificate | None:
    """None: no TLS between nodes. Reads the files; raises ConfigError naming the one that cannot be used."""
    return NodeCertificate(config) if config.enabled else None


class NodeCertificate:
    """`calling` and `answering` are the contexts of new connections. `watch` is a task: it looks at the files."""

    def __init__(
        self,
        config: RpcTlsConfig,
        *,
        looks_seconds: float = LOOKS_SECONDS,
        wall_seconds: Callable[[], float] = time.time,
    ) -> None:
        """Reads the files. Raises ConfigError naming the one that cannot be used. `wall_seconds`: since the epoch."""
        self._config = config
        self._looks_seconds, self._wall_seconds = looks_seconds, wall_seconds
        self._stamps = self._stamps_now()
        self._list_stamps = stamps([config.crl])
        self.calling, self.answering, self._expires_at = _read(config)
        self._revocations = _read_list(config)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(self._looks_seconds)
            self.look()

    def look(self) -> None:
        """Use the files as they are now, if they have changed; end connections whose certificates are revoked now."""
        self._look_at_list()
        now = self._stamps_now()
        if now == self._stamps:
            return
        self._stamps = now
        try:
            self.calling, self.answering, self._expires_at = _read(self._config)
        except ConfigError as error:
            log.error("the certificate for calls between nodes stays as it was: %s", error)
        else:
            log.info("new connections between nodes use the certificate and the authorities that the files have now")

    def calling_now(self) -> ssl.SSLContext:
        """The context of a caller that has no `watch`."""
        self.look()
        return self.calling

    # --- connections --------------------------------------------------------------------------------------

    def admits(self, ssl_object: ssl.SSLObject | None, end: Callable[[], None]) -> bool:
        """Whether the other end of a connection may stay, whose handshake is done. `end` is called once it may not,
        until `forget`."""
        certificate = ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None
        if self._revocations is None or certificate is None:
            return True
        try:
            return self._revocations.admits(certificate, end)
        except ValueError:
            return False

    def forget(self, end: Callable[[], None]) -> None:
        """The connection has ended; telling it twice does no harm."""
        if self._revocations is not None:
            self._revocations.forget(end)

    async def connect(self, factory: Callable[[], ClientConnection], host: str, port: int) -> tuple[Any, Any]:
        """A `client_connection.Connect`. Raises `TlsRefused` where the node there shows a revoked certificate."""
        transport, connection = await connect_tls(self.calling)(factory, host, port)
        refusal = TlsRefused(f"the certificate that {host}:{port} shows is revoked: renew rpc_tls.certificate there")

        def end() -> None:
            connection.drop(refusal)

        if not self.admits(transport.get_extra_info("ssl_object"), end):
            end()
            raise refusal
        connection.ended.add_done_callback(lambda _: self.forget(end))
        return transport, connection

    # --- what is told -------------------------------------------------------------------------------------

    def samples(self) -> Iterator[Sample]:
        now = self._wall_seconds()
        text = "Until the certificate ends that the node shows to other nodes."
        yield Sample("mainstem_rpc_certificate_expires_seconds", "gauge", text, self._expires_at - now)
        if self._revocations is not None and self._revocations.next_update_at is not None:
            text = "Until the list of revoked certificates of nodes is to be replaced."
            left = self._revocations.next_update_at - now
            yield Sample("mainstem_rpc_revocation_list_expires_seconds", "gauge", text, left)

    def _look_at_list(self) -> None:
        now = stamps([self._config.crl])
        if self._revocations is None or now == self._list_stamps:
            return
        self._list_stamps = now
        try:
            self._revocations.read_again()
        except (OSError, ValueError) as error:
            log.error("the revoked certificates of nodes stay as they were: %s", error)
        else:
            log.info("calls between nodes go by the revoked certificates that %s has now", self._config.crl)

    def _stamps_now(self) -> tuple[FileStamp, ...]:
        return stamps((self._config.certificate, self._config.key, self._config.ca))


def _read(config: RpcTlsConfig) -> tuple[ssl.SSLContext, ssl.SSLContext, float]:
    """The contexts of a caller and of a callee, and when the certificate ends. Raises ConfigError."""
    calling, answering = context(config, server_side=False), context(config, server_side=True)
    assert calling is not None
    assert answering is not None
    try:
        return calling, answering, x509.expires_at(first_certificate(config.certificate))
    except (OSError, ValueError) as error:
        raise ConfigError(f"rpc_tls.certificate = {config.certificate!r} cannot be used: {error}") from error


def _read_list(config: RpcTlsConfig) -> Revocations | None:
    """Raises ConfigError."""
    if not config.crl:
        return None
    try:
        return Revocations(config.crl)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"rpc_tls.crl = {config.crl!r} cannot be used: {error}; it takes lists (CRLs) in PEM format"
        ) from error
