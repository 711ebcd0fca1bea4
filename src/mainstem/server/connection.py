"""One client connection: frames in, responses out, in order.

The connection reads the socket into its own buffer and dispatches every whole frame from there. One function,
`_advance`, decides what holds a frame back, until the event in brackets:

* a reply that is not pipelined is pending, or too many are (a reply arrives);
* too many response bytes are unsent, the fewer the less memory is left for all responses (the transport drains, or
  other connections' responses leave);
* its buffer has to grow for it, or it takes much memory decoded, and requests hold as much as they may (some is given
  back);
* it brings batches, and the store has no room for more, or other connections have waited longer (its turn
  comes);
* the frames before it took long enough for one turn of the loop (a later turn comes);
* a quota of its client mutes it (the time is over);
* its client has not shown who it is (its turn comes among those of all that have not);
* the connection is ending.

Frames held back stay in the buffer; reading goes on while the buffer has room, and pauses when it is full.
So the memory of a connection is bounded by its buffer, the replies in flight, and the response bound plus
the one response that crossed it.

The transport is given one chunk after the other only while it is below its high-water mark. Responses of one
event-loop turn leave together at its end; the last one in flight leaves at once, since no other can join it. A
connection writes a bounded number of bytes a turn: a large response takes several, between which other connections
are served. A response of very many pieces is written past the transport, which would make objects of each, while that
holds nothing; it waits for room in the socket all the same.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections.abc import Callable, Sized
from functools import partial
from typing import Protocol, cast

from mainstem.address import Address
from mainstem.errors import MainstemError
from mainstem.kernel import untrack
from mainstem.ports import ANONYMOUS, ANY_BYTES, Burst, Dispatcher, LastReply, Reply, Scattered, Session
from mainstem.prompt_future import PromptFuture
from mainstem.server.bounds.reader_credit import ReaderCredit
from mainstem.server.bounds.request_budget import SMALL_BYTES_MAX, Account, BudgetedGrowth
from mainstem.server.errors import BadFrame, TruncatedFrame
from mainstem.server.lingering import Lingering
from mainstem.server.listener_config import DEFAULT_NAME
from mainstem.server.receive_buffer import LENGTH_BYTES, ReceiveBuffer
from mainstem.server.response_queue import ResponsePlace, ResponseQueue
from mainstem.server.shared import Shared

TRANSPORT_BYTES_HIGH = 256 * 1024
"""The transport is fed until it holds this much: about one socket buffer, enough for a fast reader."""

TURN_BYTES_MAX = 512 * 1024
"""Bytes written to one connection in a turn of the loop: about 0.15 ms of the kernel's copying, for which every other
request waits. With half of it a reader of what is in memory takes a sixth more of the node's CPU time; with twice as
much, more again, since what is on its way leaves the processor's second cache before it is read."""

SHARED_TURN_BYTES_MAX = 128 * 1024
"""The same while clients take turns at bringing batches, of a connection with TLS: the node encrypts no more than this
before others have their turn."""

STRANGER_BYTES_MAX = 16 * 1024
"""Bytes of responses that wait for a client that has to show who it is, before its next request is dispatched: twenty
answers to ApiVersions, of which a client needs one."""

AWAITED_BYTES = 16 * 1024
"""The share that the transport gets of scattered bytes to wait with: a piece or two, a sixteenth of what leaves in a
turn."""

DISPATCH_SECONDS_MAX = 0.002
"""Seconds for which one connection's requests are dispatched in a turn of the loop: its buffer holds thousands of small
fetches, which together took fifteen milliseconds."""

HALF_READ_SECONDS_MAX = 30.0
"""How long a request may take to arrive once other requests wait for the memory it holds: the largest at 30
Mbit/s."""

UNREAD_SECONDS_MAX = 5.0
"""How long a peer may take nothing of its responses while memory for responses is short: several of TCP's
retransmissions."""

