"""The Kafka port of a node: listeners, the connections behind them, and the limits they share.

Life: `bind` opens the listening sockets (so that addresses are known, port 0 included), `start` begins to
accept, `close` stops accepting, lets requests in flight finish and responses leave, up to a deadline, and
closes what is left. A periodic sweep closes idle connections and shrinks idle buffers.

Everything runs on one event loop. TLS stands between the transport and `Connection` (`tls/`): nothing here knows
more of a socket than its two ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from mainstem.address import Address
from mainstem.host_bounds import host_bounds
from mainstem.model import HistogramSample, ListenerAddress, Sample
from mainstem.ports import Clock, Dispatcher
from mainstem.server.bounds.connection_bounds import ConnectionBounds
from mainstem.server.bounds.strangers import Stranger, Strangers
from mainstem.server.config import ServerConfig
from mainstem.server.connection import Connection
from mainstem.server.listener import Listener
from mainstem.server.listener_config import DEFAULT_NAME, ListenerConfig
from mainstem.server.paced_steps import PacedSteps
from mainstem.server.shared import Shared
from mainstem.server.tls.certificates import ListenerCertificate
from mainstem.server.tls.handshakes import WAITING_MAX as HANDSHAKES_WAITING_MAX
from mainstem.server.tls.handshakes import Handshakes
from mainstem.server.tls.principals import PrincipalMapping
from mainstem.server.tls.tls_transport import SharedMemory, TlsListener, TlsTransport
from mainstem.server.turns_at_the_door import TurnsAtTheDoor

logger = logging.getLogger(__name__)

SWEEP_SECONDS_MAX = 10.0
"""How long an idle buffer may stay large."""

SWEPT_AT_ONCE = 2_000
"""Connections that a sweep looks at in one turn of the event loop: five milliseconds, if all buffers shrink."""

GIVEN_BACK_BYTES = 32 * 1024 * 1024
"""Memory is given back to the machine when requests and responses hold so much less than before: a smaller
amount is soon used again."""

FLUSH_SECONDS_MAX = 0.0005
"""Seconds for which one turn of the loop flushes connections, and what the last of them takes beyond: every other
request waits for so long. Each may go on to requests that it had held back, megabytes of response each: a thousand that
do not read took more than half a second together."""

CLOSED_PER_TURN = 20
"""Connections closed in one turn of the loop, with megabytes each: some milliseconds."""

CERTIFICATES_SECONDS = 5.0
"""Seconds between two looks at certificates' files: some calls of the system for each."""

STRANGERS_SECONDS = 1.0
"""Seconds between two looks at clients that have not shown who they are, while there are any."""

RELIEF_SECONDS = 1.0
"""Seconds between two checks for connections that waste memory while others wait for it."""

REFUSALS_LOGGED_EVERY_SECONDS = 10.0
"""A flood of refused connections is one line per this long, with a count."""

RATE_QUOTA = "the quota connection_creation_rate"


