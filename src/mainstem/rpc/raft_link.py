"""The way to one node for Raft's messages: a connection that is made again whenever it is lost, and the deliveries
under way on it.

Deliveries are answered when the other end has taken them in, which is the backpressure: at most `BYTES_IN_FLIGHT_MAX`
of entries are under way, so that no more than that lies ahead of a heartbeat. While there is no connection nothing
waits: messages are dropped and Raft, told so, sends again what still matters. Only while the first attempt after a
loss is under way they are kept, because it usually succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mainstem.rpc.backoff import Backoff
from mainstem.rpc.client_connection import ClientConnection, Connect, open_connection
from mainstem.rpc.connection import Answer
from mainstem.rpc.errors import DeadlineExceeded, IdentityRefused, RpcError, VersionMismatch
from mainstem.rpc.link_counters import LinkCounters
from mainstem.rpc.method import Hello
from mainstem.rpc.raft_member import Member
from mainstem.rpc.raft_messages import DELIVER, Delivery
from mainstem.rpc.raft_outbox import Bounds, Outbox, Outgoing
from mainstem.supervised import Supervision

log = logging.getLogger(__name__)

BYTES_IN_FLIGHT_MAX = 4 * 1024 * 1024
"""Entries under way and not taken in: 10 Gbit/s over 3 ms. A heartbeat waits for that much at the most, on a link
of 1 Gbit/s for 35 ms."""

DELIVERIES_IN_FLIGHT_MAX = 64
"""Heartbeats and acknowledgements leave about once per turn of the loop and are answered within one of the peer's."""

RECONNECT_FIRST_SECONDS = 0.05
RECONNECT_SECONDS_MAX = 1.0
"""A node that comes back is found within about an election timeout."""

REFUSED_SECONDS_MAX = 30.0
"""A refused identity does not change before somebody changes a configuration."""


class Address(NamedTuple):
    host: str
    port: int


class _UnderWay(NamedTuple):
    sent_at: float
    size: int


