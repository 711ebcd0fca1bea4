"""Bursts: the Produce requests that came on a connection together, taken as one.

Most clients send a partition per request and several requests ahead, so that a read from a socket brings some of them
at once. The kernel scans all of them in one call, the store appends their batches in another, and a third encodes the
answers, which leave together as soon as the last of their blocks is safe: what is paid per request is paid per burst.
What is out of the ordinary goes the way of all requests, one by one (`dispatcher.py`): scanning stops in front of it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence

from mainstem.broker.broker import Broker
from mainstem.broker.errors import UnanswerableRequest
from mainstem.broker.handlers import produce
from mainstem.broker.latency import ApiLatency
from mainstem.errors import MainstemError
from mainstem.kernel import ProduceScan, scan_burst
from mainstem.model import AppendResult, Buffer
from mainstem.ports import Burst, Reply
from mainstem.prompt_future import PromptFuture

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct(">i")


class ProduceBursts:
    def __init__(self, broker: Broker, latency: ApiLatency) -> None:
        self._broker = broker
        self._monotonic = broker.clock.monotonic
        self._now_ms = broker.judged_ms
        self._by_name = broker.produce_topics.by_name
        self._by_id = broker.produce_topics.by_id
        self._latency = latency

    def dispatch(
        self, frames: memoryview, start: int, stop: int, requests_max: int, frame_bytes_max: int
    ) -> Burst | None:
        """See `ports.Dispatcher.dispatch_burst`."""
        scan = scan_burst(
            frames, start, stop, requests_max, frame_bytes_max, self._by_name, self._by_id, self._now_ms()
        )
        if scan is None:
            return None
        if not produce.keys_checked(self._broker, scan, inflate=False):
            scan.release()
            return None
        started_at = self._monotonic()
        burst = ProduceBurst(self, scan, started_at)
        future = produce.append(self._broker, scan)
        burst.last = produce.ends_pipeline(future, scan)
        if future is None:
            burst.set_result(self.finish(scan, [], started_at))
        else:
            future.add_done_callback(burst.go_on)
        return burst

    def finish(
        self, scan: ProduceScan, results: list[AppendResult] | ProduceScan, started_at: float
    ) -> Reply:
        """Make the responses of what the store came back with. Raises UnanswerableRequest, which closes the
        connection."""
        errors = produce.settled_errors(scan, results)
        self._latency.observe(self._monotonic() - started_at, errors, scan.request_count)
        if scan.acks == 0:
            return None
        responses = scan.responses(produce.ERRORS)
        if errors and produce.NOT_LEADER in errors:
            return self._redirected(scan, responses, errors)
        return [responses]

    def _redirected(self, scan: ProduceScan, responses: bytes, errors: Sequence[int]) -> Reply:
        """Each response by itself, with other leaders named where it needs them."""
        frames = memoryview(responses)
        redirected: list[Buffer] = []
        while frames:
            (length,) = _LENGTH.unpack_from(frames)
            frame, frames = frames[: _LENGTH.size + length], frames[_LENGTH.size + length :]
            redirected += produce.redirected_where_needed(self._broker, scan, [frame], errors)
        return redirected


class ProduceBurst(Burst):
    """One that waits for the store."""

    __slots__ = ("_bursts", "_scan", "_started_at")

    def __init__(self, bursts: ProduceBursts, scan: ProduceScan, started_at: float) -> None:
        super().__init__(scan.request_count, scan.bytes_taken)
        self._bursts = bursts
        self._scan = scan
        self._started_at = started_at

    def go_on(self, pending: PromptFuture[list[AppendResult]]) -> None:
        """The store has settled its future."""
        try:
            responses = self._bursts.finish(self._scan, pending.result(), self._started_at)
        except asyncio.CancelledError:
            self.cancel()
        except MainstemError as error:
            self.set_exception(error)
        except Exception as error:
            logger.error("Produce v%d failed unexpectedly", self._scan.version, exc_info=error)
            self.set_exception(UnanswerableRequest("Produce failed, and its response has no room for an error"))
        else:
            self.set_result(responses)
