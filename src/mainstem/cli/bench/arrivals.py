"""The reading end of the latency measurement: a thread that takes each record when it comes, and what it saw.

A record carries a stamp: whose it is, which it is, and when it was due. The clock is this process's own, so that the
time from one end to the other needs no second clock to agree with it.
"""

from __future__ import annotations

import struct
import threading
from typing import Any, NamedTuple

from mainstem.cli.bench.latency_histogram import LatencyHistogram
from mainstem.cli.bench.tally import Clock
from mainstem.cli.clients import kafka_node

_LAYOUT = struct.Struct(">8sQQ")
STAMP_BYTES = _LAYOUT.size
RUN_BYTES = 8


class Stamp(NamedTuple):
    run: bytes
    """Eight random bytes: what others send to the topic is none of ours."""
    number: int
    due_ns: int

    def on(self, filling: bytes) -> bytes:
        """A record of the filling's length, at least `STAMP_BYTES`, that begins with this."""
        return _LAYOUT.pack(*self) + filling[STAMP_BYTES:]


def stamp_of(record: bytes | None) -> Stamp | None:
    """The stamp a record begins with, if it is long enough for one; whose it is, the caller has to see."""
    if record is None or len(record) < STAMP_BYTES:
        return None
    return Stamp(*_LAYOUT.unpack_from(record))


_POLL_SECONDS = 0.1
"""How long closing may take."""


class Arrivals:
    """Records of one run, each counted once. Its thread alone writes; `close` ends it."""

    def __init__(self, consumer: Any, run: bytes, records_max: int, *, clock: Clock) -> None:
        """`consumer` is assigned what it reads, and is closed by this."""
        self.latency = LatencyHistogram()
        self.repeated = 0
        """Records that came more than once: a client that repeats a request without idempotence makes them."""
        self.probes: set[int] = set()
        """Partitions whose probe came."""
        self.failure: str | None = None
        self._consumer = consumer
        self._run = run
        self._seen = bytearray(records_max // 8 + 1)
        """A bit per record."""
        self._clock = clock
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def received(self) -> int:
        return self.latency.count

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._consumer.close()

    def take(self, record: bytes | None, partition: int) -> None:
        """Count a record that was just read."""
        now_ns = self._clock()
        stamp = stamp_of(record)
        if stamp is None:
            return
        if stamp.run == probe_run(self._run):
            self.probes.add(partition)
        elif stamp.run == self._run and stamp.number < len(self._seen) * 8:
            place, bit = stamp.number >> 3, 1 << (stamp.number & 7)
            if self._seen[place] & bit:
                self.repeated += 1
            else:
                self._seen[place] |= bit
                self.latency.record(now_ns - stamp.due_ns)

    def _read(self) -> None:
        while not self._closing.is_set() and self.failure is None:
            message = self._consumer.poll(_POLL_SECONDS)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.take(message.value(), message.partition())
            elif not kafka_node.is_passing(error):
                self.failure = f"reading failed: {error.str()} ({error.name()})"


def probe_run(run: bytes) -> bytes:
    """The run that the records sent before the clock starts belong to."""
    return bytes(byte ^ 0xFF for byte in run)
