"""Ports for servers that have to be told one: their peers learn it before they listen.

They lie outside the range that outgoing connections take theirs from, so that a server finds its port free when it
comes back, and no two processes of the suite, which runs several files at a time, are given the same.
"""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Sequence

HOST = "127.0.0.1"
PORTS = range(10_000, 30_000)

_claims: list[socket.socket] = []
"""One for each port that was given out, until the process ends."""


def claims_held() -> int:
    """How many descriptors of this process keep ports from others."""
    return len(_claims)


def free_port() -> int:
    """One that nobody listens on just now, and nobody else was given."""
    return free_ports([0])


def free_ports(places: Sequence[int]) -> int:
    """A port such that those so many places above it are free and given to nobody else, all together."""
    while True:
        first = random.choice(PORTS)
        claims = [_claimed(first + place) for place in places]
        if None not in claims:
            _claims.extend(filter(None, claims))
            return first
        for claim in filter(None, claims):
            claim.close()


def _claimed(port: int) -> socket.socket | None:
    """The claim that keeps others of the suite from a port that is free; None: it is not."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform == "linux":
            claim.bind(f"\0mainstem-tests-{port}")  # a name without a file, gone with whoever has it
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except OSError:
        claim.close()
        return None
    return claim
