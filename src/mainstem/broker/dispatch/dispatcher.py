"""Makes response frames of request frames: header, route, decoding, handler, encoding.

A frame is only borrowed during `dispatch`, so the request is decoded before it returns. Handlers run in three
ways:

* Produce begins within `dispatch`, and a callback on the store's future finishes it. It is pipelined: the
  connection goes on dispatching meanwhile.
* Fetch is answered within `dispatch` where memory has enough for it, waits without a task where there is not enough
  yet, and goes on as a task where a disk has to be read.
* Every other handler runs as a task of the dispatcher's TaskGroup, one at a time per connection. (Driving a
  coroutine's first step without a task would save some microseconds of rare requests, and break handlers
  that use timeouts, which need one.)

The dispatcher decodes a long request, and encodes its response, in slices of a millisecond, in turns with all other
long work (`Turns`): so no request holds the event loop for long, however many of them come at once. It asks for the
memory of the decoded form before, and frees its objects in slices, too.

A request that cannot be read, or whose API or version is not served, ends its connection, as in Kafka; a new
client's ApiVersions is answered in version 0 instead. A handler's unexpected exception is logged, with its
traceback, at a rate that a person can read, and answered with UNKNOWN_SERVER_ERROR.

A client that asks a node cut off from the cluster where to go gets the best answer the node has, and the connection
ends: clients ask where they are connected, librdkafka nowhere else while the connection lasts, and would never hear
of the leaders that the rest of the cluster has elected.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any
from zlib import crc32

from mainstem.acted_for import handled_for
from mainstem.broker.broker import Broker
from mainstem.broker.dispatch.audited import AUDITED, audited
from mainstem.broker.dispatch.failures import failure_response
from mainstem.broker.dispatch.gate import Gate, last
from mainstem.broker.dispatch.guard import guarded
from mainstem.broker.dispatch.latency import NONE, ApiLatency
from mainstem.broker.dispatch.produce_bursts import ProduceBursts
from mainstem.broker.dispatch.routes import ROUTES, Route, advertised
from mainstem.broker.dispatch.timed import charged
from mainstem.broker.errors import BrokerError, UnanswerableRequest, UnreadableRequest, UnsupportedRequest
from mainstem.broker.handlers import api_versions
from mainstem.broker.request_context import RequestContext
from mainstem.broker.share_serving.share_requests import end_sessions_of
from mainstem.broker.started import EncodedFrame, Later, Started, Waiting
from mainstem.errors import MainstemError
from mainstem.kernel.errors import KernelError
from mainstem.model import HistogramSample, Sample
from mainstem.ports import Burst, Exchange, Intake, LastReply, Reply, Session, always
from mainstem.prompt_future import PromptFuture
from mainstem.protocol import codec
from mainstem.protocol.decoded_memory import decoded_bytes_max, let_go_in_slices
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.headers import (
    API_VERSIONS_KEY,
    RequestHeader,
    is_unsupported_api_versions,
    parse_header,
    response_frame,
)
from mainstem.security.audit.config import ADMIN

PRODUCE_KEY = 0

_KEY = struct.Struct(">ih")
"""A frame's length, and the API it is for."""

DECODED_AT_ONCE_BYTES = 4 * 1024
"""A longer request is decoded in slices. Made of the smallest elements, a request of this size has two
thousand of them: some milliseconds."""

SHARED_BACKLOG_PART = 1 / 64
"""Of the batches that may wait in the store, while clients take turns: 1 MiB by default, which a disk takes in
some milliseconds: a request of the largest usual size, or many small ones. A client that brings little waits behind
it."""

CLIENT_PARTS = 256
"""Into which the clients of an address are parted by their client ids, where they take turns: a client is seldom in the
part of another one, and an address has no more than so many shares however many names its clients make up."""

UNASKED_BYTES_MAX = 256 * 1024
"""A request that takes no more memory than this when decoded asks for none, as one that is decoded at once: a
client that asks for little is served whatever other clients hold."""

