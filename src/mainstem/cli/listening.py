"""Asks the system whether it would let a node listen at an address."""

from __future__ import annotations

import socket

from mainstem.address import Address


def refusal(address: Address) -> str | None:
    """Why nobody can begin to listen there now, in the system's words. None: somebody can."""
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
    except OSError as error:
        return error.strerror or str(error)
    return None
