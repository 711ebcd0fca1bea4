"""TCP itself finds peers that vanish without a word (power, cable, firewall).

Between nodes, bytes that stay unacknowledged for `UNACKNOWLEDGED_MS_MAX` end the connection. Clients are exempt: a
splitter may let a stream wait while it works, with its window shut, and a shut window counts as silence.
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

IDLE_SECONDS = 10
PROBE_SECONDS = 3
PROBES_MAX = 3
"""An idle connection whose peer is gone ends after 10 + 3 × 3 seconds; Linux on its own takes two hours."""

UNACKNOWLEDGED_MS_MAX = 10_000
"""Linux on its own retransmits for a quarter of an hour. Elections are over long before, so that ending a
connection sooner gains nothing, and a peer that is merely stopped for seconds keeps it."""


def find_dead_peers(transport: asyncio.BaseTransport) -> None:
    """Have an idle connection probe its peer."""
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", IDLE_SECONDS),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", PROBE_SECONDS),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", PROBES_MAX),
    ):
        _set(transport, level, name, value)


def give_up_on_dead_peers(transport: asyncio.BaseTransport) -> None:
    """End a connection between nodes when its bytes are not acknowledged."""
    _set(transport, socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS_MAX)


def _set(transport: asyncio.BaseTransport, level: int, name: str, value: int) -> None:
    connection = cast("socket.socket | None", transport.get_extra_info("socket"))
    option = getattr(socket, name, None)  # not every system has all of them
    if connection is not None and option is not None:
        connection.setsockopt(level, option, value)
