"""The internal topic `__transaction_state` and the form of its records.

Those about transactional ids are Kafka's own. Besides, one record has the coordinator epoch of the present reign.
Records of kinds or versions that this program does not know are handed on as they are: a later version wrote them, and
will want them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mainstem.broker.machines.coordinator_topic import InternalTopic
from mainstem.broker.machines.machine_log import LogLimits
from mainstem.broker.machines.result import UnknownRecord
from mainstem.broker.transactions.config import TransactionsConfig
from mainstem.broker.transactions.transaction import (
    CoordinatorEpochRecord,
    StateRecord,
    Transaction,
    TransactionRecord,
    TransactionState,
)
from mainstem.model import FeatureLevel
from mainstem.protocol.errors import UnsupportedVersion
from mainstem.protocol.messages.transaction_log import (
    EPOCH_KEY_VERSION,
    CoordinatorEpochKey,
    CoordinatorEpochValue,
    TransactionLogPartitions,
    TransactionLogValue,
    read_transaction_key,
    read_transaction_value,
    write_transaction_key,
    write_transaction_value,
)
from mainstem.protocol.messages.versioned import read_version, read_versioned, write_versioned
from mainstem.protocol.records import NewRecord, Record, StoredBatch, read_records

STATE_TOPIC = "__transaction_state"

_EPOCH_KEY = write_versioned(CoordinatorEpochKey(), EPOCH_KEY_VERSION)


def state_topic(config: TransactionsConfig) -> InternalTopic:
    return InternalTopic(
        STATE_TOPIC, config.topic_partitions, config.topic_replication_factor, keeper="transaction coordinator"
    )


def limits_of(config: TransactionsConfig) -> LogLimits:
    """The bounds of a partition's log."""
    return LogLimits(config.load_bytes, config.append_bytes_max, config.commit_timeout_ms / 1000)


class StateTopicCodec:
    """`machines.machine_log.RecordCodec` of the transaction coordinator."""

    def encode(self, record: StateRecord, timestamp_ms: int, level: FeatureLevel) -> NewRecord:
        if isinstance(record, UnknownRecord):
            return NewRecord(record.timestamp_ms, record.key, record.value, record.headers)
        if isinstance(record, CoordinatorEpochRecord):
            return NewRecord(timestamp_ms, _EPOCH_KEY, write_versioned(CoordinatorEpochValue(epoch=record.epoch), 0))
        value = None if record.transaction is None else write_transaction_value(_value(record.transaction))
        return NewRecord(timestamp_ms, write_transaction_key(record.transactional_id), value)

    def decode(self, record: Record) -> StateRecord | None:
        if record.key is None:
            return None
        try:
            if read_version(record.key) == EPOCH_KEY_VERSION:
                epoch = -1 if record.value is None else read_versioned(CoordinatorEpochValue, record.value).epoch
                return CoordinatorEpochRecord(epoch)
            transactional_id = read_transaction_key(record.key).transactional_id
            if record.value is None:
                return TransactionRecord(transactional_id, None)
            return TransactionRecord(
                transactional_id, _transaction(transactional_id, read_transaction_value(record.value))
            )
        except UnsupportedVersion:
            return UnknownRecord(record.key, record.value, record.timestamp, record.headers)

    def decode_all(self, batch: StoredBatch) -> Iterator[StateRecord]:
        return (found for record in read_records(batch) if (found := self.decode(record)) is not None)


def _value(transaction: Transaction) -> TransactionLogValue:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(partition)
    partitions = tuple(
        TransactionLogPartitions(topic=topic, partition_ids=tuple(indexes)) for topic, indexes in by_topic.items()
    )
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
        last_producer_epoch=transaction.last_epoch,
    )


def _transaction(transactional_id: str, value: TransactionLogValue) -> Transaction:
    """Raises `UnsupportedVersion` for a state that this version does not know."""
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        raise UnsupportedVersion(f"a transaction has the state {value.transaction_status}") from None
    return Transaction(
        transactional_id=transactional_id,
        state=state,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
        started_ms=value.transaction_start_timestamp_ms,
        partitions=frozenset(
            (each.topic, index) for each in value.transaction_partitions or () for index in each.partition_ids
        ),
        last_epoch=value.last_producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )
