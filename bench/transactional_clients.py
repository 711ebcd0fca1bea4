"""librdkafka's transactional producers as a load, in a process of their own; `python -m bench.transactional_clients
--help`.

Each producer has a thread: it begins a transaction, hands over the messages of as many batches as are asked for, and
commits; the next one begins when the commit is acknowledged. The library sends a batch as soon as it has
`--batch-records` messages. The last of every `--abort-every` transactions is aborted. Prints one JSON object; latencies
are from the beginning of a transaction to the acknowledgement of its end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import threading
import time
import uuid
from collections.abc import Sequence

from confluent_kafka import Producer

END_SECONDS_MAX = 60.0
"""For a commit or an abort with everything that it waits for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """The load of one producer. `batches` of a transaction go to the queues in turn."""

    address: str
    topic: str
    queues: int
    batches: int
    batch_records: int
    record_bytes: int
    abort_every: int
    """0: all are committed."""


class Client(threading.Thread):
    """One producer, from its first transaction until `seconds` or `count` transactions are over. `seen` has the seconds
    of each transaction."""

    def __init__(self, load: Transactions, seconds: float, count: int) -> None:
        super().__init__()
        self.seen: list[float] = []
        self.failure: Exception | None = None
        self._load = load
        self._seconds = seconds
        self._count = count
        self._producer = Producer({
            "bootstrap.servers": load.address, "transactional.id": uuid.uuid4().hex, "linger.ms": 5,
            "batch.num.messages": load.batch_records, "log_level": 0,
        })  # fmt: skip

    def prepare(self) -> None:
        """Have a producer id, and one transaction that is not counted: connections, and the queues' leaders."""
        self._producer.init_transactions(END_SECONDS_MAX)
        self._play(commit=True)

    def run(self) -> None:
        try:
            begun = time.perf_counter()
            while len(self.seen) < self._count and time.perf_counter() < begun + self._seconds:
                every = self._load.abort_every
                self.seen.append(self._play(commit=not every or (len(self.seen) + 1) % every != 0))
        except Exception as failure:
            self.failure = failure

    def _play(self, *, commit: bool) -> float:
        load, producer = self._load, self._producer
        value = os.urandom(load.record_bytes)
        begun = time.perf_counter()
        producer.begin_transaction()
        for batch in range(load.batches):
            for _ in range(load.batch_records):
                producer.produce(load.topic, value, partition=batch % load.queues)
        if commit:
            producer.commit_transaction(END_SECONDS_MAX)
        else:
            producer.flush(END_SECONDS_MAX)  # else the library drops what waits, and the broker has nothing to abort
            producer.abort_transaction(END_SECONDS_MAX)
        return time.perf_counter() - begun


def play(load: Transactions, producers: int, seconds: float, count: int) -> dict[str, float]:
    """Raises what a producer failed with."""
    clients = [Client(load, seconds, count) for _ in range(producers)]
    for client in clients:
        client.prepare()
    begun = time.perf_counter()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
        if client.failure is not None:
            raise client.failure
    took = time.perf_counter() - begun
    whole = sorted(seconds for client in clients for seconds in client.seen)
    return {
        "transactions": len(whole),
        "seconds": took,
        "p50_ms": 1000 * quantile(whole, 0.5),
        "p99_ms": 1000 * quantile(whole, 0.99),
    }


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """The value that `fraction` of all do not exceed."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--queues", type=int, required=True, help="partitions of the topic")
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=100, help="of a transaction")
    parser.add_argument("--batch-records", type=int, default=10)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--abort-every", type=int, default=0, metavar="N", help="abort every Nth transaction")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--count", type=int, default=1 << 62, help="transactions of each producer")
    options = parser.parse_args()
    load = Transactions(
        address=options.address,
        topic=options.topic,
        queues=options.queues,
        batches=options.batches,
        batch_records=options.batch_records,
        record_bytes=options.record_bytes,
        abort_every=options.abort_every,
    )
    print(json.dumps(play(load, options.producers, options.seconds, options.count)))


if __name__ == "__main__":
    main()
