"""Single blocks of a write group's log, for a replica whose own copy went bad on its disk."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.rpc.errors import Refused
from mainstem.rpc.method import Method

Group = Annotated[int, msgspec.Meta(ge=0, lt=0xFFFF)]
Index = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class BlockMissing(Refused):
    """This node does not have that block, or not whole; the message says why. Another one may."""

    kind = "block missing"


class FetchBlock(msgspec.Struct, frozen=True):
    """The block of this term and index: two logs that have it have the same. Term 0: of whatever term it is here; the
    one who asks can tell by a checksum whether it is the block that is missing there."""

    group: Group
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
