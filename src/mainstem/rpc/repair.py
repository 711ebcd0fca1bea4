"""Repair of a queue store from the other replicas of its write groups: by content, since every node splits its own copy
of the log and has runs of its own.

A node whose run is missing, or has lost its index, asks another one which queues have offsets in the blocks that the
run was of; and whoever has lost bytes asks for the batches of a stretch of a queue. Batches are the same everywhere.
Whatever is raw travels as attachment, with a CRC32C of its own.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.rpc.errors import Refused
from mainstem.rpc.method import Method
from mainstem.rpc.snapshots import Checksum, Group, Index

STRETCHES_MAX = 1_000
"""Asked for in one call."""


class RepairRefused(Refused):
    """This node cannot help; the message says why. Another one may, or this one later."""

    kind = "repair refused"


class FetchStretches(msgspec.Struct, frozen=True):
    """Which offsets of which queues are in the runs that have blocks (after, upto] of a write group."""

    group: Group
    after: Index
    upto: Index


class StretchesPart(msgspec.Struct, frozen=True):
    """The attachment has rows of queue id u64, first offset i64, offset behind the last i64. They may be of some more
    blocks, up to `reached`."""

    reached: Index
    crc: Checksum


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Offsets of a queue: from `first`, up to but without `end`."""

    queue_id: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    first: Index
    end: Index


class FetchStretchBatches(msgspec.Struct, frozen=True):
    """The batches that hold these offsets, whole ones, as they were committed."""

    group: Group
    stretches: Annotated[list[Stretch], msgspec.Meta(max_length=STRETCHES_MAX)]


class BatchesPart(msgspec.Struct, frozen=True):
    """The attachment has batches of one of the stretches, by its place in the request. All parts of a stretch come one
    after the other."""

    stretch: Index
    crc: Checksum


FETCH_STRETCHES = Method(
    101, "groups.fetch_stretches", FetchStretches, StretchesPart, (RepairRefused,), streams=True, nodes_only=True
)
FETCH_STRETCH_BATCHES = Method(
    102, "groups.fetch_stretch_batches", FetchStretchBatches, BatchesPart, (RepairRefused,),
    streams=True, nodes_only=True,
)  # fmt: skip
