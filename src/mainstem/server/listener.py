"""A listener of the Kafka port: its name, its sockets, its certificate, and the address that its clients are given."""

from __future__ import annotations

import socket

from mainstem.address import Address
from mainstem.server.addresses import advertised_address, open_listeners, parse_address
from mainstem.server.listener_config import ListenerConfig
from mainstem.server.tls.certificates import ListenerCertificate
from mainstem.server.tls.principals import PrincipalMapping


class Listener:
    def __init__(self, name: str, config: ListenerConfig, *, shared: bool = False) -> None:
        """Reads the certificate, if there is one. `shared`: other nodes of this machine listen on the same address.
        Raises ConfigError."""
        self.name = name
        self.config = config
        self.mapping = PrincipalMapping(config.principal_mapping_rules)
        self.certificate = ListenerCertificate(name, config) if config.over_tls else None
        self.addresses: list[Address] = []
        """The addresses that it listens on; known once open."""
        self._shared = shared
        self._sockets: list[socket.socket] = []

    def open(self, backlog: int) -> None:
        """Raises ListenError."""
        self._sockets = open_listeners(parse_address(self.config.listen), backlog, shared=self._shared)
        self.addresses = [Address(*each.getsockname()[:2]) for each in self._sockets]
        if self.config.bootstrap_listen:
            self._sockets += open_listeners(parse_address(self.config.bootstrap_listen), backlog, shared=True)

    def advertised(self, given: str | None = None) -> Address:
        """The address that clients are given: `given` by the node's configuration, else by the listener's own, else
        derived from where it listens; known once open."""
        bound = self.addresses[0]
        text = self.config.advertise if given is None else given
        if text is None:
            return advertised_address(parse_address(self.config.listen), bound)
        configured = parse_address(text)
        return configured if configured.port else Address(configured.host, bound.port)

    def handed_over(self) -> list[socket.socket]:
        """The sockets, which whoever takes them closes."""
        sockets, self._sockets = self._sockets, []
        return sockets

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()
