"""The server's settings. Kafka's name of a setting, where it has one, stands beside it."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError
from mainstem.host_bounds import HostBoundsError, host_bounds
from mainstem.model import LISTENERS_MAX
from mainstem.server.addresses import parse_address
from mainstem.server.errors import ListenError
from mainstem.server.listener_config import ListenerConfig

KIB = 1024
MIB = 1024 * KIB


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Listeners and limits of the Kafka port. `validate` raises ConfigError."""

    listen: tuple[str, ...] = ("127.0.0.1:9092",)
    """Addresses to listen on, HOST:PORT or [IPv6]:PORT; port 0 picks a free one."""

    bootstrap_listen: tuple[str, ...] = ()
    """Addresses that several nodes of one machine listen on together, as the listener `PLAINTEXT`: the kernel gives
    each new client to one of them, which tells it the addresses of all nodes. Clients come here for that only."""

    advertise: str | None = None
    """HOST:PORT that clients are told to connect to; None: derived from the first listener."""

    listeners: dict[str, ListenerConfig] = {}
    """Listeners by name, beside those of `listen`: of other protocols, with certificates of their own."""

    frame_bytes_max: int = 100 * MIB
    """socket.request.max.bytes: a larger request closes its connection."""

    connections_max: int = 10_000
    """max.connections: about 400 MB of buffers and sockets when all are busy."""

    connections_per_host_max: int = 10_000
    """max.connections.per.ip."""

    connections_of_hosts: str = ""
    """max.connections.per.ip.overrides: ADDRESS:COUNT, separated by commas; of the addresses that may have more, or
    fewer."""

    frame_bytes_unauthenticated_max: int = 64 * KIB
    """sasl.server.max.receive.size: the same before a client of a listener with SASL has shown who it is."""

    authentication_ms_max: int = 10_000
    """A client of such a listener that has not shown who it is by then is cut off."""

    connections_unauthenticated_max: int = 1_000
    """Clients that have not done so yet; the oldest is cut off for one more."""

    connections_unauthenticated_per_host_max: int = 200
    """The same of one address."""

    connection_idle_ms_max: int = 600_000
    """connections.max.idle.ms."""

    requests_in_flight_max: int = 256
    """Unanswered requests of one connection: as many as librdkafka sends ahead, one partition per request."""

    response_bytes_unsent_max: int = 4 * MIB
    """No request of a connection is dispatched while more than this waits to be sent to it, so a client that
    does not read holds at most this and the responses already being made."""

    response_bytes_max: int = 512 * MIB
    """Bytes that the responses of all connections hold: the less of it is left, the smaller fetch responses
    become, and connections that take nothing of theirs are closed."""

    request_bytes_in_flight_max: int = 512 * MIB
    """queued.max.request.bytes: bytes that the requests of all connections hold: the buffers they are read
    into beyond the usual start, and the parts that handlers keep until they answer."""

    backlog: int = 1024
    """Connections the kernel completes before they are accepted."""

    shutdown_ms_max: int = 5_000
    """How long `close` waits for requests in flight and unsent responses."""

    def validate(self) -> None:
        if not self.listen and not self.listeners:
            raise ConfigError("listen names no address; give at least one HOST:PORT")
        if len(self.listeners) >= LISTENERS_MAX:
            raise ConfigError(f"listeners are {len(self.listeners)}; at most {LISTENERS_MAX - 1} are allowed")
        for name, listener in self.listeners.items():
            listener.validate(name)
        if self.bootstrap_listen and not self.listen:
            raise ConfigError("bootstrap_listen is given, and listen has no address that clients could be sent to")
        addresses = [*self.listen, *self.bootstrap_listen, *([] if self.advertise is None else [self.advertise])]
        for address in addresses:
            try:
                parse_address(address)
            except ListenError as error:
                raise ConfigError(str(error)) from None
        try:
            host_bounds(self.connections_of_hosts)
        except HostBoundsError as error:
            raise ConfigError(f"connections_of_hosts: {error}") from None
        for name, smallest in _SMALLEST.items():
            value = getattr(self, name)
            if value < smallest:
                raise ConfigError(f"{name} = {value} is too small; the smallest is {smallest}")
        if self.frame_bytes_max > 2**31 - 1:
            raise ConfigError(f"frame_bytes_max = {self.frame_bytes_max} does not fit a 31-bit length")


_SMALLEST = {
    "frame_bytes_max": KIB,
    "connections_max": 1,
    "connections_per_host_max": 1,
    "frame_bytes_unauthenticated_max": 4 * KIB,
    "authentication_ms_max": 100,
    "connections_unauthenticated_max": 1,
    "connections_unauthenticated_per_host_max": 1,
    "connection_idle_ms_max": 100,
    "requests_in_flight_max": 1,
    # a transport may hold so much without telling when it is sent: with less, nothing would wake the
    # connection
    "response_bytes_unsent_max": 256 * KIB,
    "response_bytes_max": MIB,
    "request_bytes_in_flight_max": 1,
    "backlog": 1,
    "shutdown_ms_max": 0,
}
