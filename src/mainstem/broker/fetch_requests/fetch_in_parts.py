"""Fetch requests of more partitions than one plan of reads holds."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, cast

from mainstem.broker.broker import Broker
from mainstem.broker.errors import UnanswerableRequest, UnreadableRequest
from mainstem.broker.fetch_requests.answers import API_KEY, CODES, SESSIONS_FROM, bytes_max_of, charged, failed
from mainstem.broker.fetch_requests.pending_fetch import PART_ENTRIES, PendingFetch
from mainstem.broker.fetching.fetch_sessions import NO_SESSION
from mainstem.broker.request_context import RequestContext
from mainstem.broker.started import EncodedFrame
from mainstem.kernel import FetchPlan, FetchScan, MalformedFetch, scan_fetch, scan_more
from mainstem.model import Buffer
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.headers import response_frame
from mainstem.protocol.messages.fetch import FetchResponse


class FetchInParts:
    """A request of more partitions than one plan holds: each part has a plan while it is read, and leaves its topics of
    the response. Such a request is looked at twice, at once and when its time is over, since to watch a million queues
    costs more than to look at them again."""

    def __init__(self, broker: Broker, call: RequestContext, body: memoryview | bytes) -> None:
        self._broker = broker
        self._call = call
        self._body = memoryview(body)
        self._scan = scan_fetch(self._body, 0, call.version, 1)
        """For the fields of the request; its plan has nothing but the first entry."""
        self._bytes_max = bytes_max_of(broker, self._scan.max_bytes, call)
        self._made = _Parts()
        self._held_bytes = 0

    async def go(self) -> EncodedFrame:
        wait_ms = max(0, min(self._scan.max_wait_ms, self._broker.config.fetch_wait_ms_max))
        deadline = self._broker.clock.monotonic() + wait_ms / 1000
        try:
            await self._look()
            remaining = deadline - self._broker.clock.monotonic()
            if self._made.found < self._bytes_min and not self._made.final and remaining > 0:
                self._start_over()
                over = self._broker.store.wait({}, 1, remaining)  # or when all readers are told to look again
                try:
                    await over
                finally:
                    over.cancel()
                await self._look()
            return self._answer()
        except MalformedFetch as error:
            raise UnreadableRequest(f"Fetch v{self._call.version} is malformed: {error}") from None
        except Exception as error:
            if self._call.version < SESSIONS_FROM:  # which has no error of its own
                self._broker.faults.report(logging.ERROR, "Fetch failed unexpectedly", error)
                raise UnanswerableRequest("Fetch failed, and its response has no room for an error") from error
            return failed(self._broker, self._scan, self._call, error)
        finally:
            self._hold(0)

    @property
    def _bytes_min(self) -> int:
        return min(self._scan.min_bytes, self._bytes_max, self._made.wanted)

    async def _look(self) -> None:
        """Read all parts, each from what is left of the response's bytes."""
        broker, version, made = self._broker, self._call.version, self._made
        before: FetchScan | None = None
        at = 0
        while before is None or before.rest is not None:
            await broker.turns.take()
            if before is None:
                part = scan_fetch(self._body, 0, version, PART_ENTRIES)
            else:
                part = scan_more(self._body, at, version, before, PART_ENTRIES)
            before, at = part, 0 if part.rest is None else part.rest.position
            # what needs a disk beyond its bound would be asked for one by one
            bytes_max = self._bytes_max if made.found < broker.config.fetch_disk_bytes_max else made.found
            fetch = PendingFetch(
                broker, self._call, part, part.plan, None,
                incremental=False, bytes_max=bytes_max, found_before=made.found,
            )  # fmt: skip
            made.add(part.plan, *await fetch.read_part())
            self._hold(made.bytes)

    def _start_over(self) -> None:
        self._made = _Parts()
        self._hold(0)

    def _answer(self) -> EncodedFrame:
        made, call = self._made, self._call
        topics = cast("tuple[Any, ...]", EncodedArray(made.topics, made.buffers))
        throttle_ms = charged(self._broker, call, made.found)
        response = FetchResponse(throttle_time_ms=throttle_ms, error_code=0, session_id=NO_SESSION, responses=topics)
        parts = codec.write_parts(response, call.version)
        return EncodedFrame(response_frame(call.correlation_id, API_KEY, call.version, parts), made.errors)

    def _hold(self, size_bytes: int) -> None:
        """Charge for the parts of the response made so far, until its sender does."""
        self._broker.response_room.change(size_bytes - self._held_bytes)
        self._held_bytes = size_bytes


class _Parts:
    """The part of a response that the reads so far have made."""

    def __init__(self) -> None:
        self.topics = 0
        self.buffers: list[Buffer] = []
        self.bytes = 0
        """Of the buffers."""
        self.found = 0
        """Bytes of batches."""
        self.wanted = 0
        """Most bytes that the partitions' own limits let through."""
        self.final = False
        """Waiting cannot make the answer better."""
        self.errors: Counter[int] = Counter()

    def add(self, plan: FetchPlan, topics: int, buffers: list[Buffer]) -> None:
        self.topics += topics
        self.buffers += buffers
        self.bytes += sum(map(len, buffers))
        self.found = plan.bytes
        self.wanted += plan.wanted_bytes
        self.final = self.final or (plan.final and len(plan) > 0)
        self.errors.update(plan.errors(CODES))
