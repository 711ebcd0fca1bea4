"""Publishers at a steady rate, in a process of their own that notes when each record was due and how long its
acknowledgement took: `PacedLoad` starts it and reads what it noted.

The rate is open: a record that the cluster keeps waiting does not hold back the next one. librdkafka sends, idempotent,
without linger.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer

RECORD_BYTES = 1024
FAILED = -1.0
FLUSH_SECONDS_MAX = 130.0
"""Longer than librdkafka tries (`delivery.timeout.ms`): whatever becomes of a record, it is known then."""


class Sent(NamedTuple):
    """One record."""

    due: float
    """Seconds of the machine's monotonic clock."""
    seconds: float
    """Until it was acknowledged; `FAILED`: it was given up."""


class PacedLoad:
    """A running load."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: float, notes: Path) -> None:
        self._notes = notes
        command = [sys.executable, "-m", "bench.scale.paced_load", "--bootstrap", bootstrap, "--topic", topic]
        command += ["--partitions", str(partitions), "--rate", str(rate), "--notes", str(notes)]
        self._process = subprocess.Popen(command)

    def end(self) -> list[Sent]:
        """All records, in the order in which they were due."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        lines = self._notes.read_text().splitlines()
        return sorted(Sent(*map(float, line.split())) for line in lines)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def percentile(sent: Sequence[Sent], share: float) -> float:
    """Of the seconds of those that were acknowledged."""
    seconds = sorted(one.seconds for one in sent if one.seconds != FAILED)
    return seconds[min(len(seconds) - 1, int(share * len(seconds)))] if seconds else float("nan")


def run(bootstrap: str, topic: str, partitions: int, rate: float, notes: Path) -> None:
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0,
    }  # fmt: skip
    producer = Producer(settings)
    noted: list[Sent] = []

    def note(due: float, error: object) -> None:
        noted.append(Sent(due, FAILED if error is not None else time.monotonic() - due))

    begun, count, value = time.monotonic(), 0, b"x" * RECORD_BYTES
    while not over.is_set():
        due = begun + count / rate
        while (left := due - time.monotonic()) > 0 and not over.is_set():
            producer.poll(min(left, 0.05))
        producer.produce(
            topic, value, partition=count % partitions, on_delivery=lambda error, _, due=due: note(due, error)
        )
        producer.poll(0)
        count += 1
    producer.flush(FLUSH_SECONDS_MAX)
    notes.write_text("".join(f"{one.due} {one.seconds}\n" for one in noted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--notes", type=Path, required=True)
    options = parser.parse_args()
    run(options.bootstrap, options.topic, options.partitions, options.rate, options.notes)


if __name__ == "__main__":
    main()
