"""The questions of brokers without storage to the leaders of write groups: to append, to read, and to tell them what is
new.

Batches travel as attachments, one behind the other, as producers sent them; messages have their sizes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.model import (
    AppendResult,
    AppendTransaction,
    Outcome,
    QueueOffsets,
    QueueRead,
    QueueUsage,
    Tier,
    TimestampOffset,
)
from mainstem.rpc.errors import Refused
from mainstem.rpc.messages.cluster import WriteGroupNumber, WriteGroupsNotLed
from mainstem.rpc.messages.forwarded import CLIENTS_MAX, ClientTold, ClientTook
from mainstem.rpc.wire.method import Method, Nothing

BATCHES_MAX = 100_000
"""Batches of one message: as many as one Produce request may have."""

READS_MAX = 500
"""Queues read by one message; what they hold is bounded in bytes."""

QUEUES_MAX = 10_000
"""Queues that one question is about, some 90 KB."""

QueueId = Annotated[int, msgspec.Meta(ge=0)]
Offset = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
MetadataIndex = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
QueueIds = Annotated[list[QueueId], msgspec.Meta(max_length=QUEUES_MAX)]


class AppendedBatch(msgspec.Struct, frozen=True, array_like=True):
    """The fields of `model.BatchAppend`, with the size of its bytes in front."""

    size: Size
    queue_id: QueueId
    record_count: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    crc: int
    log_append_time: bool


class AppendPart(msgspec.Struct, frozen=True, array_like=True):
    """The batches of one call to `MessageStore.append` that belong to the write group."""

    acks: int
    copies_min: Annotated[int, msgspec.Meta(ge=0)]
    owner_epoch: int | None
    batches: Annotated[list[AppendedBatch], msgspec.Meta(max_length=BATCHES_MAX)]
    client: ClientTold | None = None
    """Whose they are; None: the broker's own, as those of its coordinators."""
    transaction: AppendTransaction | None = None
    """That of the batches that are part of one; from feature level 8 on."""


class AppendBatches(msgspec.Struct, frozen=True):
    """Append to queues of one write group, part by part."""

    group: WriteGroupNumber
    parts: Annotated[list[AppendPart], msgspec.Meta(max_length=BATCHES_MAX)]


class BatchesAppended(msgspec.Struct, frozen=True):
    """The results, part by part: all batches are as durable as their parts ask for."""

    parts: list[list[AppendResult]]
    lacks_memory: bool = False
    """Whether producers that can wait had better do so until the node answers `MEMORY`; nodes of the version before do
    not say, and skip it."""
    waits: Annotated[list[tuple[int, int]], msgspec.Meta(max_length=BATCHES_MAX)] = []
    """Parts whose clients are to bring nothing for a while, since their tenants have filled the node's disk 1, and for
    how many ms; nodes of the version before do not say, and skip it."""


class ReadQueues(msgspec.Struct, frozen=True):
    reads: Annotated[list[QueueRead], msgspec.Meta(max_length=READS_MAX)]
    bytes_max: Size
    whole_first: bool
    client: ClientTold | None = None
    """The reader; None: the broker itself."""


class SliceRead(msgspec.Struct, frozen=True, array_like=True):
    """`model.QueueSlice`, with the sizes of its batches in their place."""

    queue_id: QueueId
    outcome: Outcome
    sizes: list[Size]
    offsets: QueueOffsets
    tier: Tier | None
    next_offset: int


class QueuesRead(msgspec.Struct, frozen=True):
    """Slices of queues; their batches are the attachment."""

    slices: list[SliceRead]


class AskOffsets(msgspec.Struct, frozen=True):
    queue_ids: QueueIds


class OffsetsTold(msgspec.Struct, frozen=True):
    offsets: list[QueueOffsets | None]


class AskTimestamp(msgspec.Struct, frozen=True):
    queue_id: QueueId
    timestamp: int


