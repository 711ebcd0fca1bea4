"""A client of no patience: the first acknowledged append after a kill."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Mapping, Sequence

from bench.failover.topic import TOPIC
from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, request_frame
from mainstem.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from mainstem.protocol.records import NewRecord, build_batch

PRODUCE, PRODUCE_VERSION = 0, 9
KNOCK_SECONDS = 0.001
KNOCK_ANSWER_SECONDS_MAX = 5.0


class Knocker:
    """Asks for appends until one is acknowledged, over connections that are there before they are needed."""

    def __init__(self, addresses: Mapping[int, str], knock_seconds: float = KNOCK_SECONDS) -> None:
        self._addresses = addresses
        self._knock_seconds = knock_seconds

    async def until_acknowledged(self, node_ids: Sequence[int], partition: int, deadline: float) -> float:
        """The moment at which the first of the nodes acknowledged an append. Raises TimeoutError."""
        tasks = [asyncio.create_task(self._knock(node_id, partition)) for node_id in node_ids]
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                return min(task.result() for task in done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _knock(self, node_id: int, partition: int) -> float:
        request = append_request(partition)
        host, _, port = self._addresses[node_id].rpartition(":")
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                await asyncio.sleep(self._knock_seconds)
                continue
            try:
                while True:
                    writer.write(request)
                    async with asyncio.timeout(KNOCK_ANSWER_SECONDS_MAX):
                        (size,) = struct.unpack(">i", await reader.readexactly(4))
                        answer = await reader.readexactly(size)
                    if error_of(answer) == 0:
                        return time.monotonic()
                    await asyncio.sleep(self._knock_seconds)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                await asyncio.sleep(self._knock_seconds)
            finally:
                writer.transport.abort()


class Knocks:
    """Appends to one queue again and again, asking every node, and notes the acknowledgements."""

    def __init__(self, addresses: Mapping[int, str], partition: int, knock_seconds: float) -> None:
        self.acknowledged: list[float] = []
        """Moments of the machine's monotonic clock."""
        self._addresses = addresses
        self._request = append_request(partition)
        self._knock_seconds = knock_seconds

    async def run(self, until: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for address in self._addresses.values():
                tasks.create_task(self._knock(address, until))

    async def _knock(self, address: str, until: float) -> None:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            while time.monotonic() < until:
                writer.write(self._request)
                async with asyncio.timeout(KNOCK_ANSWER_SECONDS_MAX):
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    answer = await reader.readexactly(size)
                if error_of(answer) == 0:
                    self.acknowledged.append(time.monotonic())
                await asyncio.sleep(self._knock_seconds)
        finally:
            writer.transport.abort()


def append_request(partition: int) -> bytes:
    batch = bytes(build_batch([NewRecord(timestamp=1, key=None, value=b"knock")]).data)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=round(KNOCK_ANSWER_SECONDS_MAX * 1000),
        topic_data=(
            TopicProduceData(name=TOPIC, partition_data=(PartitionProduceData(index=partition, records=batch),)),
        ),
    )
    header = RequestHeader(PRODUCE, PRODUCE_VERSION, 1, "failover")
    return bytes(request_frame(header, codec.write(request, PRODUCE_VERSION)))


def error_of(answer: bytes) -> int:
    _, position = parse_response_header(answer, PRODUCE, PRODUCE_VERSION)
    response = codec.read(ProduceResponse, PRODUCE_VERSION, answer, position)
    return int(response.responses[0].partition_responses[0].error_code)
