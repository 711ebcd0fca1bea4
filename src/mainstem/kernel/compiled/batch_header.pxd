# Where the fields of a record batch's header stand, and what its bits mean: `mainstem/kernel/batch_header.py` tells more.

cdef enum:
    LENGTH_AT = 8
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CHECKSUM_AT = 17
    CHECKED_FROM = 21            # where that begins in a batch which its checksum covers
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    RECORD_COUNT_AT = 57
    HEADER_BYTES = 61

    LENGTH_EXCLUDES = 12         # bytes that the length does not count
    MAGIC = 2

    COMPRESSION_MASK = 0x07
    LOG_APPEND_TIME_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    DELETE_HORIZON_BIT = 0x40
    NO_TIMESTAMP = -1
