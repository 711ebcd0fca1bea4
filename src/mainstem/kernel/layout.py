"""The shapes in memory and on disk that both kernels share, and that the rooms around them read in place.

A queue is a slot of eight 64-bit cells; a batch is a directory row of eight. The compiled kernel declares the same
as C structs, and its tests compare the two.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

# --- the queue table ------------------------------------------------------------------------------------

CELLS = 8
"""Eight 64-bit cells make a slot: one cache line."""

QUEUE_ID = 0
NEXT_OFFSET = 1
"""The offset the next appended record gets: the end of what was appended, committed or not."""
COMMITTED_END = 2
"""The high watermark: the end of what is applied."""
LOG_START = 3
TAIL_LINK = 4
"""Link to the newest entry of the recent index, 0 for none."""
SKIP_LINK = 5
"""Link to the newest entry that carries a skip link."""
FIRST_UNSTABLE = 6
"""One more than the first offset of the oldest open transaction, committed or not; 0: none is open, and what is
committed is stable. `QueueTable.last_stable` makes the last stable offset of it."""
ENTRIES = 7
"""Entries ever linked into the recent index, times `ONE_ENTRY`: every 64th carries a skip link. The lowest bit is
`WATCHED`."""

WATCHED = 1
"""Set in the cell `ENTRIES` while somebody waits for something to be committed to the queue."""
ONE_ENTRY = 2

CHUNK_SLOTS = 1 << 16
"""4 MiB a chunk: a million queues are 16 chunks, a thousand queues cost one."""
CHUNK_MASK = CHUNK_SLOTS - 1
CHUNK_SHIFT = 16

NO_SLOT = -1


class Range(NamedTuple):
    """Partitions `first_partition` … + `count` - 1 of a topic, in `count` slots from `first_slot` on."""

    first_partition: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    first_slot: int


# --- the recent index ----------------------------------------------------------------------------------

ROW_BITS = 24
"""A link is block serial << 24 | directory row; a block of 16 M batches does not exist."""
ROW_MASK = (1 << ROW_BITS) - 1

SKIP_EVERY = 64
"""Entries between skip links: a lookup walks at most this many entries after its skips."""

# --- a directory row ------------------------------------------------------------------------------------

ROW = struct.Struct("<QqqqIIiiihhiI")
"""Queue id, base offset, max timestamp, producer id, position, length, last offset delta, record count, base
sequence, producer epoch, attributes, leader epoch, CRC: the journal's directory format, 64 bytes."""
ROW_BYTES = ROW.size

UNSTABLE_DISTANCE_MAX = (1 << 32) - (1 << 20)
"""A batch may end so many offsets behind the first one of the oldest open transaction: a marker behind it can still say
in 32 bits where its transaction began, also behind a million others."""

# --- producers ------------------------------------------------------------------------------------------

REMEMBERED_BATCHES = 5
"""Kafka's clients keep at most five requests in flight, so a retry is never older than that."""

SEQUENCE_MODULUS = 1 << 31
"""Sequence numbers run from 0 to 2^31 - 1 and wrap to 0."""


PICK_SOURCES_MAX = 64
"""Files that `DiskPicks` picks from at once."""


NO_TIMESTAMP = -1
"""The timestamp of a record without one; it is in every range."""

TIMESTAMP_DISTANCE_MAX = (1 << 63) - 1
"""Kafka's largest distance between a record's timestamp and the broker's clock: there is no bound."""


TOPICS_AT_ONCE_MAX = 10_000
"""Topics of Produce requests that are scanned at once: a Python object is made of each, and the broker asked, which
takes five milliseconds of so many."""

VECTOR_BUFFERS_MAX = 1024
"""The kernel's IOV_MAX: a vectored write of more buffers fails."""


