"""The link to one node for Raft's messages: a connection that is made again whenever it is lost, and the deliveries
under way on it.

The other end answers a delivery when it has taken it in, which is the backpressure: at most `BYTES_IN_FLIGHT_MAX` of
entries are under way, so that no more than that lies ahead of a heartbeat. It takes deliveries in one after another, so
the link asks for an answer now and then, and that stands for all before. Without a connection no message waits: the
link drops it and tells Raft, which sends again what still matters. Only during the first attempt after a loss, and
during one that the other node's own call brings about, does the link keep messages: these attempts usually succeed.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from mainstem.address import Address
from mainstem.model import HistogramSample, Sample
from mainstem.rpc.errors import DeadlineExceeded, IdentityRefused, RpcError, VersionMismatch
from mainstem.rpc.raft.raft_member import RaftMember
from mainstem.rpc.raft.raft_messages import DELIVER, Delivery
from mainstem.rpc.raft.raft_outbox import Bounds, Outbox, Outgoing
from mainstem.rpc.wire.call_state import CallAnswer
from mainstem.rpc.wire.client_connection import ClientConnection, Connect, open_connection
from mainstem.rpc.wire.hello import Hello
from mainstem.supervised import Supervision

log = logging.getLogger(__name__)


class Backoff:
    """Doubles from `first_seconds` to `seconds_max`; a random part of each wait, up to half, is left out, so
    that nodes that lost a peer together do not all come back together."""

    def __init__(self, first_seconds: float, seconds_max: float, random: Random) -> None:
        self._first_seconds, self._seconds_max = first_seconds, seconds_max
        self._random = random
        self._next_seconds = first_seconds

    def seconds(self) -> float:
        """The next wait."""
        whole = self._next_seconds
        self._next_seconds = min(2 * whole, self._seconds_max)
        return whole * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """An attempt succeeded: begin with the shortest wait again."""
        self._next_seconds = self._first_seconds


ROUND_TRIP_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, float("inf"))
"""Seconds: from a quiet loopback to the deadline."""

_COUNTERS = (
    ("deliveries", "deliveries_total", "Deliveries of Raft messages sent."),
    ("messages", "messages_total", "Raft messages sent."),
    ("entry_bytes", "entry_bytes_total", "Bytes of log entries sent."),
    ("dropped", "dropped_total", "Raft messages dropped: no connection, or too much waits."),
    ("refused", "refused_total", "Deliveries the other end refused."),
    ("connects", "connects_total", "Connections made."),
    ("connect_failures", "connect_failures_total", "Attempts to connect that failed."),
)


@dataclass(slots=True)
class LinkCounters:
    """Written on the event loop only."""

    deliveries: int = 0
    messages: int = 0
    entry_bytes: int = 0
    dropped: int = 0
    refused: int = 0
    connects: int = 0
    connect_failures: int = 0
    round_trip_counts: list[int] = field(default_factory=lambda: [0] * len(ROUND_TRIP_BOUNDS))
    round_trip_seconds: float = 0.0

    def round_trip(self, seconds: float) -> None:
        self.round_trip_counts[bisect_left(ROUND_TRIP_BOUNDS, seconds)] += 1
        self.round_trip_seconds += seconds

    def samples(self, labels: tuple[tuple[str, str], ...]) -> Iterator[Sample | HistogramSample]:
        for name, metric, text in _COUNTERS:
            yield Sample(f"mainstem_raft_link_{metric}", "counter", text, getattr(self, name), labels)
        total, cumulative = 0, []
        for count in tuple(self.round_trip_counts):
            total += count
            cumulative.append(total)
        yield HistogramSample(
            "mainstem_raft_link_round_trip_seconds", "From sending a delivery to its having been taken in.",
            ROUND_TRIP_BOUNDS, tuple(cumulative), self.round_trip_seconds, labels,
        )  # fmt: skip


BYTES_IN_FLIGHT_MAX = 4 * 1024 * 1024
"""Entries under way and not taken in: 10 Gbit/s over 3 ms. A heartbeat waits for so many bytes at the most,
on a link of 1 Gbit/s for 35 ms."""

DELIVERIES_IN_FLIGHT_MAX = 64
"""Heartbeats and acknowledgements leave about once per turn of the loop and are answered within one of the peer's."""