RECOUNT_BYTES = 64 * 1024
"""The budget of responses is told of each such change in unsent bytes, not of every small response."""

SILENT_SECONDS_MAX = 5.0
"""How long no byte of such a request may arrive: several of TCP's retransmissions."""


class ConnectionHost(Protocol):
    """The server, as its connections see it."""

    @property
    def waiting_for_room(self) -> Sized:
        """The connections that wait for their turn to bring batches, always the same object."""
        ...

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        ...

    def forget(self, connection: Connection) -> None:
        """A connection is closed, admitted or not."""
        ...

    def wait_for_room(self, connection: Connection) -> None:
        """Have a connection told when it is its turn to bring batches."""
        ...

    def lets_past(self, connection: Connection, size_bytes: int, *, complete: bool) -> bool:
        """Whether a connection need not wait for its turn with the batches that have come, so many bytes; `complete`:
        with the whole request."""
        ...

    def wait_for_budget(
        self, connection: Connection, size_bytes: int, woken: Callable[[], object], *, decoded: bool
    ) -> None:
        """Have a connection told when it is worth another try to have a buffer of that size, or to dispatch a request
        that takes so much `decoded`."""
        ...

    def knows(self, connection: Connection) -> None:
        """The client of a connection has shown who it is."""
        ...

    def wait_for_step(self, connection: Connection) -> None:
        """Have a connection whose client has not shown who it is told when it is the turn of its next request."""
        ...

    def flush_soon(self, connection: Connection) -> None:
        """Have the connection write what it has, once, at the end of this turn of the loop."""
        ...


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        host: ConnectionHost,
        shared: Shared,
        dispatcher: Dispatcher,
        listener: str = DEFAULT_NAME,
        protocol: str = "PLAINTEXT",
    ) -> None:
        """`listener` is the name of the one it came by, and `protocol` that one's."""
        self._host = host
        self._listener, self._protocol = listener, protocol
        self._shared = shared
        self.dispatcher = dispatcher
        self._has_room = dispatcher.has_room
        self._room_queue = host.waiting_for_room
        self._takes_turns = dispatcher.shared
        self.account = account = Account("")
        self._buffer = ReceiveBuffer(BudgetedGrowth(shared.budget, account))  # which does not hold this connection
        self._responses = ResponseQueue()
        self._response_budget = shared.responses
        self.held_bytes = 0
        """Bytes that the budget of responses has charged for this connection."""
        self._untaken = 0
        """Bytes that the transport held at the last check."""
        self.taken_at = 0.0
        """When the peer is last known to have taken bytes, or there were none to take."""
        self._transport: asyncio.Transport | None = None
        self._encrypts = False
        """Whether the transport does not hand bytes on as they are: nothing is written past it."""
        self._credit: ReaderCredit
        self.session = Session("", 0, 0)
        self.active_at = 0.0
        self._exclusive = False
        """Whether a reply that is not pipelined is pending."""
        self._is_strange = False
        """Whether the bounds of a client that has not shown who it is hold."""
        self._is_its_step = False
        """Whether such a client's next request has its turn."""
        self._waiting_for_step = False
        self._half_read_since: float | None = None
        self._waiting_for_budget = False
        self._waiting_for_room = False
        self._reading = True
        self._writable = True
        self._flush_due = False
        self._unmuting: asyncio.TimerHandle | None = None
        """Goes on once a quota no longer mutes it, if a frame waits for that."""
        self._turn_over = False
        """Whether dispatching goes on in a later turn of the loop, with the flush."""
        self._ending = False
        """Dispatch nothing more, and close once everything is sent."""
        self._lingers = False
        self._eof = False
        self._dead = False
        """The peer will not read another response."""

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's are only like it
        address = transport.get_extra_info("peername") or ("unknown", 0)
        self._encrypts = transport.get_extra_info("ssl_object") is not None
        self._credit = ReaderCredit(transport, self._responses, self._response_budget)
        self.session = Session(
            str(address[0]),
            int(address[1]),
            next(self._shared.ids),
            listener=self._listener,
            protocol=self._protocol,
            principal=transport.get_extra_info("principal") or ANONYMOUS,
            response_bytes_max=self._credit.response_bytes_max,
        )
        untrack(self.session)  # it knows the transport by way of the credit, which gives that up
        self.account.host = self.session.host
        self.active_at = self._shared.clock.monotonic()
        transport.set_write_buffer_limits(high=TRANSPORT_BYTES_HIGH)
        if self._protocol.startswith("SASL"):
            self._begin_strange(transport)
        connection_socket = transport.get_extra_info("socket")
        if connection_socket is not None and connection_socket.family != socket.AF_UNIX:
            connection_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._host.admit(self):
            self.abort()

    def _begin_strange(self, transport: asyncio.Transport) -> None:
        """Hold little for the client, of what it sends and of what it does not read, until it has shown who it is."""
        frame_bytes_max = self._shared.config.frame_bytes_unauthenticated_max
        self.session.begin_gated(frame_bytes_max)
        self.account.buffer_bytes_max = LENGTH_BYTES + frame_bytes_max
        transport.set_write_buffer_limits(high=STRANGER_BYTES_MAX)
        self._is_strange = True

    def _end_strange(self) -> None:
        assert self._transport is not None
        self.account.buffer_bytes_max = ANY_BYTES
        self._transport.set_write_buffer_limits(high=TRANSPORT_BYTES_HIGH)
        self._is_strange = False
        self._host.knows(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._buffer.received(nbytes)
        self._shared.counters.bytes_in += nbytes
        self.active_at = self._shared.clock.monotonic()
        self._advance()

    def eof_received(self) -> bool:
        # the peer may still read: answer its requests, except reads that wait for new data; then close
        self._eof = True
        self.dispatcher.disconnected(self.session)
        self._advance()
        return not self._dead

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.active_at = self.taken_at = self._shared.clock.monotonic()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up()
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._response_budget.change(-self.held_bytes)
        self._response_budget.forget(self)
        self.held_bytes = 0
        self._shared.budget.drop(self.account)
        self._buffer.give_up()
        self._credit.give_up()
        self._host.forget(self)

    # the server's side

    @property
    def host(self) -> str:
        """The peer's address."""
        return self.session.host

    def step(self) -> None:
        """It is the turn of one request of the client, which has not shown who it is."""
        self._waiting_for_step = False
        if not self._dead:
            self._is_its_step = True
            self._advance()
            self._is_its_step = False
            if self._is_strange and self.session.authenticated and not self._dead:
                self._end_strange()

    @property
    def bytes_unsent(self) -> int:
        """Bytes of responses that are made and not yet in the kernel's hands."""
        return self._responses.bytes_unsent + self._transport_bytes()

    @property
    def is_encrypted(self) -> bool:
        return self._encrypts

    @property
    def is_reading(self) -> bool:
        """Whether it takes what the peer sends; if not, that stays with the kernels of both."""
        return self._reading

    def recount(self) -> None:
        """Charge the budget of responses for the bytes unsent now."""
        responses = self._responses
        held = responses.bytes_unsent - responses.bytes_shared + self._transport_bytes()
        more = held - self.held_bytes
        if more:
            if not self.held_bytes:
                self.taken_at = self._shared.clock.monotonic()
            self.held_bytes = held
            self._response_budget.change(more)

    def takes_nothing(self, now: float) -> bool:
        """Whether the peer has left its responses unread for a while. Call it again and again."""
        untaken = self._transport_bytes()
        if untaken != self._untaken or not self.held_bytes:
            self._untaken = untaken
            self.taken_at = now
        return now - self.taken_at > UNREAD_SECONDS_MAX

    def go_on(self) -> None:
        """There is memory for responses again."""
        asyncio.get_running_loop().call_soon(self.flush)

    @property
    def in_flight(self) -> int:
        """Requests that are not answered yet, or whose responses wait for their turn."""
        return self._responses.in_flight

    def in_the_way(self, now: float) -> bool:
        """Whether this connection wastes memory that other requests wait for: its request does not arrive,
        requests sent behind one that waits have lain too long, or the peer is gone."""
        holds = self.account.buffered > 0 and self._buffer.unread > 0
        if (holds or self._waiting_for_budget) and not self._reading and self._hung_up:
            return True
        if self._waiting_for_budget or not holds:
            return False
        silent = now - self.active_at
        if self._half_read_since is None:
            return silent > HALF_READ_SECONDS_MAX
        return silent > SILENT_SECONDS_MAX or now - self._half_read_since > HALF_READ_SECONDS_MAX

    @property
    def _hung_up(self) -> bool:
        """Whether the peer has ended the stream, of which a connection that does not read is not told."""
        assert self._transport is not None
        connection_socket = self._transport.get_extra_info("socket")
        if connection_socket is None or connection_socket.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(connection_socket.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    @property
    def buffer_bytes(self) -> int:
        return self._buffer.capacity

    def end(self, *, lingers: bool = False) -> None:
        """Dispatch nothing more; close when every reply in flight is made and sent. `lingers`: where the peer may be
        sending more, it gets the replies all the same."""
        self._ending = True
        self._lingers = lingers
        if self._dead and not lingers and self._transport is not None:
            self._transport.close()  # it lingers already
        self._pause_reading()
        self._close_when_done()

    def abort(self) -> None:
        """End now, whatever is in flight or unsent."""
        self._give_up()
        if self._transport is not None:
            self._transport.abort()

    def shrink(self) -> None:
        """Give up spare memory, if no request is half read."""
        self._buffer.shrink()

    def flush(self) -> None:
        """Write the responses that may leave, as far as the transport takes them."""
        self._flush_due = self._turn_over = False
        if not self._dead:
            self._write_out()
            self._advance()

    # internals

    def _write_out(self) -> None:
        assert self._transport is not None
        sent = 0
        sent_max = SHARED_TURN_BYTES_MAX if self._encrypts and self._takes_turns() else TURN_BYTES_MAX
        while self._writable:
            if sent >= sent_max:
                if self._responses.sendable:
                    self._flush_due = True
                    self._host.flush_soon(self)
                break
            scattered = self._responses.scattered
            if scattered is not None and (descriptor := self._free_descriptor()) >= 0:
                sent += self._write_scattered(scattered, descriptor, TURN_BYTES_MAX - sent)
                continue
            chunks = self._responses.next_chunks()
            if not chunks:
                break
            sent += sum(map(len, chunks))
            if len(chunks) == 1:
                self._transport.write(chunks[0])
            else:
                self._transport.writelines(chunks)
        self._shared.counters.bytes_out += sent
        self._credit.given += sent
        if self.held_bytes or not self._writable:
            self.recount()

    def _free_descriptor(self) -> int:
        """The socket, if nothing that the transport holds has to leave before the next byte; else -1."""
        transport = self._transport
        assert transport is not None
        if self._encrypts:
            return -1
        # one that closes gives its descriptor back, and another connection may get it
        if transport.is_closing() or transport.get_write_buffer_size():
            return -1
        connection_socket = transport.get_extra_info("socket")
        return -1 if connection_socket is None else int(connection_socket.fileno())

    def _write_scattered(self, scattered: Scattered, descriptor: int, size: int) -> int:
        """Write the next `size` bytes past the transport, which would make objects of each piece; how many have left.
        If the socket does not take them all, the transport gets a few, and with them waits until it does, or finds
        out that it failed."""
        responses, transport = self._responses, self._transport
        assert transport is not None
        asked = min(size, len(scattered))
        sent = scattered.send(descriptor, asked)
        responses.left(sent)
        if sent < asked:
            few = scattered.take(AWAITED_BYTES)
            taken = sum(map(len, few))
            responses.left(taken)
            sent += taken
            transport.set_write_buffer_limits(high=0)
            transport.writelines(few)
            transport.set_write_buffer_limits(high=TRANSPORT_BYTES_HIGH)
        return sent

    def _advance(self, *, its_turn: bool = False, light: bool = False) -> None:
        """Dispatch the frames in the buffer until one is held back. `its_turn`: no other connection has
        waited longer for room in the store."""
        until = 0.0
        try:
            while not self._ending and self._buffer.unread and self._may_dispatch():
                others_first = not its_turn and (self._room_queue or self._takes_turns())
                if (others_first or not self._has_room(light)) and self._wait_for_room():
                    break
                if not self._dispatch_burst() and not self._dispatch_one():
                    break
                if not self._buffer.unread:  # most often, so that most often no clock is looked at
                    break
                now = self._shared.clock.monotonic()
                until = until or now + DISPATCH_SECONDS_MAX
                if now >= until:
                    self._end_turn()
        except MainstemError as error:
            self._fail(error)
            return
        except Exception as error:
            self._report_fault(error)
            self.abort()
            return
        self._buffer.settle(scarce=self._shared.budget.scarce)
        if self._eof and not self._ending and not self._held_back():
            if self._buffer.unread:
                rest = f"{self._buffer.unread} bytes of an unfinished request"
                self._report(TruncatedFrame(f"the peer ended the stream with {rest}"))
            self._ending = True
        if self._ending:
            self._close_when_done()
        elif self._buffer.full or self._waiting_for_budget or self._waiting_for_room:
            self._pause_reading()
        elif not self._reading and not self._eof:
            self._reading = True
            assert self._transport is not None
            self._transport.resume_reading()

    def _held_back(self) -> bool:
        return not self._may_dispatch() or self._waiting_for_budget or self._waiting_for_room

    def _end_turn(self) -> None:
        """Go on with the next frame in a later turn of the loop."""
        self._turn_over = True
        if not self._flush_due:
            self._flush_due = True
            self._host.flush_soon(self)

    def _may_dispatch(self) -> bool:
        if self._turn_over or self._exclusive:
            return False
        if self._is_strange:
            if self.session.authenticated:
                self._end_strange()
            elif self.bytes_unsent > STRANGER_BYTES_MAX or self._wait_for_step():
                return False
        if self.session.muted_until and self._is_muted():
            return False
        if self._responses.in_flight >= self._shared.config.requests_in_flight_max:
            return False
        if self.account.kept and self._shared.budget.overdrawn:  # until one of its own requests is answered
            return False
        budget = self._response_budget
        if budget.bytes_held >= budget.bytes_max:
            self.recount()
            if self.held_bytes or budget.full:
                budget.wait(self)
                return False
        if self._writable and not self._responses.bytes_unsent:  # the transport's own share is never too much
            return True
        few = min(self._shared.config.response_bytes_unsent_max, budget.bytes_free())
        return self.bytes_unsent <= max(TRANSPORT_BYTES_HIGH, few)

    def _wait_for_step(self) -> bool:
        """Whether the next frame of a client that has not shown who it is has to wait for its turn."""
        if self._is_its_step or not self._buffer.unread:
            return False
        if not self._waiting_for_step:
            self._waiting_for_step = True
            self._host.wait_for_step(self)
        return True

    def _step_taken(self) -> None:
        if self._is_strange:
            self._is_its_step = False
            self._shared.counters.strange_requests += 1

    def _is_muted(self) -> bool:
        """Whether a quota still mutes the connection; it goes on by itself then."""
        seconds = self.session.muted_until - self._shared.clock.monotonic()
        if seconds <= 0:
            self.session.muted_until = 0.0
            return False
        if self._unmuting is None and not self._dead:
            self._unmuting = asyncio.get_running_loop().call_later(seconds, self._unmute)
        return True

    def _unmute(self) -> None:
        self._unmuting = None
        self.active_at = self._shared.clock.monotonic()
        if not self._dead:
            self._advance()

    def _dispatch_burst(self) -> bool:
        """Dispatch the next frames together, where that is possible."""
        shared, buffer, responses = self._shared, self._buffer, self._responses
        if self._half_read_since is not None and not buffer.has_frame:  # a large one, which comes in many pieces
            return False
        config = shared.config
        frames, start, stop = buffer.whole()
        requests_max = config.requests_in_flight_max - responses.in_flight
        burst = self.dispatcher.dispatch_burst(frames, start, stop, requests_max, config.frame_bytes_max, self.session)
        if burst is None:
            return False
        self._half_read_since = None
        self._step_taken()
        buffer.skip(burst.bytes_taken)
        shared.counters.requests += burst.requests
        kept = burst.holds if burst.holds > SMALL_BYTES_MAX else 0
        if kept:
            shared.budget.keep(self.account, kept)
        place = responses.expect(kept, burst.requests)
        burst.add_done_callback(partial(self._burst_replied, place))
        if burst.last:
            self.end(lingers=True)
        return True

    def _dispatch_one(self) -> bool:
        """Dispatch the next frame; False when it is incomplete, and perhaps has to wait for the budget."""
        shared, buffer = self._shared, self._buffer
        length = buffer.length()
        if length is None:
            return False
        length_max = min(shared.config.frame_bytes_max, self.session.frame_bytes_max)
        if not 0 < length <= length_max:
            raise BadFrame(f"a request of {length} bytes; socket.request.max.bytes is {length_max}")
        frame = buffer.take(length)
        if frame is None:
            if buffer.starved:
                self._wait_for_budget(buffer.starved, decoded=False)
            if self._half_read_since is None:
                self._half_read_since = shared.clock.monotonic()
            return False
        self._half_read_since = None
        self._step_taken()
        with frame:  # released on the way out: no code may keep it
            exchange = self.dispatcher.dispatch(frame, self.session, self._may_hold)
        if exchange is None:
            buffer.put_back(length)
            return False
        shared.counters.requests += 1
        reply, pipelined, last, holds = exchange
        kept = holds if holds > SMALL_BYTES_MAX else 0
        if kept:
            shared.budget.keep(self.account, kept)
        place = self._responses.expect(kept)
        if isinstance(reply, (PromptFuture, asyncio.Future)):
            self._exclusive = not pipelined
            reply.add_done_callback(partial(self._replied, place, pipelined))
        else:
            self._answer(place, reply)
        if last:
            self.end(lingers=True)
        return True

    def _replied(
        self, place: ResponsePlace, pipelined: bool, future: asyncio.Future[Reply] | PromptFuture[Reply]
    ) -> None:
        if not pipelined:
            self._exclusive = False
        if future.cancelled():  # given up; earlier requests are still answered
            self._answer(place, None)
            self.end(lingers=True)
            return
        error = future.exception()
        if error is not None:
            self._give_back(place)
            if isinstance(error, MainstemError):
                self._fail(error)
            else:
                self._report_fault(error)
                self.abort()
            return
        reply = future.result()
        self._answer(place, reply)
        if type(reply) is LastReply:
            self.end(lingers=True)
        if not self._dead and not self._flush_due:  # flushing goes on with the next request
            self._advance()

    def _burst_replied(self, place: ResponsePlace, burst: Burst) -> None:
        try:
            reply = burst.result()
        except BaseException:
            self._replied(place, True, burst)
            return
        self._answer(place, reply)
        if self._flush_due or self._dead:
            return
        if self._buffer.unread or self._ending or self._eof or not self._reading:  # what a reply may have held back
            self._advance()

    def _answer(self, place: ResponsePlace, reply: Reply) -> None:
        if place.request_bytes:
            self._give_back(place)
        if self._dead:
            return
        responses = self._responses
        only = responses.take_only(place, reply) if self._writable and not self._buffer.unread else None
        if only is not None:
            assert self._transport is not None
            self._shared.counters.bytes_out += len(only)
            self._credit.given += len(only)
            self._transport.write(only)
            return
        responses.answer(place, reply)
        if responses.bytes_unsent - self.held_bytes > RECOUNT_BYTES:
            self.recount()
        if not responses.sendable or self._flush_due:
            return
        if responses.in_flight or self._buffer.unread:
            self._flush_due = True
            self._host.flush_soon(self)
        else:
            self._write_out()

    def _give_back(self, place: ResponsePlace) -> None:
        self._shared.budget.give(self.account, place.request_bytes)
        place.request_bytes = 0

    def _may_hold(self, size_bytes: int) -> bool:
        if self._shared.budget.may_keep(self.account, size_bytes):
            return True
        self._wait_for_budget(size_bytes, decoded=True)
        return False

    def _wait_for_budget(self, size_bytes: int, *, decoded: bool) -> None:
        if not self._waiting_for_budget:
            self._waiting_for_budget = True
            # by way of the loop: connections that wake each other directly would nest without bound
            soon = asyncio.get_running_loop().call_soon
            self._host.wait_for_budget(self, size_bytes, lambda: soon(self._budget_available), decoded=decoded)

    def _budget_available(self) -> None:
        self._waiting_for_budget = False
        self._half_read_since = None
        self.active_at = self._shared.clock.monotonic()
        if not self._dead:
            self._advance()

    def _wait_for_room(self) -> bool:
        """Whether the next frame has to wait for room in the store: then the server tells the connection its
        turn."""
        if not self._waiting_for_room:
            buffer = self._buffer
            if not self.dispatcher.brings_batches(*buffer.whole()):
                return False
            if self._host.lets_past(self, buffer.unread, complete=buffer.has_frame):
                return False
            self._waiting_for_room = True
            self._host.wait_for_room(self)
        return True

    def room_available(self, light: bool = False) -> int:
        """It is this connection's turn to dispatch a request that brings batches, as one of a `light` sharer
        (`ports.Dispatcher.has_room`). Returns the bytes of what it dispatched."""
        self._waiting_for_room = False
        before = self._buffer.unread
        if not self._dead:
            self._advance(its_turn=True, light=light)
        return max(0, before - self._buffer.unread)

    def _pause_reading(self) -> None:
        if self._reading and not self._dead:
            self._reading = False
            assert self._transport is not None
            self._transport.pause_reading()

    def _close_when_done(self) -> None:
        if self._responses.idle and not self._dead:
            assert self._transport is not None
            if self._lingers and not self._eof:
                self._give_up()
                Lingering.take_over(self._transport, self)
            else:
                self._transport.close()  # which sends what it still holds first

    def _fail(self, error: MainstemError) -> None:
        """The connection cannot go on: it ends without waiting for replies in flight."""
        if self._dead:
            return
        self._report(error)
        self._give_up()
        assert self._transport is not None
        self._transport.close()

    def _report(self, error: MainstemError) -> None:
        where = str(Address(self.session.host, self.session.port))
        self._shared.refusals.report(logging.WARNING, f"closing connection {where}: {error}")
        self._shared.counters.failures += 1

    def _report_fault(self, error: BaseException) -> None:
        where = str(Address(self.session.host, self.session.port))
        text = f"closing connection {where}: a request failed unexpectedly"
        self._shared.faults.report(logging.ERROR, text, error)
        self._shared.counters.failures += 1

    def _give_up(self) -> None:
        self._dead = self._ending = True
        self._responses.abandon()

    def _transport_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0
