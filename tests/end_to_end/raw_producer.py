"""Clients that talk to the one node they are told to and believe nobody: no metadata, no retries."""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType
from typing import Any, Self

from tests.harness.patience import PATIENCE_SECONDS

from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from mainstem.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from mainstem.protocol.records import NewRecord, build_batch

PRODUCE = 0
PRODUCE_VERSION = 9
LIST_OFFSETS = 2
LIST_OFFSETS_VERSION = 7
TIMEOUT_MS = 30_000
"""After which a leader that cannot reach the others has to answer."""
TIMEOUT_SOON_MS = 3_000
"""For tests that wait for that answer: longer than a leader without the others needs to notice."""


class RawClient:
    """One connection. Use as `with`."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _send(self, api_key: int, version: int, request: Any) -> None:
        header = RequestHeader(api_key, version, next(self._numbers), "raw")
        self._socket.sendall(request_frame(header, codec.write(request, version)))

    def _answer(self, api_key: int, version: int, response: type[Any]) -> Any:
        """The next answer. Raises TimeoutError."""
        (size,) = struct.unpack(">i", self._receive(4))
        frame = self._receive(size)
        _, position = parse_response_header(frame, api_key, version)
        return codec.read(response, version, frame, position)

    def _receive(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            piece = self._socket.recv(size - len(content))
            if not piece:
                raise ConnectionResetError("the node closed the connection")
            content += piece
        return content


class RawProducer(RawClient):
    """With acks=all."""

    def send(self, topic: str, partition: int, value: bytes, timeout_ms: int = TIMEOUT_MS) -> None:
        """One record in a request of its own, which has to be answered within `timeout_ms`."""
        batch = bytes(build_batch([NewRecord(timestamp=1, key=None, value=value)]).data)
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=None, acks=-1, timeout_ms=timeout_ms,
            topic_data=(TopicProduceData(name=topic, partition_data=(data,)),),
        )  # fmt: skip
        self._send(PRODUCE, PRODUCE_VERSION, request)

    def answer(self) -> int:
        """The error code of the next answer. Raises TimeoutError."""
        response = self._answer(PRODUCE, PRODUCE_VERSION, ProduceResponse)
        return int(response.responses[0].partition_responses[0].error_code)


class RawAsker(RawClient):
    """Asks where partitions end."""

    def ask(self, topic: str, partition: int) -> None:
        asked = ListOffsetsPartition(partition_index=partition, timestamp=LATEST_TIMESTAMP)
        topics = (ListOffsetsTopic(name=topic, partitions=(asked,)),)
        self._send(LIST_OFFSETS, LIST_OFFSETS_VERSION, ListOffsetsRequest(replica_id=-1, topics=topics))

    def answer(self) -> tuple[int, int]:
        """Error code and offset of the next answer. Raises TimeoutError."""
        response = self._answer(LIST_OFFSETS, LIST_OFFSETS_VERSION, ListOffsetsResponse)
        (found,) = response.topics[0].partitions
        return int(found.error_code), int(found.offset)
