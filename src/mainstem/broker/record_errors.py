"""Names the records for which a batch was refused (KIP-467), in the answer to a Produce request: so its producer fails
those that are bad for what they are, and may send the others again.

The kernel writes the answers and names no records. The codec takes apart an answer that has to name some, which is
rare, and writes it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mainstem.model import Buffer
from mainstem.ports import Scattered, joined
from mainstem.protocol import codec
from mainstem.protocol.headers import parse_response_header, response_frame
from mainstem.protocol.messages.produce import BatchIndexAndErrorMessage, ProduceResponse
from mainstem.protocol.schema import declaration_of

NAMED_FROM = 8
"""The version of Produce from which on answers have room for records."""
BATCHES_MAX = 500
"""Batches in an answer that is written again: some milliseconds. A larger one names no records."""
RECORDS_MAX = 10_000
"""Records that one answer names; behind them the other batches are refused as a whole."""
_LENGTH_BYTES = 4


def with_record_errors(
    frame: Sequence[Buffer | Scattered], version: int, batches: int, keyless: Mapping[int, Sequence[int]], message: str
) -> list[Buffer] | None:
    """The frame of a Produce response with the records named, by the number of their batch in the request, that have no
    key. None: it stays as it is."""
    if not keyless or version < NAMED_FROM or batches > BATCHES_MAX:
        return None
    encoded = memoryview(joined(frame))[_LENGTH_BYTES:]
    api_key = declaration_of(ProduceResponse).api_key
    assert api_key is not None, "a response has the key of its API"
    correlation_id, position = parse_response_header(encoded, api_key, version)
    response = codec.read(ProduceResponse, version, encoded, position)
    room, number, topics = RECORDS_MAX, 0, []
    for topic in response.responses:
        partitions = []
        for partition in topic.partition_responses:
            records = keyless.get(number, ())
            if partition.error_code and records and len(records) <= room:
                room -= len(records)
                errors = tuple(
                    BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message) for index in records
                )
                partition = replace(partition, record_errors=errors)
            partitions.append(partition)
            number += 1
        topics.append(replace(topic, partition_responses=tuple(partitions)))
    named = replace(response, responses=tuple(topics))
    return response_frame(correlation_id, api_key, version, codec.write_parts(named, version))
