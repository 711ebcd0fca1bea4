"""Bounds a fetch response by what the reader on the other end has shown to take.

Anybody can ask for megabytes; to make them costs the node memory and a piece of a turn of the event loop, and a client
that never reads makes the node pay for nothing. So a connection begins with credit for a small response. The bytes that
its peer has taken, multiplied, are added to the credit; bytes that it has not taken yet use it up. A peer is believed
to have taken what its host has acknowledged: a request that follows a response read to its end finds all of it
acknowledged, so that a reader has full responses from its fourth on. While the responses of all connections hold
little memory, the credit of a new one is so large that a reader has full responses from its second on: clients that do
not read soon hold more than that.

The kernel's send buffer counts as not taken. Over a fast network the kernel takes megabytes at once whoever reads, so
a transport that has drained says nothing of the peer.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios

from mainstem.kernel import untrack
from mainstem.ports import ANY_BYTES
from mainstem.server.bounds.response_budget import ResponseBudget
from mainstem.server.response_queue import ResponseQueue

FIRST_BYTES = 64 * 1024
"""The credit of a new connection while memory is used: the 0.1 ms of making it are what any small request may cost."""

SPARE_SHARE = 16
"""Memory is free while responses hold less than one part in so many of what they may: by default 32 MB, which some
thirty clients hold that do not read."""

GROWTH = 8
"""Credit for each byte taken: the second response may have half a megabyte, the third five. With more of it,
clients that read a little before they stop would get much for little."""

TRUSTED_BYTES = 1024 * 1024
"""A peer that has taken this much is not measured any more."""

SPARE_FIRST_BYTES = TRUSTED_BYTES * 5 // 4
"""The credit of a new connection while memory is free: with it taken a peer is trusted, also where whole batches do not
fill it."""

_LENGTH = struct.Struct("i")
_ROOM = bytes(_LENGTH.size)


class ReaderCredit:
    """The credit of one connection. `given` has to count every byte that its transport is given."""

    __slots__ = ("_budget", "_responses", "_transport", "_trusted", "given")

    def __init__(self, transport: asyncio.Transport, responses: ResponseQueue, budget: ResponseBudget) -> None:
        """`budget` is that of the responses of all connections."""
        self._transport: asyncio.Transport | None = transport
        self._responses = responses
        self._budget = budget
        self._trusted = False
        self.given = 0
        """Bytes that the transport was given since the connection began."""
        untrack(self)  # the transport, which knows its connection and so this, is let go of by `give_up`

    def give_up(self) -> None:
        """The connection is lost: nobody takes anything any more."""
        self._transport = None
        self._trusted = False

    def response_bytes_max(self) -> int:
        """The bytes that the next response should have at most: at least one, for which a whole batch is served."""
        if self._trusted:
            return ANY_BYTES
        transport = self._transport
        if transport is None:
            return 1
        on_the_way = transport.get_write_buffer_size() + _unacknowledged(transport)
        taken = self.given - on_the_way
        if taken >= TRUSTED_BYTES:
            self._trusted = True
            return ANY_BYTES
        return max(1, self._first_bytes() + GROWTH * taken - on_the_way - self._responses.bytes_unsent)

    def _first_bytes(self) -> int:
        """The credit of a peer that has taken nothing."""
        budget = self._budget
        return SPARE_FIRST_BYTES if SPARE_SHARE * budget.bytes_held < budget.bytes_max else FIRST_BYTES


def _unacknowledged(transport: asyncio.Transport) -> int:
    """Bytes that the kernel holds for the peer."""
    connection_socket = transport.get_extra_info("socket")
    if connection_socket is None or connection_socket.fileno() < 0:
        return 0
    (size,) = _LENGTH.unpack(fcntl.ioctl(connection_socket.fileno(), termios.TIOCOUTQ, _ROOM))
    return int(size)