class RaftLink:
    """`start`, then `close`; both once. `dropped(group)`: a message of this group will not arrive; `lost()`:
    messages of any group may not have; `gone()`: after a loss, nobody listens there."""

    def __init__(
        self,
        node_id: int,
        address: Address,
        hello: Hello,
        members: Mapping[int, Member],
        *,
        connect: Connect,
        backoff: Callable[[float, float], Backoff],
        dropped: Callable[[int], None],
        lost: Callable[[], None],
        gone: Callable[[], None],
        bounds: Bounds,
        supervision: Supervision,
    ) -> None:
        self.node_id = node_id
        self.address = address
        self.counters = LinkCounters()
        self._supervision = supervision
        self._hello = hello
        self._delivery_seconds = bounds.delivery_seconds
        self._connect = connect
        self._backoff = backoff(RECONNECT_FIRST_SECONDS, RECONNECT_SECONDS_MAX)
        self._refused_backoff = backoff(RECONNECT_SECONDS_MAX, REFUSED_SECONDS_MAX)
        self._dropped = dropped
        self._lost = lost
        self._gone = gone
        self.outbox = Outbox(members, self._drop, self.flush, bounds)
        self._connection: ClientConnection | None = None
        self._attempting = True
        """The first attempt since the start or the last loss is not over: messages are kept for it."""
        self._under_way: dict[int, _UnderWay] = {}
        self._bytes_under_way = 0
        self._watch: asyncio.TimerHandle | None = None
        self._told = ""
        """The last reason logged: the same is not logged at each attempt."""
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def trouble(self) -> str:
        """Why nothing gets through; empty: it does, or nothing was tried yet."""
        return self._told

    @property
    def deliveries_in_flight(self) -> int:
        return len(self._under_way)

    def start(self) -> None:
        self._task = self._supervision.start(self._run, f"raft link to {self.node_id}")

    async def close(self) -> None:
        """Deliveries under way are given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._disconnect(RpcError("this node closes the connection"))
        await self.outbox.close()

    def flush(self) -> None:
        """Send what waits, as far as deliveries may be under way."""
        connection = self._connection
        if connection is None:
            if not self._attempting:
                self.outbox.drop_all()
            return
        while connection.lost is None and len(self._under_way) < DELIVERIES_IN_FLIGHT_MAX:
            delivery = self.outbox.take(appends=self._bytes_under_way < BYTES_IN_FLIGHT_MAX)
            if delivery is None:
                return
            self._send(connection, delivery)

    # the connection

    async def _run(self) -> None:
        while True:
            try:
                connection = await open_connection(self._hello, *self.address, self._connect)
            except (IdentityRefused, VersionMismatch) as error:
                wait = self._refused_backoff.seconds()
                self._failed(error, logging.ERROR)
            except RpcError as error:
                wait = self._backoff.seconds()
                self._failed(error, logging.WARNING)
            else:
                self._connected(connection)
                await connection.ended
                wait = self._ended(connection)
            await asyncio.sleep(wait)

    def _connected(self, connection: ClientConnection) -> None:
        self.counters.connects += 1
        self._connection = connection
        self._attempting = False
        self.flush()

    def _ended(self, connection: ClientConnection) -> float:
        """A connection was lost. Returns after how many seconds to try again."""
        assert connection.lost is not None
        refused = isinstance(connection.lost, (IdentityRefused, VersionMismatch))
        self._tell(connection.lost, logging.ERROR if refused else logging.WARNING)
        self._connection = None
        self._attempting = not refused
        self._under_way.clear()
        self._bytes_under_way = 0
        self._lost()
        return self._refused_backoff.seconds() if refused else self._backoff.seconds()

    def _failed(self, error: RpcError, level: int) -> None:
        self._tell(error, level)
        first, self._attempting = self._attempting, False
        self.counters.connect_failures += 1
        self.outbox.drop_all()
        if first and self.counters.connects and isinstance(error.__cause__, ConnectionRefusedError):
            self._gone()

    def _tell(self, error: RpcError, level: int) -> None:
        if str(error) != self._told:
            self._told = str(error)
            log.log(level, "no connection to node %d: %s", self.node_id, error)

    def _disconnect(self, reason: RpcError) -> None:
        connection, self._connection = self._connection, None
        self._attempting = False
        if connection is not None:
            connection.drop(reason)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # deliveries

    def _send(self, connection: ClientConnection, delivery: Outgoing) -> None:
        counters = self.counters
        try:
            request_id = connection.open(
                DELIVER,
                Delivery(delivery.messages),
                delivery.buffers,
                round(self._delivery_seconds * 1000),
                self._answered,
            )
        except RpcError:
            return  # the connection just ended; `_ended` tells
        except (ValueError, OverflowError) as error:
            log.error("messages for node %d cannot be sent: %s", self.node_id, error)
            for group in {message.group for message in delivery.messages}:
                self._drop(group)
            return
        now = asyncio.get_running_loop().time()
        self._under_way[request_id] = _UnderWay(now, delivery.size)
        self._bytes_under_way += delivery.size
        counters.deliveries += 1
        counters.messages += len(delivery.messages)
        counters.entry_bytes += delivery.size
        if self._watch is None:
            self._watch_from(now)

    def _answered(self, answer: Answer) -> None:
        sent = self._under_way.pop(answer.request_id, None)
        if sent is None:
            return
        self._bytes_under_way -= sent.size
        if answer.error is None:
            self._works()
            self.counters.round_trip(asyncio.get_running_loop().time() - sent.sent_at)
        elif self._connection is not None and self._connection.lost is None:
            self.counters.refused += 1
            self._tell(answer.error, logging.ERROR)
        if self._connection is not None and self._connection.lost is None:
            self.flush()

    def _works(self) -> None:
        """A delivery was taken in: only that shows that the other end wants to hear from this one."""
        self._backoff.reset()
        self._refused_backoff.reset()
        if self._told:
            log.info("node %d at %s:%d takes messages in again", self.node_id, *self.address)
            self._told = ""

    def _watch_from(self, sent_at: float) -> None:
        loop = asyncio.get_running_loop()
        self._watch = loop.call_at(sent_at + self._delivery_seconds, self._expire)

    def _expire(self) -> None:
        """End a connection whose oldest delivery is not answered in time; else look again when it would be."""
        self._watch = None
        if self._connection is None or not self._under_way:
            return
        oldest = next(iter(self._under_way.values())).sent_at
        if asyncio.get_running_loop().time() < oldest + self._delivery_seconds:
            self._watch_from(oldest)
            return
        where = f"{self.address.host}:{self.address.port}"
        self._connection.drop(
            DeadlineExceeded(
                f"{where} takes nothing in for {self._delivery_seconds:g} s: stopped, or overloaded"
            )
        )

    # what is lost

    def _drop(self, group: int) -> None:
        self.counters.dropped += 1
        self._dropped(group)
