"""A replica whose own copy of a block went bad on its disk fetches that block from another replica, or hears that
none has it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.rpc.errors import Refused
from mainstem.rpc.wire.method import Method

WriteGroupNumber = Annotated[int, msgspec.Meta(ge=0, lt=0xFFFF)]
Index = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class BlockMissing(Refused):
    """This node does not have that block, or not whole; the message says why. Another node may have it."""

    kind = "block missing"


class FetchBlock(msgspec.Struct, frozen=True):
    """The block of this term and index, which is the same in every log that has it. Term 0: of whatever term
    this node's log has; the caller can tell by a checksum whether it is the missing block."""

    group: WriteGroupNumber
    term: Index
    index: Index


class FetchedBlock(msgspec.Struct, frozen=True):
    """The directory and the payload, one behind the other, are the attachment."""

    kind: Annotated[int, msgspec.Meta(ge=0, le=255)]
    created_ms: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    batch_count: Count
    crc: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
    """Of the attachment."""
    term: Index = 0


FETCH_BLOCK = Method(110, "groups.fetch_block", FetchBlock, FetchedBlock, (BlockMissing,), nodes_only=True)


WHOLE, DAMAGED, STAND_IN, STORED, UNKNOWN = "whole", "damaged", "stand-in", "stored", "unknown"
"""The fate of a block on a node: it can be read there; it cannot; it was given up, and something stands in for it; it
is split, and gone from the journal; the node's log does not have it."""


class AskFate(msgspec.Struct, frozen=True):
    """What has become of this block on the node that is asked?"""

    asker: Annotated[int, msgspec.Meta(ge=0)]
    """Node id of the caller."""
    group: WriteGroupNumber
    index: Index
    promise: bool = False
    """The caller gives the block up if nobody has it: who has it damaged shall not take it for whole later on, without
    asking the others."""


class BlockFate(msgspec.Struct, frozen=True):
    """The answer; `BlockMissing` where the promise that was asked for cannot be given."""

    fate: Annotated[str, msgspec.Meta(max_length=32)]


BLOCK_FATE = Method(116, "groups.block_fate", AskFate, BlockFate, (BlockMissing,), nodes_only=True)
