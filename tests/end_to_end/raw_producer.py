"""A producer that talks to the one node it is told to and believes nobody: no metadata, no retries, acks=all."""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType

from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from mainstem.protocol.records import NewRecord, build_batch

PRODUCE = 0
VERSION = 9
ANSWER_SECONDS_MAX = 30.0


class RawProducer:
    """One connection. Use as `with`."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX)
        self._numbers = itertools.count(1)

    def __enter__(self) -> RawProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """One record in a request of its own."""
        batch = bytes(build_batch([NewRecord(timestamp=1, key=None, value=value)]).data)
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=None, acks=-1, timeout_ms=int(ANSWER_SECONDS_MAX * 1000),
            topic_data=(TopicProduceData(name=topic, partition_data=(data,)),),
        )  # fmt: skip
        header = RequestHeader(PRODUCE, VERSION, next(self._numbers), "raw")
        self._socket.sendall(request_frame(header, codec.write(request, VERSION)))

    def answer(self) -> int:
        """The error code of the next answer. Raises TimeoutError."""
        (size,) = struct.unpack(">i", self._receive(4))
        frame = self._receive(size)
        _, position = parse_response_header(frame, PRODUCE, VERSION)
        response = codec.read(ProduceResponse, VERSION, frame, position)
        return int(response.responses[0].partition_responses[0].error_code)

    def _receive(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            piece = self._socket.recv(size - len(content))
            if not piece:
                raise ConnectionResetError("the node closed the connection")
            content += piece
        return content
