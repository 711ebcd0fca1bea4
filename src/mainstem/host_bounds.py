"""How many connections single addresses may have, as Kafka writes it: `ADDRESS:COUNT,…`."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from mainstem.errors import MainstemError

HOSTS_MAX = 1_000
"""Each connection that comes looks for its address; more than these are a matter for a firewall."""
COUNT_MAX = 0x7FFF_FFFF


class HostBoundsError(MainstemError, ValueError):
    """A text is no list of bounds; the message says what is wrong with it."""


def host_bounds(text: str) -> Mapping[str, int]:
    """The most connections by address. Raises HostBoundsError."""
    found: dict[str, int] = {}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > HOSTS_MAX:
        raise HostBoundsError(f"{len(parts)} addresses have bounds of their own; at most {HOSTS_MAX} may")
    for part in parts:
        host, colon, count = part.rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.strip("[]")))
        except ValueError:
            raise HostBoundsError(
                f"{part!r}: it takes ADDRESS:COUNT; names of hosts are not looked up, so give their addresses"
            ) from None
        if not colon or not count.isascii() or not count.isdigit() or int(count) > COUNT_MAX:
            raise HostBoundsError(f"{part!r}: it takes ADDRESS:COUNT, with a whole number from 0 to {COUNT_MAX}")
        if address in found:
            raise HostBoundsError(f"{address} is named twice")
        found[address] = int(count)
    return found
