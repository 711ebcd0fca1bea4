"""The kernel in plain Python: the fallback where nothing could be compiled, and the oracle of the tests."""

from __future__ import annotations

from mainstem.kernel.pure.block import BlockBuilder
from mainstem.kernel.pure.checksum import crc32c
from mainstem.kernel.pure.produce import TOPIC_IDS_FROM, ProduceScan, ScannedBatch, ScannedTopic, scan_produce
from mainstem.kernel.pure.producer_states import ProducerState, ProducerStates, SeenBatch
from mainstem.kernel.pure.queue_table import QueueTable
from mainstem.kernel.pure.unsplit_index import Entry, IndexedBlock, UnsplitIndex

__all__ = [
    "TOPIC_IDS_FROM",
    "BlockBuilder",
    "Entry",
    "IndexedBlock",
    "ProduceScan",
    "ProducerState",
    "ProducerStates",
    "QueueTable",
    "ScannedBatch",
    "ScannedTopic",
    "SeenBatch",
    "UnsplitIndex",
    "crc32c",
    "scan_produce",
]
