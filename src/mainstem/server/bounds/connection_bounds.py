"""How many connections a server has at a time, in all and of one address: `max.connections`, `max.connections.per.ip`
and its exceptions. The numbers may change while it runs; connections that are open then stay."""

from __future__ import annotations

from collections.abc import Mapping


class ConnectionBounds:
    def __init__(self, connections_max: int, per_host_max: int, of_hosts: Mapping[str, int]) -> None:
        self.hold(connections_max, per_host_max, of_hosts)

    def hold(self, connections_max: int, per_host_max: int, of_hosts: Mapping[str, int]) -> None:
        """These are the numbers from now on; `of_hosts` come before `per_host_max`."""
        self.connections_max = connections_max
        self._per_host_max = per_host_max
        self._of_hosts = dict(of_hosts)

    def of(self, host: str) -> int:
        """The most connections of an address."""
        return self._of_hosts.get(host, self._per_host_max)
