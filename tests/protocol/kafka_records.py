"""Record batches as the readers of aiokafka and kafka-python see them: oracles of ours."""

from __future__ import annotations

from typing import Any

from aiokafka.record.default_records import _DefaultRecordBatchPy
from kafka.record.default_records import DefaultRecordBatch

from mainstem.model import Buffer
from mainstem.protocol.records import Compression, Record


def seen_by_others(data: Buffer, compression: Compression) -> list[Any]:
    """The same batch in the hands of every reader that knows this compression; its checksum is right."""
    readers: list[Any] = [_DefaultRecordBatchPy]
    if compression in (Compression.NONE, Compression.GZIP):
        readers.append(DefaultRecordBatch)
    read = [reader(bytearray(data)) for reader in readers]
    assert all(batch.validate_crc() for batch in read)
    return read


def records_of(batch: Any) -> list[Record]:
    return [
        Record(
            item.offset,
            item.timestamp,
            None if item.key is None else bytes(item.key),
            None if item.value is None else bytes(item.value),
            tuple((name, None if content is None else bytes(content)) for name, content in item.headers),
        )
        for item in batch
    ]
