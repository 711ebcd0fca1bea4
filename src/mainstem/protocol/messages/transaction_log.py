"""The records of the internal topic `__transaction_state`, in Kafka's own format.

A key of version 0 names a transactional id; a null value forgets it. Values are written in version 1, whose tagged
fields older readers pass over.
"""

from __future__ import annotations

from mainstem.model import Buffer
from mainstem.protocol.errors import UnsupportedVersion
from mainstem.protocol.messages.versioned import read_version, read_versioned, write_versioned
from mainstem.protocol.schema import array, int8, int16, int32, int64, message, nested, string, wire

KEY_VERSION = 0
VALUE_VERSION = 1

_LAST_EPOCH_TAG = 10_000
"""Far from those that Kafka may give out; its readers pass over tags they do not know."""


@message(versions="0")
class TransactionLogKey:
    transactional_id: str = wire(string)


@nested
class TransactionLogPartitions:
    topic: str = wire(string)
    partition_ids: tuple[int, ...] = wire(array(int32))


@message(versions="0-1", flexible="1+")
class TransactionLogValue:
    producer_id: int = wire(int64)
    previous_producer_id: int = wire(int64, "1+", tag=0, default=-1, ignorable=True)
    next_producer_id: int = wire(int64, "1+", tag=1, default=-1, ignorable=True)
    producer_epoch: int = wire(int16)
    transaction_timeout_ms: int = wire(int32)
    transaction_status: int = wire(int8)
    transaction_partitions: tuple[TransactionLogPartitions, ...] | None = wire(
        array(TransactionLogPartitions), nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = wire(int64)
    transaction_start_timestamp_ms: int = wire(int64)
    client_transaction_version: int = wire(int16, "1+", tag=2, default=0, ignorable=True)
    last_producer_epoch: int = wire(int16, "1+", tag=_LAST_EPOCH_TAG, default=-1, ignorable=True)
    """The epoch before the last bump: a producer that asks again for a bump whose answer it lost is known by it."""


def read_transaction_key(buffer: Buffer) -> TransactionLogKey:
    """Raises `UnsupportedVersion` for a kind of record that this version does not know, and `MalformedMessage`."""
    version = read_version(buffer)
    if version != KEY_VERSION:
        raise UnsupportedVersion(f"a record of __transaction_state has a key of version {version}")
    return read_versioned(TransactionLogKey, buffer)


def write_transaction_key(transactional_id: str) -> bytes:
    return write_versioned(TransactionLogKey(transactional_id=transactional_id), KEY_VERSION)


def read_transaction_value(buffer: Buffer) -> TransactionLogValue:
    """Raises `ProtocolError`."""
    return read_versioned(TransactionLogValue, buffer)


def write_transaction_value(value: TransactionLogValue) -> bytes:
    return write_versioned(value, VALUE_VERSION)


EPOCH_KEY_VERSION = 10_000
"""Far from those that Kafka may give out; its readers pass over keys they do not know."""


@message(versions="10000")
class CoordinatorEpochKey:
    pass


@message(versions="0")
class CoordinatorEpochValue:
    epoch: int = wire(int32)