class Verdict(enum.IntEnum):
    """The outcome of one partition of a Produce or Fetch request, as found by the scan, the broker or the store."""

    OK = 0
    # the scan, from the bytes alone
    NO_BATCH = 1
    """Null or empty records."""
    OLD_FORMAT = 2
    """Magic 0 or 1."""
    MANY_BATCHES = 3
    """More than one batch, or bytes after the first."""
    BAD_LENGTH = 4
    """The batch is shorter than its length field or its header says."""
    BAD_CHECKSUM = 5
    BAD_COUNT = 6
    """The record count is not positive, or not one more than the last offset delta."""
    BAD_FIELD = 7
    """A base offset other than 0, or a producer id without epoch or sequence."""
    BAD_COMPRESSION = 8
    CONTROL = 9
    """Only coordinators write control batches."""
    TRANSACTIONAL = 10
    """A batch of a transaction, in a request that names none."""
    # the scan, from what the broker knows of the topic and the request
    UNKNOWN_TOPIC = 16
    UNKNOWN_TOPIC_ID = 17
    UNKNOWN_PARTITION = 18
    INTERNAL_TOPIC = 19
    NOT_ENOUGH_REPLICAS = 20
    LARGER_THAN_TOPIC_ALLOWS = 21
    ZSTD_TOO_OLD = 22
    """zstd in a request version that does not know it."""
    INVALID_TIMESTAMP = 23
    """The batch claims LogAppendTime and the topic takes the producer's timestamps."""
    KEYLESS = 24
    """A record without a key for a compacted topic."""
    UNREADABLE = 25
    """Records of a compacted topic that cannot be decoded."""
    INVALID_ACKS = 26
    TRANSACTIONAL_ID = 27
    """The client may not write with the transactional id that the request names."""
    TIMESTAMP_OUT_OF_RANGE = 28
    """A record lies further before or after the node's clock than its topic allows."""
    NOT_AUTHORIZED = 29
    """The client may not write to the topic, or not read it."""
    # the store; see `model.Outcome`
    UNKNOWN_QUEUE = 32
    FENCED = 33
    NOT_LEADER = 34
    OUT_OF_ORDER_SEQUENCE = 35
    UNKNOWN_PRODUCER = 36
    STALE_PRODUCER_EPOCH = 37
    SKIPPED_SEQUENCE = 38
    TOO_LARGE = 39
    STORAGE_BUSY = 40
    STORAGE_FAILED = 41
    UNDECIDED = 42
    COLD_PRODUCER = 43
    """The producer's state is on disk, or its transaction is known to the coordinator alone; the store finds out and
    appends then."""
    FAILED = 44
    """Something failed that nobody foresaw."""
    INVALID_TXN_STATE = 45
    """The transaction that the producer has open, or has not, does not allow the batch."""
    CONCURRENT_TRANSACTIONS = 46
    """The producer's last transaction is not finished."""
    # the store, of a read
    OFFSET_OUT_OF_RANGE = 48
    FENCED_LEADER_EPOCH = 49
    """The reader knows an older leader epoch than the node."""
    UNKNOWN_LEADER_EPOCH = 50
    """The reader knows a newer one."""
    OFFSET_NOT_AVAILABLE = 51
    """A follower has not applied so much yet, or there is no such offset: only the leader knows."""
    # the store, of a marker
    TRANSACTION_COORDINATOR_FENCED = 52


class FollowedLog(NamedTuple):
    """In the place of a write group's log where another node leads it, and its replica here is read."""

    term: int
    """That of the leader that this node follows."""


class FollowersRead(enum.IntEnum):
    """Of which topics a reader may be served from replicas that other nodes lead or, by a broker without storage,
    though clients have another broker for them. As an integer, a plan's `from_followers`."""

    NEVER = 0
    ALL = 1
    SPREAD = 2
    """Those whose readers are spread over replicas."""
    SENT = 3
    """None: a broker without storage sends the reader on to another one, `share_to`, whatever it reads."""


# --- blocks ---------------------------------------------------------------------------------------------

CHUNK_BYTES = 4 << 20
"""Memory the payloads of blocks are put into: as much as the largest block of the default configuration, small
against the write cache."""

# --- records --------------------------------------------------------------------------------------------

RECORD_BYTES_MIN = 7
"""A record of one byte for each of its parts."""

RECORD_GROWTH_MAX = 10
"""Bytes that a record may gain when the difference of its timestamp is stated anew: nine of that, one of its length."""

KEY_PLACE_FIELDS = 6
"""Of a row that says where a batch's records lie: position, length, records, base offset, last offset delta, whether it
is a control batch."""

KEY_ROW_BYTES = 25
"""Of a row for a record: offset (i64), upper and lower half of its key's hash (u64), kind (u8)."""


class RecordKind(enum.IntEnum):
    VALUE = 0
    """It has a key and a value."""
    TOMBSTONE = 1
    """It has a key and no value."""
    NO_KEY = 2
    CONTROL = 3
    """It is of a control batch."""


RULING_FIELDS = 3
"""Of a row that says what stays of a batch: a range of the offsets that do, or a negative number for all; and the
delete horizon of its tombstones."""

SIEVED_FIELDS = 8
"""Of a row for a batch that stays: as `walk_batches` writes, and the number of the batch it was."""
