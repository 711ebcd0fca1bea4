"""Bounds what the kernel holds for one peer that does not read, or sends while it is not read.

The kernel's memory for sockets is one for the whole machine (`tcp_mem` in tcp(7)), and the node counts none of it. Left
alone, the kernel takes four megabytes for a peer that reads nothing, and six or more of one that sends ahead; a few
hundred such peers leave the others nothing. Sockets that a listener accepts inherit its bounds.
"""

from __future__ import annotations

import socket
import sys

UNSENT_BYTES_MAX = 128 * 1024
"""The kernel takes about this much that it cannot send yet, and what is on the way besides."""

UNREAD_BYTES_MAX = 512 * 1024
"""The kernel takes up to twice this from a peer that sends ahead, its own records included; it may be asked for as much
as `net.core.rmem_max` allows, which is 208 KiB unless an operator has raised it. About what two reads take
(`receive_buffer.READ_BYTES_MAX`), and two to five times what Kafka asks for (`socket.receive.buffer.bytes`): a producer
20 ms away sends 10 MB in a second or more by one connection."""


def bound_unsent(listener: socket.socket) -> None:
    """Bound what the kernel takes from the node for each peer that does not read. Linux alone can."""
    if sys.platform == "linux" and listener.family != socket.AF_UNIX:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)


def bound_unread(listener: socket.socket) -> None:
    """Bound what the kernel takes from each peer while the node does not read. Call it before the listener listens:
    its windows are announced then."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES_MAX)


def end_when_untaken(listener: socket.socket, seconds: float) -> None:
    """Have the kernel end the connection of a peer that takes nothing of what is sent to it for so long. Linux alone
    can."""
    if sys.platform == "linux" and listener.family != socket.AF_UNIX:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * seconds))
