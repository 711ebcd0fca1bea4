"""The hot path, from bytes to bytes: what runs per batch, and the memory it runs over.

There are two kernels with the same names: `compiled` (Cython, built when Mainstem is installed) and `pure`
(plain Python: its fallback where there was no C compiler, and its oracle in the tests). `KERNEL` says which is
active. The variable MAINSTEM_KERNEL chooses: `auto` (the default: compiled if it is there), `compiled`, `python`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mainstem.kernel.errors import (
    KernelError,
    KernelUnavailable,
    MalformedFetch,
    MalformedProduce,
    ManyTopics,
)
from mainstem.kernel.layout import (
    CELLS,
    CHUNK_SLOTS,
    COMMITTED_END,
    ENTRIES,
    FIRST_UNSTABLE,
    KEY_PLACE_FIELDS,
    KEY_ROW_BYTES,
    LOG_START,
    NEXT_OFFSET,
    NO_SLOT,
    PICK_SOURCES_MAX,
    QUEUE_ID,
    RECORD_BYTES_MIN,
    RECORD_GROWTH_MAX,
    ROW,
    ROW_BYTES,
    RULING_FIELDS,
    SEQUENCE_MODULUS,
    SIEVED_FIELDS,
    SKIP_EVERY,
    SKIP_LINK,
    TAIL_LINK,
    TOPICS_AT_ONCE_MAX,
    WATCHED,
    FollowedLog,
    Range,
    RecordKind,
    Verdict,
)

KERNEL_VARIABLE = "MAINSTEM_KERNEL"


def _chosen() -> str:
    """`compiled` or `python`. Raises `KernelUnavailable` for a choice that cannot be met."""
    choice = os.environ.get(KERNEL_VARIABLE, "auto")
    if choice not in ("auto", "compiled", "python"):
        raise KernelUnavailable(f"{KERNEL_VARIABLE}={choice!r}: choose auto, compiled or python")
    if choice != "python":
        try:
            import mainstem.kernel.compiled  # noqa: F401
        except ImportError as error:
            if choice == "compiled":
                raise KernelUnavailable(
                    f"{KERNEL_VARIABLE}=compiled, but the compiled kernel cannot be loaded ({error}); install a C "
                    "compiler and Mainstem again"
                ) from error
        else:
            return "compiled"
    return "python"


KERNEL = _chosen()

if TYPE_CHECKING or KERNEL == "python":
    from mainstem.kernel.pure import (
        TOPIC_IDS_FROM,
        Arena,
        BlockBuilder,
        DiskPicks,
        EpochCheck,
        FetchPlan,
        FetchScan,
        IndexedBatch,
        IndexedBlock,
        PickLimits,
        PickSource,
        PlannedTopic,
        ProducerState,
        ProducerStates,
        ProduceScan,
        ProduceTopic,
        QueueTable,
        RecentIndex,
        ScannedBatch,
        ScannedTopic,
        ScatteredBytes,
        SeenBatch,
        TimestampWalk,
        Watch,
        Watches,
        WriteGroupLog,
        append_all,
        checksum_pieces,
        crc32c,
        first_damaged,
        first_keyless,
        gather_extents,
        key_rows,
        keyed_hash,
        scan_burst,
        scan_fetch,
        scan_more,
        scan_produce,
        sieve_batches,
        sieve_records,
        take_extents,
        untrack,
        walk_batches,
        walk_timestamps,
    )
else:
    from mainstem.kernel.compiled import (
        TOPIC_IDS_FROM,
        Arena,
        BlockBuilder,
        DiskPicks,
        EpochCheck,
        FetchPlan,
        FetchScan,
        IndexedBatch,
        IndexedBlock,
        PickLimits,
        PickSource,
        PlannedTopic,
        ProducerState,
        ProducerStates,
        ProduceScan,
        ProduceTopic,
        QueueTable,
        RecentIndex,
        ScannedBatch,
        ScannedTopic,
        ScatteredBytes,
        SeenBatch,
        TimestampWalk,
        Watch,
        Watches,
        WriteGroupLog,
        append_all,
        checksum_pieces,
        crc32c,
        first_damaged,
        first_keyless,
        gather_extents,
        key_rows,
        keyed_hash,
        scan_burst,
        scan_fetch,
        scan_more,
        scan_produce,
        sieve_batches,
        sieve_records,
        take_extents,
        untrack,
        walk_batches,
        walk_timestamps,
    )

__all__ = [
    "CELLS",
    "CHUNK_SLOTS",
    "COMMITTED_END",
    "ENTRIES",
    "FIRST_UNSTABLE",
    "KERNEL",
    "KEY_PLACE_FIELDS",
    "KEY_ROW_BYTES",
    "LOG_START",
    "NEXT_OFFSET",
    "NO_SLOT",
    "PICK_SOURCES_MAX",
    "QUEUE_ID",
    "RECORD_BYTES_MIN",
    "RECORD_GROWTH_MAX",
    "ROW",
    "ROW_BYTES",
    "RULING_FIELDS",
    "SEQUENCE_MODULUS",
    "SIEVED_FIELDS",
    "SKIP_EVERY",
    "SKIP_LINK",
    "TAIL_LINK",
    "TOPICS_AT_ONCE_MAX",
    "TOPIC_IDS_FROM",
    "WATCHED",
    "Arena",
    "BlockBuilder",
    "DiskPicks",
    "EpochCheck",
    "FetchPlan",
    "FetchScan",
    "FollowedLog",
    "IndexedBatch",
    "IndexedBlock",
    "KernelError",
    "KernelUnavailable",
    "MalformedFetch",
    "MalformedProduce",
    "ManyTopics",
    "PickLimits",
    "PickSource",
    "PlannedTopic",
    "ProduceScan",
    "ProduceTopic",
    "ProducerState",
    "ProducerStates",
    "QueueTable",
    "Range",
    "RecentIndex",
    "RecordKind",
    "ScannedBatch",
    "ScannedTopic",
    "ScatteredBytes",
    "SeenBatch",
    "TimestampWalk",
    "Verdict",
    "Watch",
    "Watches",
    "WriteGroupLog",
    "append_all",
    "checksum_pieces",
    "crc32c",
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
    "take_extents",
    "untrack",
    "walk_batches",
    "walk_timestamps",
]
