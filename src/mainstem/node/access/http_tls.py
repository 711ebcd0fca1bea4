"""TLS on the HTTP port: as on listeners of Kafka clients, with handshakes that take turns of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from mainstem.bounded_log import BoundedLog
from mainstem.console.config import ConsoleConfig
from mainstem.model import Sample
from mainstem.ports import Clock
from mainstem.server.listener_config import ListenerConfig
from mainstem.server.paced_steps import PacedSteps
from mainstem.server.tls.certificates import ListenerCertificate
from mainstem.server.tls.handshakes import Handshakes
from mainstem.server.tls.principals import PrincipalMapping
from mainstem.server.tls.tls_transport import SharedMemory, TlsListener, TlsTransport

HANDSHAKES_MAX = 64
"""Connections without TLS yet: visitors are few."""

HANDSHAKES_PER_HOST_MAX = 16

LOOKS_SECONDS = 1.0
"""A certificate that has changed is noticed by the first connection so long after the last look."""

log = logging.getLogger(__name__)


class HttpTls:
    """`over` makes what an accepted connection is to the event loop. `close` ends handshakes that are under way."""

    def __init__(self, config: ConsoleConfig, address: str, clock: Clock) -> None:
        """Reads the files. Raises ConfigError naming the one that cannot be used."""
        settings = ListenerConfig(
            listen=address,
            protocol="SSL",
            certificate=config.certificate,
            key=config.key,
            key_password_file=config.key_password_file,
        )
        self._certificate = ListenerCertificate("HTTP", settings, section="console")
        self._clock = clock
        self._looked_at = clock.monotonic()
        self._handshakes = Handshakes(PacedSteps(clock), self._may_begin)
        self._refusals = BoundedLog(log, clock)
        self._listener = TlsListener(
            self._certificate,
            PrincipalMapping(("DEFAULT",)),
            self._handshakes,
            SharedMemory(),
            self._refused,
            self._done,
        )
        self._handshakes_done = self._handshakes_refused = 0

    def over(self, connection: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOKS_SECONDS:
            self._looked_at = now
            self._certificate.look()
        return TlsTransport(self._listener, connection)

    def close(self) -> None:
        self._handshakes.abort()

    def samples(self) -> Iterable[Sample]:
        left = self._certificate.expires_at - self._clock.now_ms() / 1000
        yield Sample(
            "mainstem_http_certificate_expires_seconds", "gauge", "Until the HTTP port's certificate ends.", left
        )
        yield Sample(
            "mainstem_http_handshakes_total", "counter", "TLS handshakes of the HTTP port.", self._handshakes_done
        )
        yield Sample(
            "mainstem_http_tls_failures_total", "counter", "HTTP connections closed for TLS.", self._handshakes_refused
        )

    def _may_begin(self, host: str) -> bool:
        if len(self._handshakes) < HANDSHAKES_MAX and self._handshakes.of(host) < HANDSHAKES_PER_HOST_MAX:
            return True
        self._refused(f"from {host}: too many connections without TLS yet")
        return False

    def _refused(self, why: str) -> None:
        self._handshakes_refused += 1
        self._refusals.report(logging.WARNING, f"closing HTTP connection {why}")

    def _done(self) -> None:
        self._handshakes_done += 1
