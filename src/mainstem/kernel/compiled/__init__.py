"""The kernel in C, by way of Cython: one module per noun, each the twin of the one of the same name in `pure`.

Left out on purpose, so far: nothing that runs once per request or more rarely, but for `collector`, which no Python
code can do. Importing this package fails where it was not built."""

from mainstem.kernel.compiled.batch_check import first_damaged
from mainstem.kernel.compiled.block import Arena, BlockBuilder
from mainstem.kernel.compiled.checksum import crc32c
from mainstem.kernel.compiled.collector import untrack
from mainstem.kernel.compiled.disk_moves import DurableWriter, fill_pieces, sync_file, write_pieces
from mainstem.kernel.compiled.disk_picks import DiskPicks
from mainstem.kernel.compiled.extent_moves import checksum_pieces, gather_extents, walk_batches
from mainstem.kernel.compiled.fetch import FetchScan, scan_fetch, scan_more
from mainstem.kernel.compiled.fetch_plan import FetchPlan, PlannedTopic
from mainstem.kernel.compiled.group_log import (
    SLOTS_OF_ALL,  # noqa: F401  # a kernel that was compiled before slots had classes counts as not there
    WriteGroupLog,
    append_all,
)
from mainstem.kernel.compiled.held_extents import take_extents
from mainstem.kernel.compiled.produce import (
    TOPIC_IDS_FROM,
    ProduceScan,
    ProduceTopic,
    scan_burst,
    scan_produce,
)
from mainstem.kernel.compiled.producer_states import Producers as ProducerStates
from mainstem.kernel.compiled.queue_table import QueueTable
from mainstem.kernel.compiled.recent_index import IndexedBlock, RecentIndex
from mainstem.kernel.compiled.record_keys import key_rows, keyed_hash
from mainstem.kernel.compiled.record_sieve import sieve_batches, sieve_records
from mainstem.kernel.compiled.record_walk import first_keyless, walk_timestamps
from mainstem.kernel.compiled.scattered_bytes import ScatteredBytes
from mainstem.kernel.compiled.tls_records import TlsRecords
from mainstem.kernel.compiled.watches import Watch, Watches
from mainstem.kernel.pure import (
    EpochCheck,
    IndexedBatch,
    PickLimits,
    PickSource,
    ProducerState,
    ScannedBatch,
    ScannedTopic,
    SeenBatch,
    TimestampWalk,
    write_all,
)

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
