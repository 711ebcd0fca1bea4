"""The questions of nodes to the leaders of write groups about transactions: to end them, which producers queues know,
and which were aborted."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.model import AbortedRange, ActiveProducer, Outcome, TransactionMarker
from mainstem.rpc.errors import Refused
from mainstem.rpc.messages.brokers import READS_MAX, Offset, QueueId
from mainstem.rpc.messages.cluster import WriteGroupsNotLed
from mainstem.rpc.wire.method import Method

MARKERS_MAX = 10_000
"""Markers of one message: some 300 KB."""

DESCRIBED_MAX = 100
"""Queues whose producers one message is about: as each may have tens of thousands."""


class WriteMarkers(msgspec.Struct, frozen=True):
    """Write markers to queues of write groups that the node leads."""

    markers: Annotated[list[TransactionMarker], msgspec.Meta(max_length=MARKERS_MAX)]


class MarkersWritten(msgspec.Struct, frozen=True):
    """The outcomes, in the order of the markers; `NOT_LEADER` where another node leads by now."""

    outcomes: list[Outcome]


class AskProducers(msgspec.Struct, frozen=True):
    queue_ids: Annotated[list[QueueId], msgspec.Meta(max_length=DESCRIBED_MAX)]


class QueueProducers(msgspec.Struct, frozen=True, array_like=True):
    """The active producers of a queue; or, in place of OK, why they cannot be told."""

    outcome: Outcome
    producers: list[ActiveProducer] = []


class ProducersTold(msgspec.Struct, frozen=True):
    queues: list[QueueProducers]


class AskAborted(msgspec.Struct, frozen=True):
    """(queue id, from offset, to offset)"""

    ranges: Annotated[list[tuple[QueueId, Offset, Offset]], msgspec.Meta(max_length=READS_MAX)]
    reads_untold: bool = False
    """Whether the caller reads `AbortedTold.untold`; else the whole call fails where that would name a range."""


class AbortedTold(msgspec.Struct, frozen=True):
    """Of each range, the aborted transactions that have offsets in it."""

    ranges: list[list[AbortedRange]]
    untold: list[tuple[int, str]] = []
    """The ranges, counted from 0, of which the leader cannot tell that now, and why."""


class RecordsGone(Refused):
    """The log start has passed what was read, and nothing is known any more of what was aborted among it."""

    kind = "records gone"


WRITE_MARKERS = Method(148, "transactions.write_markers", WriteMarkers, MarkersWritten, nodes_only=True)
PRODUCERS = Method(149, "transactions.producers", AskProducers, ProducersTold, nodes_only=True)
ABORTED = Method(
    150, "transactions.aborted", AskAborted, AbortedTold, (WriteGroupsNotLed, RecordsGone), nodes_only=True
)
