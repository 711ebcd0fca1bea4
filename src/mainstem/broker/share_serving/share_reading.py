"""ShareFetch reads a partition: whole batches, of which members of a group may get some. A group that reads committed
records gets none of aborted transactions, no markers, and nothing behind the last stable offset."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.broker.broker import Broker
from mainstem.broker.errors import ERROR_OF_OUTCOME, error_of_failed_read
from mainstem.broker.partitions import FoundPartition
from mainstem.broker.share_groups.share_partition import BatchSpan
from mainstem.broker.share_groups.state_machine import LogBounds
from mainstem.errors import MainstemError
from mainstem.model import AbortedRange, Buffer, Outcome, QueueRead
from mainstem.ports import Session
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.records import StoredBatch, stored_batches


class SharedBatches(NamedTuple):
    """The batches that a group may get, and the offset behind all that was read; it is the first that was asked for
    where nothing was."""

    batches: list[tuple[BatchSpan, Buffer]]
    end: int


def readable(found: FoundPartition, *, committed: bool) -> LogBounds:
    """The offsets of a partition that a group may read."""
    return LogBounds(found.offsets.log_start, found.offsets.last_stable if committed else found.offsets.high_watermark)


async def read_shared(
    broker: Broker, session: Session, found: FoundPartition, offset: int, bytes_max: int, *, committed: bool
) -> SharedBatches | ErrorCode:
    [read] = await broker.store_for(session).read([QueueRead(found.queue_id, offset, bytes_max)], bytes_max)
    if read.outcome is not Outcome.OK:
        return ERROR_OF_OUTCOME[read.outcome]
    stable_end = readable(found, committed=committed).end
    batches = [
        batch for data in read.batches for batch in stored_batches(data) if batch.header.base_offset < stable_end
    ]
    end = batches[-1].header.last_offset + 1 if batches else offset
    if committed and any(batch.header.is_transactional for batch in batches):
        first = max(batches[0].header.base_offset, read.offsets.log_start)  # that may lie in the middle of a batch
        aborted = await _aborted(broker, found.queue_id, first, end)
        if isinstance(aborted, ErrorCode):
            return aborted
        batches = [batch for batch in batches if not _is_hidden(batch, aborted)]
    return SharedBatches(
        [(BatchSpan(batch.header.base_offset, batch.header.last_offset), batch.data) for batch in batches], end
    )


async def _aborted(broker: Broker, queue_id: int, first: int, end: int) -> list[AbortedRange] | ErrorCode:
    if broker.committed_reads is None:
        return []
    [aborted] = await broker.committed_reads.aborted([(queue_id, first, end)])
    return error_of_failed_read(aborted) if isinstance(aborted, MainstemError | OSError) else aborted


def _is_hidden(batch: StoredBatch, aborted: list[AbortedRange]) -> bool:
    header = batch.header
    if header.is_control:
        return True
    return header.is_transactional and any(
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
        for one in aborted
    )
