"""The honest client: writes a message, reads it back, asks for metadata, commits an offset, and again."""

from __future__ import annotations

import threading

from tests.harness.patience import PATIENCE_MS
from tests.hostile.wire import ANSWER_SECONDS_MAX, Wire

from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from mainstem.protocol.records import NewRecord, build_batch, read_records, stored_batches

PRODUCE, FETCH, METADATA, COMMIT, CREATE_TOPICS = 9, 11, 9, 7, 5
"""Versions."""


def create_topic(address: str, name: str, partitions: int = 1, **configs: str) -> str:
    """The name of a topic that is made unless it exists."""
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
    with Wire(address) as wire:
        answer = wire.call(CreateTopicsRequest(topics=(topic,), timeout_ms=PATIENCE_MS), CREATE_TOPICS)
    assert answer.topics[0].error_code in (0, 36), answer  # or it exists
    return name


def produce_request(topic: str, values: list[bytes], partition: int = 0, acks: int = -1) -> ProduceRequest:
    """One batch."""
    records = [NewRecord(timestamp=1_700_000_000_000, key=None, value=value) for value in values]
    data = PartitionProduceData(index=partition, records=bytes(build_batch(records).data))
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=PATIENCE_MS,
        topic_data=(TopicProduceData(name=topic, partition_data=(data,)),),
    )


def fetch_request(
    topic: str, offset: int, *, partition: int = 0, bytes_max: int = 1 << 20, wait_ms: int = 500
) -> FetchRequest:
    """One partition, without a session."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max)
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        topics=(FetchTopic(topic=topic, partitions=(wanted,)),),
        session_epoch=-1,
    )


class HonestClient:
    """Goes on in a thread of its own until it is closed. Use as `with`."""

    def __init__(self, address: str, *, source: str = "127.0.0.1", topic: str = "honest") -> None:
        self._topic = create_topic(address, topic)
        self._wire = Wire(address, source=source, name="honest")
        self._done = 0
        self._failure: Exception | None = None
        self._ending = False
        self._moved = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> HonestClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        self._thread.join(2 * ANSWER_SECONDS_MAX)
        self._wire.close()

    @property
    def rounds(self) -> int:
        """Whole rounds so far."""
        return self._done

    def goes_on(self, rounds: int = 20) -> None:
        """Return when so many more rounds have been served. Raises AssertionError when one is not."""
        with self._moved:
            wanted = self._done + rounds
            moved = self._moved.wait_for(
                lambda: self._failure is not None or self._done >= wanted, rounds * ANSWER_SECONDS_MAX
            )
        if self._failure is not None or not moved:
            raise AssertionError(f"the honest client was not served after {self._done} rounds: {self._failure!r}")

    def _run(self) -> None:
        try:
            while not self._ending:
                self._round()
                with self._moved:
                    self._done += 1
                    self._moved.notify_all()
        except Exception as error:
            with self._moved:
                self._failure = error
                self._moved.notify_all()

    def _round(self) -> None:
        value = f"round {self._done}".encode()
        written = self._wire.call(produce_request(self._topic, [value]), PRODUCE)
        (partition,) = written.responses[0].partition_responses
        if partition.error_code:
            raise AssertionError(f"a produce was refused: {partition}")
        offset = partition.base_offset
        read = self._wire.call(fetch_request(self._topic, offset), FETCH)
        (found,) = read.responses[0].partitions
        (batch,) = stored_batches(found.records)
        (record,) = read_records(batch)
        if record.value != value:
            raise AssertionError(f"read {record.value!r} where {value!r} was written")
        asked = MetadataRequest(topics=(MetadataRequestTopic(name=self._topic),), allow_auto_topic_creation=False)
        described = self._wire.call(asked, METADATA)
        if described.topics[0].error_code:
            raise AssertionError(f"the topic is gone: {described.topics[0]}")
        self._commit(offset)

    def _commit(self, offset: int) -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        request = OffsetCommitRequest(
            group_id="honest", topics=(OffsetCommitRequestTopic(name=self._topic, partitions=(partition,)),)
        )
        while True:  # the internal topic is made on first need
            answer = self._wire.call(request, COMMIT)
            code = answer.topics[0].partitions[0].error_code
            if code == 0:
                return
            if code not in (14, 15, 16):  # loading, not available yet, not here yet
                raise AssertionError(f"a commit was refused: {code}")
