"""A node tells which queues bring most of what a write group takes in, from samples of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from tests.end_to_end.shell import mainstem
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

TOPIC = "orders"
BUSY = 2
TURN = (BUSY,) * 8 + (0, 1)
"""The partitions of ten records of the same size: four fifths of the bytes go to one."""


def busiest(node: Serving) -> list[dict[str, Any]]:
    (group,) = node.get("/v1/cluster")["write_groups"]
    found: list[dict[str, Any]] = group["load"]["busiest"] if group["load"] is not None else []
    return found


def test_the_queue_that_brings_most_is_told_with_its_part(tmp_path: Path) -> None:
    node = Serving(tmp_path, "pipeline.mode=off", "nameserver.write_groups=1").start()
    try:
        mainstem(node, "topic", "create", TOPIC, "--partitions", "3")
        producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 1})
        over = time.monotonic() + PATIENCE_SECONDS
        while not (told := busiest(node)):
            assert time.monotonic() < over, "no queue is told"
            for partition in TURN * 5:
                producer.produce(TOPIC, bytes(4_000), partition=partition)
            assert producer.flush(PATIENCE_SECONDS) == 0
        assert (told[0]["topic"], told[0]["partition"]) == (TOPIC, BUSY)
        assert 0.6 < told[0]["part"] < 0.95
        explained = mainstem(node, "cluster", "explain", "--group", "0")
        assert f"single queues bring: {TOPIC}:{BUSY} " in explained
    finally:
        node.close()
