"""The reader of a flood, against a node."""

from __future__ import annotations

import time
from pathlib import Path

from bench.access.flooding import OldRecords
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

RECORDS, PARTITIONS = 40, 2


def test_a_reader_that_waits_goes_on_and_begins_again_at_the_end_alone(tmp_path: Path) -> None:
    node = Serving(tmp_path, "pipeline.mode=off").start()
    try:
        settings = {"bootstrap.servers": node.kafka}
        wanted = [NewTopic("old", PARTITIONS, 1)]
        admin = AdminClient(settings)
        admin.create_topics(wanted)["old"].result(PATIENCE_SECONDS)
        producer = Producer(settings)
        for number in range(RECORDS):
            producer.produce("old", bytes(1_000), partition=number % PARTITIONS)
        assert producer.flush(PATIENCE_SECONDS) == 0
        old = OldRecords(settings, [("old", partition) for partition in range(PARTITIONS)])
        read: list[Message] = []
        waits = 0
        until = time.monotonic() + PATIENCE_SECONDS
        while len(read) < 3 * RECORDS and time.monotonic() < until:
            records = old.read(0.001)  # mostly nothing has come by then
            waits += not records
            read += records
        old.close()
    finally:
        node.close()
    assert waits > 3
    for partition in range(PARTITIONS):
        offsets = [message.offset() for message in read if message.partition() == partition]
        each = RECORDS // PARTITIONS
        assert offsets == [number % each for number in range(len(offsets))]
        assert len(offsets) > each, "it begins again"
