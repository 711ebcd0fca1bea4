"""A node whose own file of idempotent producers went bad on its disk asks another replica for their
states."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.rpc.errors import Refused
from mainstem.rpc.messages.snapshots import Checksum, Group, Index
from mainstem.rpc.wire.method import Method

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

    group: Group
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
