"""A queue store is repaired from the other replicas of its write group: by content, since every node splits its own
copy of the log and has runs of its own.

A node whose run is missing, or has lost its index, asks another node which queues have offsets in the blocks that the
run was made of; a node that has lost bytes asks for the batches of a stretch of a queue. Batches are the same on all
replicas, but for those of compacted queues: each node compacts its own copy. A node whose own file of idempotent
producers went bad asks another replica for their states. Raw bytes travel as attachment, with a CRC32C of their own.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.rpc.errors import Refused
from mainstem.rpc.messages.snapshots import Checksum, Index, WriteGroupNumber
from mainstem.rpc.wire.method import Method

STRETCHES_MAX = 1_000
"""Stretches asked for in one call."""


class RepairRefused(Refused):
    """This node cannot help; the message says why. Another node may, or this one later."""

    kind = "repair refused"


class FetchStretches(msgspec.Struct, frozen=True):
    """Asks which offsets of which queues lie in the runs that have blocks (after, upto] of a write group."""

    group: WriteGroupNumber
    after: Index
    upto: Index


class StretchesPart(msgspec.Struct, frozen=True):
    """The attachment has rows of queue id u64, first offset i64, offset behind the last i64. They may cover
    some more blocks, up to `reached`."""

    reached: Index
    crc: Checksum


class OffsetRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets of a queue: from `first`, up to but without `end`."""

    queue_id: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    first: Index
    end: Index


class FetchStretchBatches(msgspec.Struct, frozen=True):
    """Asks for the batches that hold these offsets, whole, as they were committed."""

    group: WriteGroupNumber
    stretches: Annotated[list[OffsetRange], msgspec.Meta(max_length=STRETCHES_MAX)]
    gaps: bool = False
    """Offsets may be missing: the queues are compacted. A stretch of which nothing is left has an empty part."""


class BatchesPart(msgspec.Struct, frozen=True):
    """The attachment has batches of one stretch, named by its place in the request. All parts of a stretch
    follow each other."""

    stretch: Index
    crc: Checksum


FETCH_STRETCHES = Method(
    101, "groups.fetch_stretches", FetchStretches, StretchesPart, (RepairRefused,), streams=True, nodes_only=True
)
FETCH_STRETCH_BATCHES = Method(
    102, "groups.fetch_stretch_batches", FetchStretchBatches, BatchesPart, (RepairRefused,),
    streams=True, nodes_only=True,
)  # fmt: skip


NAMES_MAX = 2_048
"""Producers asked for in one call: the state of each takes 152 bytes, 311 KB at the most."""

NAME_BYTES = 16
"""Queue id u64 and producer id i64, little-endian."""


class ProducersNotNow(Refused):
    """This node cannot answer now: it has not applied so much, or cannot read; the message says why. The
    caller may ask again."""

    kind = "producers not now"


class FetchProducers(msgspec.Struct, frozen=True):
    """Asks for the states of these producers on a replica that has applied the write group's block `applied`,
    or more."""

    group: WriteGroupNumber
    applied: Index
    names: Annotated[bytes, msgspec.Meta(max_length=NAMES_MAX * NAME_BYTES)]
    """Keys, one behind the other."""


class FetchedProducers(msgspec.Struct, frozen=True):
    """The attachment has rows as the kernel's `ProducerStates.image` has them, of those producers whose full
    state is known here; the others are left out."""

    applied: Index
    """The last block that these states include."""
    crc: Checksum
    """Of the attachment."""


FETCH_PRODUCERS = Method(
    111, "groups.fetch_producers", FetchProducers, FetchedProducers, (ProducersNotNow,), nodes_only=True
)