UNASKED_MAX = 15
"""So many deliveries leave at most before one asks for an answer: a quarter of those that may be under way."""

UNASKED_BYTES_MAX = 256 * 1024
"""…and so many bytes of entries, a sixteenth of what may be under way."""

ASKS_EACH_SECONDS = 0.1
"""A delivery asks for an answer if none has for so long, about that from one heartbeat to the next: a peer that takes
nothing in is found as soon as if each did."""

RECONNECT_FIRST_SECONDS = 0.05
RECONNECT_SECONDS_MAX = 1.0
"""A node that comes back is found within about an election timeout."""

CUT_OFF_SECONDS = 3.0
"""A node is called cut off for so long after its connection ended: the metadata's leader has judged it by then, as a
node that holds nothing after 0.3 s, or 1.5 s where its host is gone."""

REFUSED_SECONDS_MAX = 30.0
"""A refused identity does not change before an operator has changed a configuration."""


class _UnderWay(NamedTuple):
    """A delivery that asks for an answer, and those before it that did not."""

    sent_at: float
    size: int
    """Bytes of entries in all of them."""
    deliveries: int


class RaftLink:
    """`start`, then `close`; each once. `dropped(group)`: a message of this Raft group will not arrive;
    `lost()`: messages of any Raft group may not have arrived; `gone()`: after a loss, no process listens
    there."""

    def __init__(
        self,
        node_id: int,
        address: Address,
        hello: Hello,
        members: Mapping[int, RaftMember],
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
        self._delivery_ms = round(self._delivery_seconds * 1000)
        self._connect = connect
        self._backoff = backoff(RECONNECT_FIRST_SECONDS, RECONNECT_SECONDS_MAX)
        self._refused_backoff = backoff(RECONNECT_SECONDS_MAX, REFUSED_SECONDS_MAX)
        self._dropped = dropped
        self._lost = lost
        self._gone = gone
        self.outbox = Outbox(members, self._drop, self.flush, bounds, supervision)
        self._connection: ClientConnection | None = None
        self._attempting = True
        """Whether an attempt that usually succeeds is due or under way: messages are kept for it."""
        self._lost_at: float | None = None
        """When the last connection ended, by the loop's clock; None: there was none, or there is one again."""
        self._hurry = asyncio.Event()
        """Set when the next attempt must not wait any longer."""
        self._under_way: dict[int, _UnderWay] = {}
        self._bytes_under_way = 0
        self._deliveries_under_way = 0
        self._unasked = 0
        """Deliveries sent since the last that asked for an answer, and their bytes of entries."""
        self._unasked_bytes = 0
        self._asked_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._takes = False
        """Whether the other end has taken a delivery in on this connection."""
        self._told = ""
        """The last reason logged: it is not logged again at each attempt."""
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def cut_off(self) -> bool:
        """Whether the connection has just ended, and was not made again yet: as when the other process dies."""
        if self._connection is not None:
            return self._connection.lost is not None
        return self._lost_at is not None and asyncio.get_running_loop().time() - self._lost_at < CUT_OFF_SECONDS

    @property
    def trouble(self) -> str:
        """Why nothing gets through; empty: messages get through, or none was tried yet."""
        return self._told

    @property
    def deliveries_in_flight(self) -> int:
        """Deliveries of which it is not known yet whether they were taken in."""
        return self._deliveries_under_way

    def start(self) -> None:
        self._task = self._supervision.start(self._run, f"raft link to {self.node_id}")

    async def close(self) -> None:
        """End the link; deliveries under way are given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._disconnect(RpcError("this node closes the connection"))
        await self.outbox.close()

    def hurry(self) -> None:
        """Connect now and not after the wait: the other node has just called this one, so it listens again. Without
        this, its first messages would be answered up to `RECONNECT_SECONDS_MAX` later."""
        if self._connection is None and not self._hurry.is_set():
            self._hurry.set()
            self._attempting = True

    def flush(self) -> None:
        """Send waiting messages, as far as more deliveries may be under way."""
        connection = self._connection
        if connection is None:
            if not self._attempting:
                self.outbox.drop_all()
            return
        while connection.lost is None and self._deliveries_under_way < DELIVERIES_IN_FLIGHT_MAX:
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
            await self._wait(wait)

    async def _wait(self, seconds: float) -> None:
        """Wait before the next attempt, unless the other node calls."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        self._hurry.clear()

    def _connected(self, connection: ClientConnection) -> None:
        self.counters.connects += 1
        self._connection = connection
        self._takes = False
        self._lost_at = None
        self._attempting = False
        self._hurry.clear()
        self.flush()

    def _ended(self, connection: ClientConnection) -> float:
        """Note that a connection was lost; returns after how many seconds to try again."""
        assert connection.lost is not None
        refused = isinstance(connection.lost, (IdentityRefused, VersionMismatch))
        self._tell(connection.lost, logging.ERROR if refused else logging.WARNING)
        self._connection = None
        self._lost_at = asyncio.get_running_loop().time()
        self._attempting = not refused
        self._under_way.clear()
        self._bytes_under_way = self._deliveries_under_way = self._unasked = self._unasked_bytes = 0
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
        size = delivery.size
        now = asyncio.get_running_loop().time()
        asks = (
            not self._takes
            or self._unasked == UNASKED_MAX
            or self._unasked_bytes + size >= UNASKED_BYTES_MAX
            or now - self._asked_at >= ASKS_EACH_SECONDS
            or not connection.tells
        )
        request_id = 0
        try:
            if asks:
                request_id = connection.open(
                    DELIVER,
                    Delivery(delivery.messages),
                    delivery.buffers,
                    self._delivery_ms,
                    self._answered,
                )
            else:
                connection.tell(DELIVER, Delivery(delivery.messages), delivery.buffers)
        except RpcError:
            return  # the connection just ended; `_ended` tells
        except (ValueError, OverflowError) as error:
            log.error("messages for node %d cannot be sent: %s", self.node_id, error)
            for group in {message.group for message in delivery.messages}:
                self._drop(group)
            return
        counters.deliveries += 1
        counters.messages += len(delivery.messages)
        counters.entry_bytes += size
        self._deliveries_under_way += 1
        self._bytes_under_way += size
        if not asks:
            self._unasked += 1
            self._unasked_bytes += size
            return
        self._under_way[request_id] = _UnderWay(now, self._unasked_bytes + size, self._unasked + 1)
        self._unasked = self._unasked_bytes = 0
        self._asked_at = now
        if self._watch is None:
            self._watch_from(now)

    def _answered(self, answer: CallAnswer) -> None:
        sent = self._under_way.pop(answer.request_id, None)
        if sent is None:
            return
        self._bytes_under_way -= sent.size
        self._deliveries_under_way -= sent.deliveries
        if answer.error is None:
            if self._told or not self._takes:
                self._works()
            self.counters.round_trip(asyncio.get_running_loop().time() - sent.sent_at)
        elif self._connection is not None and self._connection.lost is None:
            self.counters.refused += 1
            self._tell(answer.error, logging.ERROR)
        if not self.outbox.is_idle and self._connection is not None and self._connection.lost is None:
            self.flush()

    def _works(self) -> None:
        """A delivery was taken in: only that shows that the other end accepts this node's messages."""
        self._takes = True
        self._backoff.reset()
        self._refused_backoff.reset()
        if self._told:
            log.info("node %d at %s:%d takes messages in again", self.node_id, *self.address)
            self._told = ""

    def _watch_from(self, sent_at: float) -> None:
        loop = asyncio.get_running_loop()
        self._watch = loop.call_at(sent_at + self._delivery_seconds, self._expire)

    def _expire(self) -> None:
        """End a connection whose oldest delivery is not answered in time; else check again when it would be
        due."""
        self._watch = None
        if self._connection is None or not self._under_way:
            return
        oldest = next(iter(self._under_way.values())).sent_at
        if asyncio.get_running_loop().time() < oldest + self._delivery_seconds:
            self._watch_from(oldest)
            return
        where = str(self.address)
        self._connection.drop(
            DeadlineExceeded(f"{where} takes nothing in for {self._delivery_seconds:g} s: stopped, or overloaded")
        )

    # lost messages

    def _drop(self, group: int) -> None:
        self.counters.dropped += 1
        self._dropped(group)
