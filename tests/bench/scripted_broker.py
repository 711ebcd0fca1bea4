"""A Kafka broker that says what a test wants: right or wrong, slowly, in pieces, or nothing before it closes.

Requests and responses pass through kio, a published codec, so that what the load generator writes and reads is held
against something it does not share a line with.
"""

from __future__ import annotations

import datetime
import io
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11.request import FetchRequest
from kio.schema.fetch.v11.response import FetchableTopicResponse, FetchResponse, PartitionData
from kio.schema.list_offsets.v1.request import ListOffsetsRequest
from kio.schema.list_offsets.v1.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.metadata.v4.request import MetadataRequest
from kio.schema.metadata.v4.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.produce.v7.request import ProduceRequest
from kio.schema.produce.v7.response import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records, i32, i32Timedelta, i64
from tests.harness.patience import PATIENCE_SECONDS

READ_BYTES = {"fast": 1 << 20, "slow": 3000}
RECEIVE_WINDOW_BYTES = 32 << 10  # small: a megabyte request leaves the sender in many short writes
NO_TIME = i32Timedelta.parse(datetime.timedelta(0))
READERS: dict[tuple[int, int], type[Any]] = {
    (0, 7): ProduceRequest,
    (1, 11): FetchRequest,
    (2, 1): ListOffsetsRequest,
    (3, 4): MetadataRequest,
}


@dataclass(frozen=True)
class Request:
    """One request as it was received, decoded."""

    connection: int
    correlation: int
    client: bytes
    body: Any


Answer = bytes | Sequence[bytes] | None
"""A frame's bytes, whole or in pieces that are sent one by one; None closes the connection."""


def framed(correlation: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation) + body


def produced(request: Request, code_of: Callable[[int], int] = lambda _: 0, drop: int = 0) -> bytes:
    """The response to a Produce request. `code_of` gives the error code of the request's n-th batch; the last `drop`
    partitions of each topic are left out."""
    number = 0
    topics = []
    for topic in request.body.topic_data:
        partitions = []
        for partition in topic.partition_data[: len(topic.partition_data) - drop]:
            code = code_of(number)
            number += 1
            partitions.append(
                PartitionProduceResponse(
                    index=partition.index,
                    error_code=ErrorCode(code),
                    base_offset=i64.parse(-1 if code else 10),
                    log_append_time=None,
                )
            )
        topics.append(TopicProduceResponse(name=topic.name, partition_responses=tuple(partitions)))
    response = ProduceResponse(responses=tuple(topics), throttle_time=NO_TIME)
    return framed(request.correlation, written(response))


def described(
    request: Request, addresses: Mapping[int, str], partitions: int, leader_of: Callable[[int], int]
) -> bytes:
    """The response to a Metadata request: brokers by id; `leader_of` gives the leader of a topic's n-th partition."""
    brokers = []
    for node_id, address in addresses.items():
        host, _, port = address.rpartition(":")
        brokers.append(MetadataResponseBroker(node_id=BrokerId.parse(node_id), host=host, port=i32.parse(int(port))))
    topics = tuple(
        MetadataResponseTopic(
            error_code=ErrorCode(0),
            name=topic.name,
            partitions=tuple(
                MetadataResponsePartition(
                    error_code=ErrorCode(0),
                    partition_index=i32.parse(index),
                    leader_id=BrokerId.parse(leader_of(index)),
                )
                for index in range(partitions)
            ),
        )
        for topic in request.body.topics
    )
    response = MetadataResponse(throttle_time=NO_TIME, brokers=tuple(brokers), topics=topics)
    return framed(request.correlation, written(response))


def offsets_told(request: Request, code_of: Callable[[int], int]) -> bytes:
    """The response to a ListOffsets request; `code_of` gives the error code of a topic's n-th partition."""
    topics = tuple(
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=tuple(
                ListOffsetsPartitionResponse(
                    partition_index=one.partition_index,
                    error_code=ErrorCode(code_of(one.partition_index)),
                    offset=i64.parse(10),
                )
                for one in topic.partitions
            ),
        )
        for topic in request.body.topics
    )
    return framed(request.correlation, written(ListOffsetsResponse(topics=topics)))


def fetched(request: Request, found: Mapping[tuple[str, int], tuple[int, bytes]]) -> bytes:
    """The response to a Fetch request: (topic, partition) → (error code, records)."""
    topics: dict[str, list[PartitionData]] = {}
    for (topic, partition), (code, records) in found.items():
        data = PartitionData(
            partition_index=i32.parse(partition),
            error_code=ErrorCode(code),
            high_watermark=i64.parse(1_000),
            aborted_transactions=None,
            records=Records(records),
        )
        topics.setdefault(topic, []).append(data)
    response = FetchResponse(
        throttle_time=NO_TIME,
        error_code=ErrorCode(0),
        responses=tuple(
            FetchableTopicResponse(topic=TopicName.parse(topic), partitions=tuple(partitions))
            for topic, partitions in topics.items()
        ),
    )
    return framed(request.correlation, written(response))


def written(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def batch(base_offset: int, records: int, value: bytes = b"value") -> bytes:
    """A stored record batch, made by kafka-python."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for number in range(records):
        builder.append(number, 1_000, None, value, [])
    return struct.pack(">q", base_offset) + bytes(builder.build())[8:]


def batches_in(records: bytes) -> list[DefaultRecordBatch]:
    reader = MemoryRecords(records)
    batches = []
    while reader.has_next():
        batches.append(reader.next_batch())
    assert reader.valid_bytes() == len(records), "there is a part of a batch at the end"
    return batches


class ScriptedBroker:
    """Answers every request with what `answer` returns, a thread for each connection. `failures` has what went wrong
    in a thread."""

    def __init__(self, answer: Callable[[Request], Answer], *, slow: bool = False) -> None:
        self.requests: list[Request] = []
        self.failures: list[BaseException] = []
        self._answer = answer
        self._slow = slow
        self._listener = socket.socket()
        if slow:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_WINDOW_BYTES)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            number = len(self._threads) - 1
            thread = threading.Thread(target=self._serve, args=(connection, number))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while self._exchange(connection, number):
                    pass
        except (ConnectionError, EOFError):
            pass  # the load generator is done, or has given up
        except BaseException as error:
            self.failures.append(error)

    def _exchange(self, connection: socket.socket, number: int) -> bool:
        (size,) = struct.unpack(">i", self._receive(connection, 4))
        frame = self._receive(connection, size)
        key, version, correlation, client_bytes = struct.unpack_from(">hhih", frame)
        body_at = 10 + client_bytes
        body, body_bytes = entity_reader(READERS[key, version])(frame, body_at)
        assert body_at + body_bytes == size, "the request goes on after its end"
        request = Request(number, correlation, bytes(frame[10:body_at]), body)
        self.requests.append(request)
        answer = self._answer(request)
        if answer is None:
            return False
        for piece in [answer] if isinstance(answer, bytes) else answer:
            connection.sendall(piece)
        return True

    def _receive(self, connection: socket.socket, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            piece = connection.recv(min(size - len(received), READ_BYTES["slow" if self._slow else "fast"]))
            if not piece:
                raise EOFError
            received += piece
        return bytes(received)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads)


@contextmanager
def scripted(answer: Callable[[Request], Answer], *, slow: bool = False) -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker(answer, slow=slow)
    try:
        yield broker
    finally:
        broker.close()
    assert broker.failures == []
