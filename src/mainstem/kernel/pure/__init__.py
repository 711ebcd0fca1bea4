"""The kernel in plain Python: the fallback where the compiled kernel is missing, and the oracle of the tests."""

from __future__ import annotations

from mainstem.kernel.pure.batch_check import first_damaged
from mainstem.kernel.pure.block import Arena, BlockBuilder
from mainstem.kernel.pure.checksum import crc32c
from mainstem.kernel.pure.collector import untrack
from mainstem.kernel.pure.disk_moves import DurableWriter, fill_pieces, sync_file, write_all, write_pieces
from mainstem.kernel.pure.disk_picks import DiskPicks, PickLimits, PickSource
from mainstem.kernel.pure.extent_moves import checksum_pieces, gather_extents, walk_batches
from mainstem.kernel.pure.fetch import FetchScan, scan_fetch, scan_more
from mainstem.kernel.pure.fetch_plan import EpochCheck, FetchPlan, PlannedTopic
from mainstem.kernel.pure.group_log import WriteGroupLog, append_all
from mainstem.kernel.pure.held_extents import take_extents
from mainstem.kernel.pure.produce import (
    TOPIC_IDS_FROM,
    ProduceScan,
    ProduceTopic,
    ScannedBatch,
    ScannedTopic,
    scan_burst,
    scan_produce,
)
from mainstem.kernel.pure.producer_states import ProducerState, ProducerStates, SeenBatch
from mainstem.kernel.pure.queue_table import QueueTable
from mainstem.kernel.pure.recent_index import IndexedBatch, IndexedBlock, RecentIndex
from mainstem.kernel.pure.record_keys import key_rows, keyed_hash
from mainstem.kernel.pure.record_sieve import sieve_batches, sieve_records
from mainstem.kernel.pure.record_walk import TimestampWalk, first_keyless, walk_timestamps
from mainstem.kernel.pure.scattered_bytes import ScatteredBytes
from mainstem.kernel.pure.tls_records import TlsRecords
from mainstem.kernel.pure.watches import Watch, Watches

__all__ = [
    "TOPIC_IDS_FROM",
    "Arena",
    "BlockBuilder",
    "DiskPicks",
    "DurableWriter",
    "EpochCheck",
    "FetchPlan",
    "FetchScan",
    "IndexedBatch",
    "IndexedBlock",
    "PickLimits",
    "PickSource",
    "PlannedTopic",
    "ProduceScan",
    "ProduceTopic",
    "ProducerState",
    "ProducerStates",
    "QueueTable",
    "RecentIndex",
    "ScannedBatch",
    "ScannedTopic",
    "ScatteredBytes",
    "SeenBatch",
    "TimestampWalk",
    "TlsRecords",
    "Watch",
    "Watches",
    "WriteGroupLog",
    "append_all",
    "checksum_pieces",
    "crc32c",
    "fill_pieces",
    "first_damaged",
    "first_keyless",
    "gather_extents",
    "key_rows",
    "keyed_hash",
    "scan_burst",
    "scan_fetch",
    "scan_more",
    "scan_produce",
    "sieve_batches",
    "sieve_records",
    "sync_file",
    "take_extents",
    "untrack",
    "walk_batches",
    "walk_timestamps",
    "write_all",
    "write_pieces",
]
