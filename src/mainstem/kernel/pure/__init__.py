"""The kernel in plain Python: the fallback where nothing could be compiled, and the oracle of the tests."""

from __future__ import annotations

from mainstem.kernel.pure.block import Arena, BlockBuilder
from mainstem.kernel.pure.checksum import crc32c
from mainstem.kernel.pure.group_log import GroupLog, append_all
from mainstem.kernel.pure.produce import TOPIC_IDS_FROM, ProduceScan, ScannedBatch, ScannedTopic, scan_produce
from mainstem.kernel.pure.producer_states import ProducerState, ProducerStates, SeenBatch
from mainstem.kernel.pure.queue_table import QueueTable
from mainstem.kernel.pure.unsplit_index import Entry, IndexedBlock, UnsplitIndex

__all__ = [
    "TOPIC_IDS_FROM",
    "Arena",
    "BlockBuilder",
    "Entry",
    "GroupLog",
    "IndexedBlock",
    "ProduceScan",
    "ProducerState",
    "ProducerStates",
    "QueueTable",
    "ScannedBatch",
    "ScannedTopic",
    "SeenBatch",
    "UnsplitIndex",
    "append_all",
    "crc32c",
    "scan_produce",
]
