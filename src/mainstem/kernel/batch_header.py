"""The fixed header of a record batch (Kafka's format 2): where each field stands, and what its bits mean.

A batch is 61 bytes of header and then its records, compressed as a whole or not at all::

    0  base offset      i64     21 attributes        i16     43 producer id     i64
    8  length           i32     23 last offset delta i32     51 producer epoch  i16
    12 leader epoch     i32     27 base timestamp    i64     53 base sequence   i32
    16 magic            i8      35 max timestamp     i64     57 record count    i32
    17 checksum         u32

All are big-endian. `length` counts from byte 12; the checksum (CRC32C) covers everything from byte 21, so base offset
and leader epoch can be stamped without computing it again. `compiled/batch_header.pxd` declares the same for Cython.
"""

from __future__ import annotations

import struct

BASE_OFFSET_AT = 0
LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CHECKSUM_AT = 17
CHECKED_FROM = 21
"""The beginning of the part that the checksum covers."""
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
RECORD_COUNT_AT = 57
HEADER_BYTES = 61

LENGTH_EXCLUDES = 12
"""Bytes that `length` does not count: the base offset and itself."""
MAGIC = 2

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
"""The base timestamp is the time from which on the tombstones of a compacted batch may go."""

HEADER = struct.Struct(">qiibIhiqqqhii")
"""All fields, in the order above."""
START = struct.Struct(">qiibI")
"""The fields that the checksum does not cover, and the checksum."""

TO_LAST_OFFSET_DELTA = struct.Struct(">qiibIhi")
"""All fields up to the last offset delta."""
EXTENT_BATCH = struct.Struct(">qi11xi")
"""Base offset, length and last offset delta: what a walk from batch to batch needs."""

BASE_OFFSET = struct.Struct(">q")
LENGTH = struct.Struct(">i")
LEADER_EPOCH = struct.Struct(">i")
CHECKSUM = struct.Struct(">I")
ATTRIBUTES = struct.Struct(">h")
TIMESTAMP = struct.Struct(">q")
RECORD_COUNT = struct.Struct(">i")
