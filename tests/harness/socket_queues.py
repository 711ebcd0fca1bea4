"""The bytes that the kernel holds at the far end of a connection within this machine."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import NamedTuple

TABLE = Path("/proc/net/tcp")
OURS, THEIRS, QUEUES = 1, 2, 4
"""Columns of the table."""


class SocketQueues(NamedTuple):
    """Bytes."""

    unsent: int
    """The bytes that its process has written and this end has not acknowledged."""
    unread: int
    """The bytes that this end has sent and its process has not read."""


def queues_at_far_end(connection: socket.socket) -> SocketQueues:
    """Of an open IPv4 connection."""
    queues = _listed(connection)
    assert queues is not None, f"{TABLE} has no far end of {connection}"
    return queues


def is_open_at_far_end(connection: socket.socket) -> bool:
    """Whether the far end of an IPv4 connection, which is open here, is open there, too."""
    return _listed(connection) is not None


def _listed(connection: socket.socket) -> SocketQueues | None:
    far, near = _as_listed(*connection.getpeername()), _as_listed(*connection.getsockname())
    for line in TABLE.read_text().splitlines()[1:]:
        columns = line.split()
        if (columns[OURS], columns[THEIRS]) == (far, near):
            return SocketQueues(*(int(size, 16) for size in columns[QUEUES].split(":")))
    return None


def _as_listed(host: str, port: int) -> str:
    (address,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{address:08X}:{port:04X}"
