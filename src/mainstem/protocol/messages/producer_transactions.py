"""Producers tell their coordinator about a transaction: which partitions and which consumer group's offsets it covers,
and how it ends. The questions of tools are in `transaction_administration`."""

from __future__ import annotations

from mainstem.protocol.schema import array, boolean, int16, int32, int64, message, nested, string, wire

_COORDINATOR_EPOCH_TAG = 10_000
"""Between nodes. Far from those that Kafka may give out; versions that do not know it pass over it."""


@nested
class AddPartitionsToTxnTopic:
    name: str = wire(string)
    partitions: tuple[int, ...] = wire(array(int32))


@nested
class AddPartitionsToTxnTransaction:
    transactional_id: str = wire(string, "4+")
    producer_id: int = wire(int64, "4+")
    producer_epoch: int = wire(int16, "4+")
    verify_only: bool = wire(boolean, "4+", default=False)
    topics: tuple[AddPartitionsToTxnTopic, ...] = wire(array(AddPartitionsToTxnTopic), "4+")


@message(api_key=24, versions="0-5", flexible="3+", elements_max=250_000)
class AddPartitionsToTxnRequest:
    """Clients send versions up to 3, brokers those from 4 on, about several transactions at once."""

    transactions: tuple[AddPartitionsToTxnTransaction, ...] = wire(
        array(AddPartitionsToTxnTransaction), "4+", default=()
    )
    v3_and_below_transactional_id: str = wire(string, "0-3", default="")
    v3_and_below_producer_id: int = wire(int64, "0-3", default=0)
    v3_and_below_producer_epoch: int = wire(int16, "0-3", default=0)
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = wire(array(AddPartitionsToTxnTopic), "0-3", default=())


@nested
class AddPartitionsToTxnPartitionResult:
    partition_index: int = wire(int32)
    partition_error_code: int = wire(int16)


@nested
class AddPartitionsToTxnTopicResult:
    name: str = wire(string)
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = wire(array(AddPartitionsToTxnPartitionResult))


@nested
class AddPartitionsToTxnResult:
    transactional_id: str = wire(string, "4+")
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = wire(array(AddPartitionsToTxnTopicResult), "4+")


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16, "4+", default=0, ignorable=True)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = wire(
        array(AddPartitionsToTxnResult), "4+", default=()
    )
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = wire(
        array(AddPartitionsToTxnTopicResult), "0-3", default=()
    )


@message(versions="4-5", flexible="4+")
class AddPartitionsToTxnAnswer:
    """A coordinator's response to another node: Kafka's with a tag, which readers of Kafka's pass over."""

    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16, default=0)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = wire(array(AddPartitionsToTxnResult), default=())
    coordinator_epoch: int = wire(int32, tag=_COORDINATOR_EPOCH_TAG, default=-1, ignorable=True)
    """If one transaction was asked for; -1: it does not say."""


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    transactional_id: str = wire(string)
    producer_id: int = wire(int64)
    producer_epoch: int = wire(int16)
    group_id: str = wire(string)


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnRequest:
    transactional_id: str = wire(string)
    producer_id: int = wire(int64)
    producer_epoch: int = wire(int16)
    committed: bool = wire(boolean)


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    producer_id: int = wire(int64, "5+", default=-1, ignorable=True)
    producer_epoch: int = wire(int16, "5+", default=-1, ignorable=True)


@nested
class TxnOffsetCommitRequestPartition:
    partition_index: int = wire(int32)
    committed_offset: int = wire(int64)
    committed_leader_epoch: int = wire(int32, "2+", default=-1, ignorable=True)
    committed_metadata: str | None = wire(string, nullable="0+")


@nested
class TxnOffsetCommitRequestTopic:
    name: str = wire(string)
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = wire(array(TxnOffsetCommitRequestPartition))


@message(api_key=28, versions="0-5", flexible="3+", elements_max=250_000)
class TxnOffsetCommitRequest:
    transactional_id: str = wire(string)
    group_id: str = wire(string)
    producer_id: int = wire(int64)
    producer_epoch: int = wire(int16)
    generation_id: int = wire(int32, "3+", default=-1)
    member_id: str = wire(string, "3+", default="")
    group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None)
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = wire(array(TxnOffsetCommitRequestTopic))


@nested
class TxnOffsetCommitResponsePartition:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)


@nested
class TxnOffsetCommitResponseTopic:
    name: str = wire(string)
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = wire(array(TxnOffsetCommitResponsePartition))


@message(api_key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitResponse:
    throttle_time_ms: int = wire(int32, default=0)
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = wire(array(TxnOffsetCommitResponseTopic))
