"""Bursts: Produce requests that arrived together on a connection, handled as one.

Most clients send a partition per request and several requests ahead, so that a read from a socket brings some of them
at once. The kernel scans all of them in one call, the store appends their batches in another, and a third encodes the
answers, which leave together as soon as the last of their blocks is safe: costs per request become costs per burst.
Unusual requests take the common way, one by one (`dispatcher.py`): the scan stops in front of them.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Mapping

from mainstem.broker.broker import Broker
from mainstem.broker.dispatch.gate import Gate
from mainstem.broker.dispatch.latency import ApiLatency
from mainstem.broker.errors import BrokerError
from mainstem.broker.handlers import produce
from mainstem.kernel import ProduceScan, Verdict, scan_burst
from mainstem.model import AppendResult, Buffer
from mainstem.ports import Burst, Reply, Session
from mainstem.prompt_future import PromptFuture

_LENGTH = struct.Struct(">i")
_STRING_LENGTH = struct.Struct(">h")
_CLIENT_ID_AT = 12
"""Behind a frame's length, the API and its version, and the correlation id: in all versions that the scan takes."""


class ProduceBursts:
    def __init__(self, broker: Broker, latency: ApiLatency, gate: Gate) -> None:
        self._broker = broker
        self._monotonic = broker.clock.monotonic
        self._now_ms = broker.judged_ms
        self._by_name = broker.produce_topics.by_name
        self._by_id = broker.produce_topics.by_id
        self._latency = latency
        self._authorized = broker.authorizer is not None
        self._gate = gate
        self._throttling = throttling = broker.throttling
        self._note = throttling.floods.note if throttling is not None else None

    def dispatch(
        self,
        frames: memoryview,
        start: int,
        stop: int,
        requests_max: int,
        frame_bytes_max: int,
        session: Session,
    ) -> Burst | None:
        """Implements `ports.Dispatcher.dispatch_burst`."""
        if session.gated and not self._gate.passes(session):
            return None
        by_name, by_id = self._by_name, self._by_id
        if self._authorized:
            topics = produce.topics_of(self._broker, session)
            by_name, by_id = topics.by_name, topics.by_id
        scan = scan_burst(frames, start, stop, requests_max, frame_bytes_max, by_name, by_id, self._now_ms())
        if scan is None:
            return None
        keyless = produce.keys_checked(self._broker, scan, inflate=False)
        if keyless is None or keyless:  # an answer that names records is written one by one
            scan.release()
            return None
        started_at = self._monotonic()
        burst = ProduceBurst(self, scan, started_at, session.listener)
        if self._note is not None:
            self._note(session.brought, scan.bytes_taken)
        throttling = self._throttling if self._throttling is not None and self._throttling.active else None
        shares = _shares(frames, start, scan.bytes_taken) if throttling is not None else {}
        for client_id, size_bytes in shares.items():
            assert throttling is not None
            burst.throttle_ms = max(burst.throttle_ms, throttling.produced(session, client_id, size_bytes))
        future = produce.append(self._broker, scan, session)
        burst.holds = produce.held_bytes(scan)
        if future is None:
            burst.set_result(self.finish(scan, None, started_at, session.listener, burst.throttle_ms))
        else:
            if future.done():
                burst.last = produce.ends_pipeline(future, scan)
            future.add_done_callback(burst.go_on)
        if throttling is not None:
            seconds = self._monotonic() - started_at
            for client_id, size_bytes in shares.items():
                throttling.took(session, client_id, seconds * size_bytes / scan.bytes_taken)
        return burst

    def finish(
        self,
        scan: ProduceScan,
        future: PromptFuture[list[AppendResult]] | None,
        started_at: float,
        listener: str,
        throttle_ms: int,
    ) -> Reply:
        """Make the responses from the store's result. Raises UnanswerableRequest, which closes the
        connection."""
        try:
            errors = produce.settled_errors(scan, future)
        except BrokerError:
            raise
        except Exception as error:
            self._broker.faults.report(logging.ERROR, f"Produce v{scan.version} failed unexpectedly", error)
            scan.fail(Verdict.FAILED)
            errors = produce.errors_of(scan)
        self._latency.observe(self._monotonic() - started_at, errors, scan.request_count)
        if scan.acks == 0:
            return None
        responses = scan.responses(produce.ERRORS, throttle_ms)
        if produce.names_leaders(scan, errors):
            return self._redirected(scan, responses, errors, listener)
        return [responses]

    def _redirected(self, scan: ProduceScan, responses: bytes, errors: Mapping[int, int], listener: str) -> Reply:
        """Write each response by itself, with the leaders named of partitions that other nodes lead."""
        frames = memoryview(responses)
        redirected: list[Buffer] = []
        while frames:
            (length,) = _LENGTH.unpack_from(frames)
            frame, frames = frames[: _LENGTH.size + length], frames[_LENGTH.size + length :]
            redirected += produce.redirected_where_needed(self._broker, scan, [frame], errors, listener)
        return redirected


def _shares(frames: memoryview, start: int, size_bytes: int) -> dict[str | None, int]:
    """The bytes of a burst by the client ids of its requests: nearly always one, but a connection may have many."""
    shares: dict[str | None, int] = {}
    position, stop = start, start + size_bytes
    last, name = b"", None
    while position < stop:
        (length,) = _LENGTH.unpack_from(frames, position)
        at = position + _CLIENT_ID_AT
        (characters,) = _STRING_LENGTH.unpack_from(frames, at)
        encoded = bytes(frames[at : at + _STRING_LENGTH.size + max(0, characters)])
        if encoded != last:
            last, name = encoded, encoded[_STRING_LENGTH.size :].decode() if characters >= 0 else None
        shares[name] = shares.get(name, 0) + _LENGTH.size + length
        position += _LENGTH.size + length
    return shares


class ProduceBurst(Burst):
    """A burst that waits for the store."""

    __slots__ = ("_bursts", "_listener", "_scan", "_started_at", "throttle_ms")

    def __init__(self, bursts: ProduceBursts, scan: ProduceScan, started_at: float, listener: str) -> None:
        super().__init__(scan.request_count, scan.bytes_taken)
        self._bursts = bursts
        self._scan = scan
        self._started_at = started_at
        self._listener = listener
        self.throttle_ms = 0
        """For how long the client is throttled."""

    def go_on(self, pending: PromptFuture[list[AppendResult]]) -> None:
        """The store has settled its future."""
        try:
            responses = self._bursts.finish(self._scan, pending, self._started_at, self._listener, self.throttle_ms)
        except asyncio.CancelledError:
            self.cancel()
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(responses)
