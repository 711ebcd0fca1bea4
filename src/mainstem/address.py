"""HOST:PORT is the one way to write addresses: in the configuration, in options, and between nodes."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from mainstem.errors import MainstemError

PORT_MAX = 65_535

FORM = "HOST:PORT, or [HOST]:PORT for IPv6"


class AddressError(MainstemError, ValueError):
    """A text is not an address; the message says what is wrong with it and how an address is written."""


class Address(NamedTuple):
    """`str` writes it as `parsed` reads it."""

    host: str
    """A name, an IPv4 or an IPv6 address, the latter without brackets."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parsed(text: str, *, port_min: int = 1) -> Address:
    """Read HOST:PORT or [IPv6]:PORT. `port_min` is 0 where port 0 picks a free one. Raises AddressError."""
    if "://" in text:
        raise _refused(text, f"leave out {text.partition('://')[0]}://")
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
        if ":" not in host:
            raise _refused(text, "only an IPv6 host stands in brackets")
    elif ":" in host:
        raise _refused(text, "an IPv6 host stands in brackets")
    if not colon or not port:
        raise _refused(text, "the port is missing")
    if not host or any(character in "[]/@," or character.isspace() for character in host):
        raise _refused(text, f"{host!r} is not a host" if host else "the host is missing")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and port_min <= int(port) <= PORT_MAX):
        raise _refused(text, f"the port is a number from {port_min} to {PORT_MAX}")
    return Address(host, int(port))


def _refused(text: str, reason: str) -> AddressError:
    return AddressError(f"{text!r} is not an address: {reason}; expected {FORM}")


def is_loopback(host: str) -> bool:
    """Whether a listener on this host is reached from this host alone. A name that is no address may be
    anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