REQUEST_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of a request that is copied to be decoded later: ten milliseconds. The largest useful request, a
quarter of a million names, has fewer; Produce and Fetch are read in place, and bounded by the server
alone."""


class BrokerDispatcher:
    """Implements `ports.Dispatcher` over a broker. Use it as an async context manager: leaving it cancels the
    handlers that still run and waits for their end."""

    def __init__(self, broker: Broker, routes: Iterable[Route] = ROUTES, *, intake: Intake | None = None) -> None:
        """Without an `intake` there is always room."""
        self._broker = broker
        self._intake = intake
        self._monotonic = broker.clock.monotonic
        self._gate = Gate(broker)
        self._throttling = throttling = broker.throttling
        self.shared: Callable[[], bool] = throttling.floods.takes_turns if throttling is not None else lambda: False
        """See `ports.Dispatcher`."""
        served = routes if broker.authorizer is None else guarded(routes)
        self._routes = {route.api.api_key: route for route in served}
        self._latencies = {key: ApiLatency(route.api.name) for key, route in self._routes.items()}
        started = PRODUCE_KEY in self._routes and self._routes[PRODUCE_KEY].start is not None
        produce = self._latencies[PRODUCE_KEY] if started else None
        self.dispatch_burst: Callable[[memoryview, int, int, int, int, Session], Burst | None] = (
            ProduceBursts(broker, produce, self._gate).dispatch if produce is not None else lambda *_: None
        )
        """See `ports.Dispatcher`."""
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._ended = False
        self._abandonable: dict[int, asyncio.Task[None] | PromptFuture[None]] = {}
        """The read of each connection that may be cancelled with it, by connection id: its task, or the
        future it waits for."""

    async def __aenter__(self) -> BrokerDispatcher:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended = True
        for waiting in [*self._running, *self._abandonable.values()]:
            waiting.cancel()
        # the body's error is not the TaskGroup's: it goes on as it is, not in an ExceptionGroup
        await self._tasks.__aexit__(None, None, None)

    def dispatch(
        self, frame: memoryview, session: Session, may_hold: Callable[[int], bool] = always
    ) -> Exchange | None:
        """Implements `ports.Dispatcher`. Raises a BrokerError when the connection must be closed."""
        started_at = self._monotonic()
        if session.gated and self._gate.takes_raw(session):
            return Exchange(self._answer_raw(session, bytes(frame)))
        try:
            header, position = parse_header(frame)
        except ProtocolError as error:
            raise UnreadableRequest(f"bytes that are no request: {error}") from None
        if session.gated:
            self._gate.check(session, header.api_key)
        if not session.client_part:
            session.client_part = 1 + crc32((header.client_id or "").encode()) % CLIENT_PARTS
        route = self._routes.get(header.api_key)
        if route is None or not route.api.version_min <= header.api_version <= route.api.version_max:
            return self._unsupported(header, route)
        call = RequestContext(header.api_version, header.client_id, session, header.correlation_id)
        try:
            if route.start is not None:
                exchange = self._start(route, frame, position, call, header, started_at)
                self._charge_time(call, started_at)
                return exchange
            if route.begin is not None:
                holds = route.held_bytes(len(frame) - position)
                if holds > UNASKED_BYTES_MAX and not may_hold(holds):
                    return None
                reply = self._begin(route, frame, position, call, header, started_at)
                self._charge_time(call, started_at)
                return Exchange(reply, holds=holds)
            # Bytes behind the request are ignored, as Kafka does: librdkafka leaves three of them behind every
            # Metadata request (9+) for all topics.
            if len(frame) - position > DECODED_AT_ONCE_BYTES:
                return self._decode_later(route, frame, position, call, header, started_at, may_hold)
            request, _ = codec.read_prefix(route.api.request, header.api_version, frame, position)
        except (ProtocolError, KernelError) as error:
            raise UnreadableRequest(f"{_name(route, header)} is malformed: {error}") from None
        assert route.handle is not None
        handle = partial(route.handle, self._broker, request, call)
        last = route.shows_the_way and self._broker.cut_off
        later = self._handle_later(route, handle, call, header, started_at, asked=_Asked(request))
        return Exchange(later, last=last)

    def has_room(self, light: bool = False) -> bool:
        """Implements `ports.Dispatcher`. Clients that share the store wait in their sockets, where they take turns:
        what is in the store waits in one line for its disk. A light one does not wait until what others have
        brought there is written."""
        if self._intake is None:
            return True
        part = SHARED_BACKLOG_PART if not light and self.shared() else 1.0
        return self._intake.has_room(part)

    def brings_batches(self, frames: memoryview, start: int, stop: int) -> bool:
        """Implements `ports.Dispatcher`."""
        return stop - start >= _KEY.size and _KEY.unpack_from(frames, start)[1] == PRODUCE_KEY

    def tell_of_room(self, told: Callable[[], object]) -> None:
        """Implements `ports.Dispatcher`."""
        assert self._intake is not None, "there is always room"
        self._intake.tell_of_room(told)

    def may_connect(self, host: str) -> bool:
        """Whether an address may make one more connection now."""
        return self._throttling is None or self._throttling.may_connect(host)

    def disconnected(self, session: Session) -> None:
        waiting = self._abandonable.pop(session.connection_id, None)
        if waiting is not None:
            waiting.cancel()
        left = self._broker.shares.sessions.left_by(session.connection_id)
        if left and not self._ended:
            task = self._tasks.create_task(end_sessions_of(self._broker, left))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def samples(self) -> Iterable[Sample | HistogramSample]:
        for latency in self._latencies.values():
            if any(latency.counts):
                yield from latency.samples()
        if self._throttling is not None:
            yield from self._throttling.samples()
        if self._broker.audit is not None:
            yield from self._broker.audit.samples()
        yield from self._broker.telemetry.samples()
        authenticator = self._broker.authenticator
        if authenticator is not None:
            for outcome, count in (("accepted", authenticator.accepted), ("failed", authenticator.failed)):
                labels = (("outcome", outcome),)
                yield Sample("mainstem_authentications_total", "counter", "Clients asked who they are.", count, labels)
        sessions = self._broker.fetch_sessions
        yield Sample("mainstem_fetch_sessions", "gauge", "Incremental fetch sessions.", len(sessions))
        yield Sample("mainstem_fetch_session_partitions", "gauge", "Partitions they follow.", sessions.partitions_held)
        yield Sample("mainstem_fetch_session_evictions_total", "counter", "Sessions pushed out.", sessions.evictions)

    # requests that may be answered, wait, or need a task

    def _start(
        self,
        route: Route,
        frame: memoryview,
        position: int,
        call: RequestContext,
        header: RequestHeader,
        started_at: float,
    ) -> Exchange:
        assert route.start is not None
        try:
            started = route.start(self._broker, frame, position, call)
        except MainstemError:
            raise
        except Exception as error:
            request, _ = codec.read_prefix(route.api.request, header.api_version, frame, position)
            return Exchange(self._failed(route, header, error, started_at, request))
        if callable(started):
            later = self._handle_later(route, started, call, header, started_at)
            return Exchange(later, holds=len(frame) - position)
        reply = self._finish_later(started, route, header, started_at)
        return Exchange(reply, pipelined=True, last=started.last, holds=started.holds)

    def _begin(
        self,
        route: Route,
        frame: memoryview,
        position: int,
        call: RequestContext,
        header: RequestHeader,
        started_at: float,
    ) -> asyncio.Future[Reply] | PromptFuture[Reply] | Reply:
        assert route.begin is not None
        try:
            step = route.begin(self._broker, frame, position, call)
            if isinstance(step, EncodedFrame):
                return self._encode(route, header, step, started_at)
        except MainstemError:
            raise
        except Exception as error:
            return self._failed(route, header, error, started_at)
        if not isinstance(step, Waiting):
            return self._handle_later(route, step, call, header, started_at)
        reply: PromptFuture[Reply] = PromptFuture()
        self._wait(step, reply, route, call, header, started_at)
        return reply

    def _wait(
        self,
        waiting: Waiting[Any],
        reply: PromptFuture[Reply],
        route: Route,
        call: RequestContext,
        header: RequestHeader,
        started_at: float,
    ) -> None:
        """Go on with a request when the future it waits for is done. Cancelling its reply cancels the
        wait."""
        connection_id = call.session.connection_id

        def go_on(future: PromptFuture[None]) -> None:
            if self._abandonable.get(connection_id) is future:
                del self._abandonable[connection_id]
            if future.cancelled():
                reply.cancel()
                return
            try:
                try:
                    step = waiting.again()
                    if isinstance(step, Waiting):
                        self._wait(step, reply, route, call, header, started_at)
                        return
                    if not isinstance(step, EncodedFrame):
                        self._handle_later(route, step, call, header, started_at, reply)
                        return
                    frame = self._encode(route, header, step, started_at)
                except Exception as error:
                    frame = self._failed(route, header, error, started_at)
            except BrokerError as error:
                reply.set_exception(error)
            else:
                reply.set_result(frame)

        if route.abandoned_with_peer:
            self._abandonable[connection_id] = waiting.future
        waiting.future.add_done_callback(go_on)

    # requests with a task of their own

    def _handle_later(
        self,
        route: Route,
        handle: Later[Any],
        call: RequestContext,
        header: RequestHeader,
        started_at: float,
        reply: asyncio.Future[Reply] | PromptFuture[Reply] | None = None,
        asked: _Asked | None = None,
    ) -> asyncio.Future[Reply] | PromptFuture[Reply]:
        if reply is None:
            reply = asyncio.get_running_loop().create_future()
        asked = asked or _Asked()
        audit = self._broker.audit
        if audit is not None and header.api_key in AUDITED and audit.wants(ADMIN):
            handle = partial(audited, handle, audit, (header.api_key, route.api.name), call, lambda: asked.request)
        if self._throttling is not None and self._throttling.active:
            handle = partial(charged, handle, self._throttling, call, self._monotonic)
        if self._broker.forwarded is not None and header.api_key in AUDITED:
            handle = partial(handled_for, handle, self._broker.forwarded(call.session))
        task = self._tasks.create_task(self._handle(route, handle, header, started_at, reply, asked))
        self._running.add(task)
        if route.abandoned_with_peer:
            self._abandonable[call.session.connection_id] = task
        task.add_done_callback(lambda task: self._handled(task, call.session, reply))
        return reply

    def _charge_time(self, call: RequestContext, started_at: float) -> None:
        """Charge for the time of a request that began in its dispatch; its client is told with its next answer."""
        if self._throttling is not None and self._throttling.active:
            self._throttling.took(call.session, call.client_id, self._monotonic() - started_at)

    def _decode_later(
        self,
        route: Route,
        frame: memoryview,
        position: int,
        call: RequestContext,
        header: RequestHeader,
        started_at: float,
        may_hold: Callable[[int], bool],
    ) -> Exchange | None:
        """Decode a long request in its task. None: there is no memory for it now. Raises UnreadableRequest
        for a request that is too long."""
        size = len(frame) - position
        if size > REQUEST_BYTES_MAX:
            raise UnreadableRequest(
                f"{_name(route, header)} has {size} bytes; of this API {REQUEST_BYTES_MAX} are taken"
            )
        holds = size if route.charged_by_handler else decoded_bytes_max(route.api.request, header.api_version, size)
        if holds > UNASKED_BYTES_MAX and not may_hold(holds):
            return None
        asked = _Asked()
        handle = partial(self._decode, route, bytes(frame[position:]), call, header, asked)
        last = route.shows_the_way and self._broker.cut_off
        later = self._handle_later(route, handle, call, header, started_at, asked=asked)
        return Exchange(later, last=last, holds=holds)

    async def _decode(
        self, route: Route, body: bytes, call: RequestContext, header: RequestHeader, asked: _Asked
    ) -> Any:
        try:
            request, _ = await self._broker.turns.run(codec.read_in_slices(route.api.request, header.api_version, body))
        except ProtocolError as error:
            raise UnreadableRequest(f"{_name(route, header)} is malformed: {error}") from None
        del body  # the handler may take long
        asked.request = request
        assert route.handle is not None
        return await route.handle(self._broker, request, call)

    def _handled(
        self, task: asyncio.Task[None], session: Session, reply: asyncio.Future[Reply] | PromptFuture[Reply]
    ) -> None:
        self._running.discard(task)
        # the connection may have begun its next read already
        if self._abandonable.get(session.connection_id) is task:
            del self._abandonable[session.connection_id]
        if not reply.done():  # cancelled, perhaps before it began
            reply.cancel()

    async def _handle(
        self,
        route: Route,
        handle: Later[Any],
        header: RequestHeader,
        started_at: float,
        reply: asyncio.Future[Reply] | PromptFuture[Reply],
        asked: _Asked,
    ) -> None:
        """Raises nothing but CancelledError: a failure must not take down the TaskGroup's other tasks."""
        response: Any = None
        try:
            try:
                work = handle()
                del handle  # and with it the bytes of a long request, once they are decoded
                response = await work
                frame = await self._encode_in_turns(route, header, response, started_at)
            except BrokerError:
                raise
            except Exception as error:
                frame = self._failed(route, header, error, started_at, asked.request)
        except BrokerError as error:
            reply.set_exception(error)
        else:
            reply.set_result(frame)
            del frame
        # small objects are gone at once; the reply does not wait for the large ones
        messages = [asked.request, response]
        asked.request = response = None
        await self._broker.turns.run(let_go_in_slices(messages))

    def _answer_raw(self, session: Session, token: bytes) -> asyncio.Future[Reply]:
        """The answer to a token that comes without a request around it."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        async def answer() -> None:
            try:
                reply.set_result(await self._gate.answer_raw(session, token))
            except BrokerError as error:
                reply.set_exception(error)

        task = self._tasks.create_task(answer())
        self._running.add(task)
        task.add_done_callback(lambda task: self._handled(task, session, reply))
        return reply

    # requests begun during dispatch

    def _finish_later(
        self, started: Started[Any], route: Route, header: RequestHeader, started_at: float
    ) -> PromptFuture[Reply] | Reply:
        pending = started.future
        if pending is None or (pending.done() and not pending.cancelled()):
            return self._finish(started, route, header, started_at)
        reply = _StartedReply(partial(self._finish, started, route, header, started_at))
        pending.add_done_callback(reply.go_on)
        return reply

    def _finish(self, started: Started[Any], route: Route, header: RequestHeader, started_at: float) -> Reply:
        """The response to settled appends. Raises UnanswerableRequest, which closes the connection."""
        try:
            return self._encode(route, header, started.finish(), started_at)
        except BrokerError:
            raise
        except Exception as error:
            self._report(_name(route, header), error)
            return self._encode(route, header, started.fail(), started_at)

    # responses

    def _encode(self, route: Route, header: RequestHeader, response: Any, started_at: float) -> Reply:
        seconds = self._monotonic() - started_at
        if response is None:
            self._latencies[header.api_key].observe(seconds)
            return None
        if isinstance(response, EncodedFrame):
            self._latencies[header.api_key].observe(seconds, response.errors)
            return LastReply(response.buffers) if response.last else response.buffers
        self._latencies[header.api_key].observe(seconds, _top_level_error(response))
        parts = codec.write_parts(response, header.api_version)
        return response_frame(header.correlation_id, header.api_key, header.api_version, parts)

    async def _encode_in_turns(self, route: Route, header: RequestHeader, response: Any, started_at: float) -> Reply:
        if response is None or isinstance(response, EncodedFrame):
            return self._encode(route, header, response, started_at)
        self._latencies[header.api_key].observe(self._monotonic() - started_at, _top_level_error(response))
        parts = await self._broker.turns.run(codec.write_in_slices(response, header.api_version))
        frame = response_frame(header.correlation_id, header.api_key, header.api_version, parts)
        return last(frame) if route.error_ends_connection and _top_level_error(response) else frame

    def _failed(
        self, route: Route, header: RequestHeader, error: Exception, started_at: float, request: Any = None
    ) -> Reply:
        """The answer to a request whose handler raised. Raises UnanswerableRequest if there is none."""
        name = _name(route, header)
        self._report(name, error)
        response = failure_response(route.api.response, header.api_version, request)
        if response is None:
            raise UnanswerableRequest(f"{name} failed, and its response has no room for an error")
        return self._encode(route, header, response, started_at)

    def _report(self, name: str, error: BaseException) -> None:
        self._broker.faults.report(logging.ERROR, f"{name} failed unexpectedly", error)

    def _unsupported(self, header: RequestHeader, route: Route | None) -> Exchange:
        if is_unsupported_api_versions(header):
            response = api_versions.served(ErrorCode.UNSUPPORTED_VERSION, advertised())
            parts = codec.write_parts(response, 0)
            return Exchange(response_frame(header.correlation_id, API_VERSIONS_KEY, 0, parts))
        asked = f"client {header.client_id!r} asked for API {header.api_key} version {header.api_version}"
        if route is None:
            raise UnsupportedRequest(f"{asked}, which is not served")
        served = f"{route.api.version_min} to {route.api.version_max}"
        raise UnsupportedRequest(f"{asked}; of {route.api.name} versions {served} are served")


class _Asked:
    """Holds the request of a task: the answer to a failure is made from the items it asked for."""

    __slots__ = ("request",)

    def __init__(self, request: Any = None) -> None:
        self.request = request
        """None until it is decoded."""


class _StartedReply(PromptFuture[Reply]):
    """The reply to a request that was begun during its dispatch and waits for the store."""

    __slots__ = ("_finish",)

    def __init__(self, finish: Callable[[], Reply]) -> None:
        """`finish`: makes the reply, once the store has answered."""
        super().__init__()
        self._finish = finish

    def go_on(self, pending: PromptFuture[Any]) -> None:
        """The awaited future is settled."""
        if self.done():
            return
        if pending.cancelled():
            self.cancel()
            return
        try:
            frame = self._finish()
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(frame)


def _top_level_error(response: Any) -> Mapping[int, int]:
    error = getattr(response, "error_code", 0)
    return {error: 1} if error else NONE


def _name(route: Route, header: RequestHeader) -> str:
    return f"{route.api.name} v{header.api_version} of client {header.client_id!r}"