class KafkaServer:
    def __init__(
        self, config: ServerConfig, clock: Clock, give_memory_back: Callable[[], object] = lambda: None
    ) -> None:
        """`give_memory_back` is called when much less memory is held than a while ago."""
        self.config = config
        self.bounds = ConnectionBounds(
            config.connections_max, config.connections_per_host_max, host_bounds(config.connections_of_hosts)
        )
        self.dispatcher: Dispatcher | None = None
        self.clock = clock
        self._shared = shared = Shared(config, clock, self._responses_short)
        self.counters, self.budget, self.responses = shared.counters, shared.budget, shared.responses
        self._give_memory_back = give_memory_back
        self._listeners: list[Listener] = []
        self._acceptors: list[asyncio.Server] = []
        self._tls_memory = SharedMemory()
        self._steps = PacedSteps(clock, lambda: self.counters.requests - self.counters.strange_requests)
        self._handshakes = Handshakes(self._steps, self._admit_handshake)
        self._certificate_watch: asyncio.TimerHandle | None = None
        self._strangers = Strangers(
            config.connections_unauthenticated_max,
            config.connections_unauthenticated_per_host_max,
            config.authentication_ms_max / 1000,
        )
        self._strangers_due = False
        """Whether `_look_at_strangers` is scheduled."""
        self._may_connect: Callable[[str], bool] = lambda host: True
        self._connections: set[Connection] = set()
        self._per_host: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()
        self._to_flush: list[Connection] = []
        self._turns = TurnsAtTheDoor(clock, self._dispatcher_there)
        self.waiting_for_room = self._turns.waiting
        self._bytes_most = 0
        """The most that requests and responses held at any check since memory was given back."""
        self._unread_due = False
        """Whether `_close_unread_and_repeat` is scheduled."""
        self._relief_due = False
        """Whether `_relieve_and_repeat` is scheduled."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._refusals_unlogged = 0
        self._refusals_logged_at = -REFUSALS_LOGGED_EVERY_SECONDS
        self._closing = False

    # for the node

    def bind(self) -> None:
        """Open all listeners. Raises ListenError, and ConfigError for a certificate that cannot be used; then none is
        open."""
        config = self.config
        try:
            for text in config.listen:
                self._listeners.append(Listener(DEFAULT_NAME, ListenerConfig(listen=text, protocol="PLAINTEXT")))
            for text in config.bootstrap_listen:
                plain = ListenerConfig(listen=text, protocol="PLAINTEXT")
                self._listeners.append(Listener(DEFAULT_NAME, plain, shared=True))
            for name, settings in config.listeners.items():
                self._listeners.append(Listener(name, settings))
            for listener in self._listeners:
                listener.open(config.backlog)
        except BaseException:
            for listener in self._listeners:
                listener.close()
            self._listeners.clear()
            raise

    @property
    def addresses(self) -> list[Address]:
        """The addresses it listens on, in the order of the configuration; known once bound."""
        return [address for listener in self._listeners for address in listener.addresses]

    @property
    def advertised(self) -> Address:
        """The address that clients are given; known once bound."""
        return self._listeners[0].advertised(self.config.advertise)

    @property
    def endpoints(self) -> tuple[ListenerAddress, ...]:
        """The address that clients of each listener are given; none where no listener has a name. Known once
        bound."""
        found: dict[str, ListenerAddress] = {}
        for listener in self._listeners if self.config.listeners else ():
            given = self.config.advertise if listener is self._listeners[0] else None
            found.setdefault(listener.name, ListenerAddress(listener.name, *listener.advertised(given)))
        return tuple(found.values())

    async def start(self, dispatcher: Dispatcher, may_connect: Callable[[str], bool] = lambda host: True) -> None:
        """Accept connections on the bound listeners; `dispatcher` answers their requests. `may_connect` is asked once
        for each connection, by the address that it comes from."""
        self.dispatcher = dispatcher
        self._may_connect = may_connect
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            name, protocol = listener.name, listener.config.protocol
            made: Callable[[], asyncio.BaseProtocol]
            made = partial(Connection, self, self._shared, dispatcher, name, protocol)
            if listener.certificate is not None:
                tls = self._tls_listener(listener.certificate, listener.mapping, dispatcher.shared)
                made = partial(TlsTransport, tls, made)
            for each in listener.handed_over():
                self._acceptors.append(await loop.create_server(made, sock=each, backlog=self.config.backlog))
        self._sweep_later()
        self._watch_certificates()

    async def close(self) -> None:
        """Stop accepting, finish requests in flight within `shutdown_ms_max`, close every connection."""
        self._closing = True
        for timer in (self._sweeper, self._certificate_watch):
            if timer is not None:
                timer.cancel()
        for listener in self._listeners:
            listener.close()
        for acceptor in self._acceptors:
            acceptor.close()
        self._handshakes.abort()
        for connection in tuple(self._connections):
            connection.end()
            connection.dispatcher.disconnected(connection.session)  # no read waits for data while the node stops
        try:
            async with asyncio.timeout(self.config.shutdown_ms_max / 1000):
                await self._empty.wait()
        except TimeoutError:
            logger.warning("closing %d connections that did not finish in time", len(self._connections))
            for connection in tuple(self._connections):
                connection.abort()
            await self._empty.wait()
        for acceptor in self._acceptors:
            await acceptor.wait_closed()

    def sweep(self) -> None:
        """Close connections that were idle, or in the way of others, for too long; shrink idle buffers."""
        self._sweep(tuple(self._connections))
        self._look_at_memory()

    def sweep_in_turns(self, then: Callable[[], object] = lambda: None) -> None:
        """The same, some connections in each turn of the event loop."""
        self._sweep_on(tuple(self._connections), then)

    def _sweep(self, connections: Iterable[Connection]) -> None:
        now = self.clock.monotonic()
        idle_seconds_max = self.config.connection_idle_ms_max / 1000
        for connection in connections:
            if connection not in self._connections:  # it has ended since the sweep began
                continue
            idle_seconds = now - connection.active_at
            if idle_seconds >= idle_seconds_max and connection.in_flight == 0:
                logger.info(
                    "closing connection %s:%d: idle for %d s",
                    connection.session.host,
                    connection.session.port,
                    int(idle_seconds),
                )
                self.counters.idle_closed += 1
                connection.abort()
            elif idle_seconds >= SWEEP_SECONDS_MAX:
                connection.shrink()
            connection.recount()

    def close_unread(self) -> int:
        """Close connections that take nothing of their responses, the longest idle first, as far as their
        memory is wanted and a turn of the loop allows. Returns how many."""
        now = self.clock.monotonic()
        unread = []
        for connection in self._connections:
            connection.recount()
            if connection.takes_nothing(now):
                unread.append(connection)
        unread.sort(key=lambda connection: connection.taken_at)
        closed = 0
        too_much = self.responses.bytes_held - self.responses.bytes_max // 2
        for connection in unread:
            if too_much < 0 or closed == CLOSED_PER_TURN:
                break
            too_much -= connection.held_bytes
            connection.abort()
            closed += 1
        if closed:
            self.counters.unread_closed += closed
            logger.warning(
                "closed %d connections that take nothing of their responses: memory for responses is short",
                closed,
            )
        return closed

    def relieve(self) -> None:
        """Close connections whose requests hold memory for nothing, while others wait for it."""
        now = self.clock.monotonic()
        for connection in tuple(self._connections):
            if connection.in_the_way(now):
                self.counters.failures += 1
                logger.warning(
                    "closing connection %s:%d: its request does not arrive, and others wait for the memory",
                    connection.session.host,
                    connection.session.port,
                )
                connection.abort()
            else:
                connection.shrink()

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Those that are open."""
        return tuple(self._connections)

    @property
    def handshaking(self) -> int:
        """How many open connections have no TLS yet."""
        return len(self._handshakes)

    def samples(self) -> Iterable[Sample | HistogramSample]:
        counters = self.counters
        open_now = tuple(self._connections)
        unsent = sum(connection.bytes_unsent for connection in open_now)
        return [
            *self._samples_of_tls(),
            _gauge("connections", "Open client connections.", len(open_now)),
            _counter("connections_accepted_total", "Client connections accepted.", counters.accepted),
            _counter("connections_refused_total", "Connections closed for a limit.", counters.refused),
            _counter("connections_idle_closed_total", "Connections closed as idle.", counters.idle_closed),
            _counter(
                "connections_unread_closed_total",
                "Connections closed as nobody read.",
                counters.unread_closed,
            ),
            _counter(
                "connections_unauthenticated_total",
                "Cut off before their clients showed who they are.",
                counters.unauthenticated,
            ),
            _counter("connections_failed_total", "Connections closed for a fault.", counters.failures),
            _counter("request_frames_total", "Request frames received.", counters.requests),
            _counter("received_bytes_total", "Bytes received from clients.", counters.bytes_in),
            _counter("sent_bytes_total", "Bytes sent to clients.", counters.bytes_out),
            _gauge("request_bytes_in_flight", "Held by requests being read or answered.", self.budget.bytes_taken),
            _gauge("response_bytes_unsent", "Responses made and not yet sent.", unsent),
            _gauge("response_bytes_held", "Memory held by responses.", self.responses.bytes_held),
        ]

    def look_at_certificates(self) -> None:
        """Use certificates' files as they are now."""
        for listener in self._listeners:
            if listener.certificate is not None:
                listener.certificate.look()

    # the connections' side: `connection.ConnectionHost`

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        host = connection.session.host
        over_total = len(self._connections) >= self.bounds.connections_max
        if self._closing:
            return False
        if over_total or self._per_host[host] >= self.bounds.of(host):
            self._refuse(host, "max.connections" if over_total else "max.connections.per.ip")
            return False
        if not connection.is_encrypted and not self._may_connect(host):  # else it was asked before the handshake
            self._refuse(host, RATE_QUOTA)
            return False
        self._connections.add(connection)
        self._per_host[host] += 1
        if connection.session.gated:
            self._meet(connection)
        self._empty.clear()
        self.counters.accepted += 1
        return True

    def forget(self, connection: Connection) -> None:
        """A connection is closed, admitted or not."""
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._strangers.forget(connection)
        self._steps.leave(connection)
        self.waiting_for_room.remove(connection)
        host = connection.session.host
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]
        if not self._connections:
            self._empty.set()
        connection.dispatcher.disconnected(connection.session)

    def wait_for_room(self, connection: Connection) -> None:
        """Have a connection told when it is its turn to bring batches."""
        self._turns.wait(connection)

    def lets_past(self, connection: Connection, size_bytes: int, *, complete: bool) -> bool:
        """Whether a connection need not wait for its turn with the batches that have come, so many bytes; `complete`:
        with the whole request."""
        return self._turns.lets_past(connection, size_bytes, complete=complete)

    def wait_for_budget(
        self, connection: Connection, size_bytes: int, woken: Callable[[], object], *, decoded: bool
    ) -> None:
        """Have a connection told when it is worth another try to have a buffer of that size, or to dispatch a request
        that takes so much `decoded`."""
        wait = self.budget.wait_to_keep if decoded else self.budget.wait
        wait(connection.account, size_bytes, woken)
        if not self._relief_due:
            self._relief_due = True
            asyncio.get_running_loop().call_soon(self._relieve_and_repeat)

    def knows(self, connection: Connection) -> None:
        """The client of a connection has shown who it is."""
        self._strangers.forget(connection)

    def wait_for_step(self, connection: Connection) -> None:
        """Have a connection whose client has not shown who it is told when it is the turn of its next request."""
        self._steps.wait(connection)

    def flush_soon(self, connection: Connection) -> None:
        """Have the connection write what it has, once, at the end of this turn of the loop."""
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_flush.append(connection)

    # inside

    def _dispatcher_there(self) -> Dispatcher:
        assert self.dispatcher is not None, "connections come once the server has started"
        return self.dispatcher

    def _meet(self, stranger: Connection) -> None:
        """A client has come that has to show who it is."""
        oldest = self._strangers.add(stranger, self.clock.monotonic())
        if oldest is not None:
            self._send_away(oldest, "too many clients have not shown who they are, this one for longest")
        if not self._strangers_due:
            self._strangers_due = True
            asyncio.get_running_loop().call_later(STRANGERS_SECONDS, self._look_at_strangers_and_repeat)

    def look_at_strangers(self) -> None:
        """Cut off clients that have not shown in time who they are."""
        for stranger in self._strangers.overdue(self.clock.monotonic()):
            self._send_away(stranger, "it has not shown in time who it is")

    def _look_at_strangers_and_repeat(self) -> None:
        self.look_at_strangers()
        self._strangers_due = bool(self._strangers) and not self._closing
        if self._strangers_due:
            asyncio.get_running_loop().call_later(STRANGERS_SECONDS, self._look_at_strangers_and_repeat)

    def _send_away(self, stranger: Stranger, why: str) -> None:
        assert isinstance(stranger, Connection)
        self.counters.unauthenticated += 1
        where = str(Address(stranger.session.host, stranger.session.port))
        self._shared.refusals.report(logging.WARNING, f"closing connection {where}: {why}")
        asyncio.get_running_loop().call_soon(stranger.abort)  # it may be about to dispatch

    def _admit_handshake(self, host: str) -> bool:
        """Whether a connection that has no TLS yet may stay."""
        handshakes = self._handshakes
        if self._closing:
            return False
        open_now, of_host = len(self._connections) + len(handshakes), self._per_host[host] + handshakes.of(host)
        limit = ""
        if open_now >= self.bounds.connections_max:
            limit = "max.connections"
        elif of_host >= self.bounds.of(host):
            limit = "max.connections.per.ip"
        elif len(handshakes) >= HANDSHAKES_WAITING_MAX:
            limit = f"the bound of {HANDSHAKES_WAITING_MAX} connections without TLS yet"
        elif handshakes.of(host) >= HANDSHAKES_WAITING_MAX // 2:
            limit = f"the bound of {HANDSHAKES_WAITING_MAX // 2} connections of one address without TLS yet"
        elif not self._may_connect(host):
            limit = RATE_QUOTA
        if limit:
            self._refuse(host, limit)
        return not limit

    def _tls_listener(
        self, certificate: ListenerCertificate, mapping: PrincipalMapping, shared: Callable[[], bool]
    ) -> TlsListener:
        return TlsListener(
            certificate, mapping, self._handshakes, self._tls_memory, self._tls_refused, self._handshake_done, shared
        )

    def _tls_refused(self, why: str) -> None:
        self._shared.refusals.report(logging.WARNING, f"closing connection {why}")
        self.counters.failures += 1
        self.counters.handshakes_refused += 1

    def _handshake_done(self) -> None:
        self.counters.handshakes += 1

    def _watch_certificates(self) -> None:
        if any(listener.certificate is not None for listener in self._listeners):
            self.look_at_certificates()
            loop = asyncio.get_running_loop()
            self._certificate_watch = loop.call_later(CERTIFICATES_SECONDS, self._watch_certificates)

    def _samples_of_tls(self) -> Sequence[Sample]:
        certificates = [each.certificate for each in self._listeners if each.certificate is not None]
        if not certificates:
            return ()
        now, counters = self.clock.now_ms() / 1000, self.counters
        return [
            _gauge("tls_handshakes", "Open connections without TLS yet.", len(self._handshakes)),
            _counter("tls_handshakes_total", "TLS handshakes done.", counters.handshakes),
            _counter("tls_failures_total", "Connections closed for a fault of TLS.", counters.handshakes_refused),
            *(
                Sample(
                    "mainstem_certificate_expires_seconds",
                    "gauge",
                    "Seconds until a listener's certificate expires.",
                    certificate.expires_at - now,
                    (("listener", certificate.name),),
                )
                for certificate in certificates
            ),
            *(
                Sample(
                    "mainstem_revocation_list_expires_seconds",
                    "gauge",
                    "Seconds until a listener's list of revoked certificates is to be replaced.",
                    certificate.list_expires_at - now,
                    (("listener", certificate.name),),
                )
                for certificate in certificates
                if certificate.list_expires_at is not None
            ),
        ]

    def _flush(self) -> None:
        connections, self._to_flush = self._to_flush, []
        monotonic = self.clock.monotonic
        until = monotonic() + FLUSH_SECONDS_MAX
        for number, connection in enumerate(connections, 1):
            connection.flush()
            if monotonic() >= until and number < len(connections):
                if not self._to_flush:  # else it is due already
                    asyncio.get_running_loop().call_soon(self._flush)
                self._to_flush[:0] = connections[number:]
                return

    def _refuse(self, host: str, limit: str) -> None:
        self.counters.refused += 1
        self._refusals_unlogged += 1
        now = self.clock.monotonic()
        if now - self._refusals_logged_at >= REFUSALS_LOGGED_EVERY_SECONDS:
            count = self._refusals_unlogged
            logger.warning("refused %d connections, the last from %s: %s is reached", count, host, limit)
            self._refusals_unlogged = 0
            self._refusals_logged_at = now

    def _responses_short(self) -> None:
        if not self._unread_due and not self._closing:
            self._unread_due = True
            asyncio.get_running_loop().call_later(RELIEF_SECONDS, self._close_unread_and_repeat)

    def _close_unread_and_repeat(self) -> None:
        closed = self.close_unread()
        if closed == CLOSED_PER_TURN:
            asyncio.get_running_loop().call_soon(self._close_unread_and_repeat)
            return
        self._unread_due = False
        if 2 * self.responses.bytes_held >= self.responses.bytes_max:
            self._responses_short()

    def _look_at_memory(self) -> None:
        """Memory that was in use once is the allocator's: it keeps what lies below anything still in use, for ever."""
        requests, responses = self.budget, self.responses
        held = requests.bytes_taken + responses.bytes_held
        self._bytes_most = max(self._bytes_most, requests.bytes_most, responses.bytes_most)
        requests.bytes_most, responses.bytes_most = requests.bytes_taken, responses.bytes_held
        if self._bytes_most - held >= GIVEN_BACK_BYTES and held < self._bytes_most // 4:
            self._bytes_most = held
            self._give_memory_back()

    def _relieve_and_repeat(self) -> None:
        self._relief_due = self.budget.scarce and not self._closing
        if self._relief_due:
            self.relieve()
            asyncio.get_running_loop().call_later(RELIEF_SECONDS, self._relieve_and_repeat)

    def _sweep_later(self) -> None:
        delay = min(SWEEP_SECONDS_MAX, self.config.connection_idle_ms_max / 4000)
        self._sweeper = asyncio.get_running_loop().call_later(delay, self._sweep_and_repeat)

    def _sweep_and_repeat(self) -> None:
        self.sweep_in_turns(self._sweep_later)

    def _sweep_on(self, connections: Sequence[Connection], then: Callable[[], object]) -> None:
        self._sweep(connections[:SWEPT_AT_ONCE])
        if len(connections) > SWEPT_AT_ONCE:
            later = asyncio.get_running_loop().call_later
            self._sweeper = later(0, self._sweep_on, connections[SWEPT_AT_ONCE:], then)
            return
        self._look_at_memory()
        then()


def _gauge(name: str, help: str, value: float) -> Sample:
    return Sample(f"mainstem_server_{name}", "gauge", help, value)


def _counter(name: str, help: str, value: float) -> Sample:
    return Sample(f"mainstem_server_{name}", "counter", help, value)
