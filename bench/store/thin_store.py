"""Queue stores of many gigabytes on a small disk: records of zeros, and files that give back the disk where they hold
nothing else.

Nodes log, split, check and copy as many bytes as they would of other records; a file that was thinned reads the same.
Reads of holes touch no disk, so a node that sends such a file is somewhat faster than with a cold one. A node that gets
one writes all of it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from confluent_kafka import KafkaException, Message, Producer

from bench.errors import BenchError
from bench.nodes.members import Member, wait_until
from bench.store.plain_splitter import PlainSplitter

MIB = 1 << 20
PORTION_MIB = 1024
"""Between two thinnings: three nodes have so much in their journals, and again in new runs."""

RECORD_BYTES = 64 * 1024
"""A record has a header of some bytes, so that a page of 4 KiB in fifteen is none of zeros."""

SENT_SECONDS_MAX = 120.0


def fill_thin(members: Sequence[Member], topic: str, partitions: int, mebibytes: int, run_bytes: int) -> None:
    """Have every node split so many bytes of a topic, portion by portion, and give back the disk that they take. Raises
    BenchError."""
    if shutil.which("fallocate") is None:
        raise BenchError("files are thinned with fallocate, of util-linux, which is not there")
    for portion in portions(mebibytes):
        send_zeros(members[0].kafka, topic, partitions, portion * MIB)
        for member in members:
            with PlainSplitter(member.http, run_bytes) as splitter:
                splitter.split(merging=False)
        wait_until(lambda: is_pruned(members), "journals still have what is split", SENT_SECONDS_MAX)
        for member in members:
            thin(member.directory / "store")


def portions(mebibytes: int) -> Iterator[int]:
    for begun in range(0, mebibytes, PORTION_MIB):
        yield min(PORTION_MIB, mebibytes - begun)


def is_pruned(members: Sequence[Member]) -> bool:
    """Tell whether no journal has anything that is split, or waits for that."""
    groups = [group for member in members for group in member.get("/v1/split")["groups"].values()]
    return all(group["pruned"] and not group["lag_bytes"] for group in groups)


def send_zeros(bootstrap: str, topic: str, partitions: int, size: int) -> None:
    """Raises BenchError where a record is not acknowledged."""
    failures: list[str] = []

    def acknowledged(error: object, _message: Message) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 20,
         "batch.size": MIB - 1, "log_level": 4, "queue.buffering.max.kbytes": 64 * 1024}
    )  # fmt: skip
    record = bytes(RECORD_BYTES)
    for number in range(size // RECORD_BYTES):
        while True:
            try:
                producer.produce(topic, record, partition=number % partitions, on_delivery=acknowledged)
                break
            except BufferError:
                producer.poll(1.0)
            except KafkaException as error:
                raise BenchError(f"{topic} takes no records: {error}") from None
        producer.poll(0)
    left = producer.flush(SENT_SECONDS_MAX)
    if failures or left:
        raise BenchError(f"{len(failures) + left} records of {topic} were not acknowledged: {failures[:1]}")


def thin(store: Path) -> None:
    """Give back the disk of whole pages of zeros in the files of a queue store. Raises BenchError."""
    for path in sorted((store / "runs").iterdir()):
        done = subprocess.run(["fallocate", "--dig-holes", str(path)], capture_output=True, text=True, check=False)
        if done.returncode and path.exists():  # else a merge has removed it
            raise BenchError(f"{path} was not thinned: {done.stderr.strip()}")
