"""Addresses: reads them from configuration, opens listening sockets, and derives the address that clients are
given.

The advertised address must be one that clients can reach. A listener on one interface is advertised as
that; a listener on all interfaces ("0.0.0.0", "::") as the address this machine uses to reach others, and
as loopback when it has none.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket

from mainstem.address import Address, AddressError, parsed
from mainstem.server.errors import ListenError
from mainstem.socket_memory import bound_unread, bound_unsent

_PORT_ATTEMPTS_MAX = 8
"""A free port found for the first address of a name may be taken on its second; eight misses in a row
mean something else is wrong."""

_OUTSIDE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Documentation addresses: connecting a UDP socket to one sends nothing but picks the outward interface."""


def parse_address(text: str) -> Address:
    """Read an address to listen on. An empty host means all interfaces; port 0 picks a free one. Raises
    ListenError."""
    try:
        return parsed(f"0.0.0.0{text}" if text.startswith(":") and text.count(":") == 1 else text, port_min=0)
    except AddressError as error:
        raise ListenError(str(error)) from None


def open_listeners(address: Address, backlog: int, *, shared: bool = False) -> list[socket.socket]:
    """Bound, listening, non-blocking sockets: one per address that the host name stands for, all on one port. `shared`:
    other processes may have the same port, and these sockets do not listen yet. Raises ListenError."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}") from None
    targets = list(dict.fromkeys((family, where[0]) for family, _, _, _, where in found))
    for attempt in range(_PORT_ATTEMPTS_MAX):
        with contextlib.ExitStack() as opened:
            sockets: list[socket.socket] = []
            port = address.port
            try:
                for family, host in targets:
                    listener = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
                    _bind(listener, str(host), port, backlog, shared)
                    port = listener.getsockname()[1]
                    sockets.append(listener)
            except OSError as error:
                if address.port == 0 and error.errno == errno.EADDRINUSE and attempt + 1 < _PORT_ATTEMPTS_MAX:
                    continue
                if error.errno == errno.EADDRNOTAVAIL and sockets:
                    # a name with an address this machine lacks, such as "localhost" without IPv6
                    opened.pop_all()
                    return sockets
                raise ListenError(f"cannot listen on {address}: {error.strerror or error}") from None
            opened.pop_all()
            return sockets
    raise AssertionError("the last attempt returns or raises")


def _bind(listener: socket.socket, host: str, port: int, backlog: int, shared: bool) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if listener.family == socket.AF_INET6:
        # "::" and "0.0.0.0" may then be listened on side by side
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    bound_unsent(listener)
    bound_unread(listener)
    listener.bind((host, port))
    if not shared:  # else the kernel would give it clients that others could serve by now
        listener.listen(backlog)
    listener.setblocking(False)


def advertised_address(configured: Address, bound: Address) -> Address:
    """The address that clients are given, for a listener configured as one and bound to the other."""
    try:
        wildcard = ipaddress.ip_address(configured.host).is_unspecified
    except ValueError:
        return Address(configured.host, bound.port)  # a host name: it means something to the operator
    if not wildcard:
        return bound
    family = socket.AF_INET6 if ":" in bound.host else socket.AF_INET
    return Address(_outward_host(family), bound.port)


def _outward_host(family: socket.AddressFamily) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_OUTSIDE[family], 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "::1" if family == socket.AF_INET6 else "127.0.0.1"
