"""Two idempotent producers on one cluster, librdkafka and kafka-python, and the proof that nothing of either was lost,
repeated or reordered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.clients.drivers import kafka_python
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import load_on
from tests.end_to_end.load import GIVES_UP_MS, Load
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

PYTHON = "sent-by-kafka-python"
"""A topic of one partition, which has to be there."""


def nothing() -> None:
    """No network has to be mended."""


class PythonLoad:
    """kafka-python, idempotent, one message after the other to partition 0, until it is stopped."""

    def __init__(self, bootstrap: str, gives_up_ms: int) -> None:
        self._sender = kafka_python.producer(
            bootstrap, acks="all", enable_idempotence=True, request_timeout_ms=gives_up_ms
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._flow, name="kafka-python", daemon=True)
        self.acknowledged: dict[int, int] = {}
        """Offset → number."""
        self.failures: list[str] = []
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._sender.close()

    def _flow(self) -> None:
        number = 0
        while not self._stopping.is_set() and not self.failures:
            try:
                sent = self._sender.send(PYTHON, value=b"%d" % number, partition=0).get(timeout=PATIENCE_SECONDS)
            except Exception as error:  # whatever kafka-python raises
                self.failures.append(f"message {number}: {error!r}")
                return
            self.acknowledged[sent.offset] = number
            number += 1
            self._stopping.wait(0.01)


@contextmanager
def both_load(
    cluster: Cluster, topic: str, gives_up_ms: int = GIVES_UP_MS, mend: Callable[[], None] = nothing
) -> Iterator[Load]:
    """librdkafka to a topic of eight partitions, kafka-python to one beside; everything is read back in the end, once
    `mend` has brought the network back."""
    with load_on(cluster, topic, gives_up_ms=gives_up_ms) as load:
        python = PythonLoad(cluster.bootstrap, gives_up_ms)
        try:
            eventually(lambda: python.acknowledged or python.failures, what="a first message by kafka-python")
            yield load
            mend()
            before = len(python.acknowledged)
            eventually(lambda: len(python.acknowledged) > before or python.failures, what="more by kafka-python")
        finally:
            mend()
            python.stop()
    assert not python.failures
    first, count = min(python.acknowledged), len(python.acknowledged)
    read = kafka_python.consume(cluster.bootstrap, PYTHON, count, offset=first)
    assert [(it.offset, int(it.value or b"")) for it in read] == sorted(python.acknowledged.items())
    assert [number for _, number in sorted(python.acknowledged.items())] == list(range(count)), "once, in their order"