class TimestampTold(msgspec.Struct, frozen=True):
    found: TimestampOffset | None


class AskTruncation(msgspec.Struct, frozen=True):
    """Move log starts up to these offsets; -1: to the high watermark."""

    before: Annotated[dict[QueueId, int], msgspec.Meta(max_length=QUEUES_MAX)]
    client: ClientTold | None = None
    """The client that wants it; None: nobody but the broker."""


class Truncated(msgspec.Struct, frozen=True):
    """The new log starts, None where the offset is out of range or the queue unknown; `failed`: why it was not moved,
    in words."""

    starts: dict[QueueId, int | None]
    failed: dict[QueueId, str]


class AskOwnership(msgspec.Struct, frozen=True):
    """Become the owner of a queue or, with an epoch, find out whether that is still the newest one."""

    queue_id: QueueId
    held: int | None = None


class Owned(msgspec.Struct, frozen=True):
    epoch: int
    metadata_index: MetadataIndex = 0
    """The last entry of the metadata that the leader has applied; 0 of one that does not say."""


class OwnershipRefused(Refused):
    """Another writer owns the queue, or too many queues have owners; the message says which."""

    kind = "ownership refused"


class AskEpochEnd(msgspec.Struct, frozen=True):
    queue_id: QueueId
    leader_epoch: int


class EpochEndTold(msgspec.Struct, frozen=True):
    found: tuple[int, int] | None


class UsageTold(msgspec.Struct, frozen=True):
    usage: list[QueueUsage | None]


class FollowTails(msgspec.Struct, frozen=True):
    """Begin a session in which the node tells what becomes of queues; `session` names it for this broker."""

    session: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class TailsTold(msgspec.Struct, frozen=True):
    """New batches of queues, confirmed by a majority, each from where the slice before ended. Empty: the session goes
    on. A slice that is not OK is the last one of its queue."""

    slices: list[SliceRead]


class ChangeTails(msgspec.Struct, frozen=True):
    """From now on tell of these queues too, from their ends on, and of those no more. `taken`: what clients were given
    of what the session told; nodes of the version before say nothing and skip it."""

    session: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    begun: QueueIds = []
    ended: QueueIds = []
    taken: Annotated[list[ClientTook], msgspec.Meta(max_length=CLIENTS_MAX)] = []


class NoSuchSession(Refused):
    """The session has ended, or has as many queues as it may."""

    kind = "no such session"


_NOT_LED = (WriteGroupsNotLed,)

APPEND = Method(128, "brokers.append", AppendBatches, BatchesAppended, _NOT_LED, nodes_only=True)
READ = Method(129, "brokers.read", ReadQueues, QueuesRead, nodes_only=True)
OFFSETS = Method(130, "brokers.offsets", AskOffsets, OffsetsTold, _NOT_LED, nodes_only=True)
TIMESTAMP = Method(131, "brokers.timestamp", AskTimestamp, TimestampTold, _NOT_LED, nodes_only=True)
TRUNCATE = Method(132, "brokers.truncate", AskTruncation, Truncated, _NOT_LED, nodes_only=True)
OWN = Method(133, "brokers.own", AskOwnership, Owned, (*_NOT_LED, OwnershipRefused), nodes_only=True)
EPOCH_END = Method(134, "brokers.epoch_end", AskEpochEnd, EpochEndTold, _NOT_LED, nodes_only=True)
USAGE = Method(135, "brokers.usage", AskOffsets, UsageTold, _NOT_LED, nodes_only=True)
FOLLOW_TAILS = Method(136, "brokers.follow_tails", FollowTails, TailsTold, streams=True, nodes_only=True)
CHANGE_TAILS = Method(137, "brokers.change_tails", ChangeTails, Nothing, (NoSuchSession,), nodes_only=True)
MEMORY = Method(138, "brokers.memory", Nothing, Nothing, nodes_only=True)
"""Answered when the node's journal lacks no memory any more."""
