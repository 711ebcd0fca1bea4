"""Tools ask about transactions and their producers; brokers and tools have markers written."""

from __future__ import annotations

from mainstem.protocol.schema import array, boolean, int8, int16, int32, int64, message, nested, string, wire


@nested
class WritableTxnMarkerTopic:
    name: str = wire(string)
    partition_indexes: tuple[int, ...] = wire(array(int32))


@nested
class WritableTxnMarker:
    producer_id: int = wire(int64)
    producer_epoch: int = wire(int16)
    transaction_result: bool = wire(boolean)
    """Whether the transaction was committed."""
    topics: tuple[WritableTxnMarkerTopic, ...] = wire(array(WritableTxnMarkerTopic))
    coordinator_epoch: int = wire(int32)
    transaction_version: int = wire(int8, "2+", default=0, ignorable=True)


@message(api_key=27, versions="1-2", flexible="1+", elements_max=250_000)
class WriteTxnMarkersRequest:
    markers: tuple[WritableTxnMarker, ...] = wire(array(WritableTxnMarker))


@nested
class WritableTxnMarkerPartitionResult:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)


@nested
class WritableTxnMarkerTopicResult:
    name: str = wire(string)
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = wire(array(WritableTxnMarkerPartitionResult))


@nested
class WritableTxnMarkerResult:
    producer_id: int = wire(int64)
    topics: tuple[WritableTxnMarkerTopicResult, ...] = wire(array(WritableTxnMarkerTopicResult))


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    markers: tuple[WritableTxnMarkerResult, ...] = wire(array(WritableTxnMarkerResult))


@nested
class DescribeProducersTopic:
    name: str = wire(string)
    partition_indexes: tuple[int, ...] = wire(array(int32))


@message(api_key=61, versions="0", flexible="0+", elements_max=250_000)
class DescribeProducersRequest:
    topics: tuple[DescribeProducersTopic, ...] = wire(array(DescribeProducersTopic))


@nested
class DescribedProducer:
    producer_id: int = wire(int64)
    producer_epoch: int = wire(int32)
    last_sequence: int = wire(int32, default=-1)
    last_timestamp: int = wire(int64, default=-1)
    coordinator_epoch: int = wire(int32)
    current_txn_start_offset: int = wire(int64, default=-1)


@nested
class DescribeProducersPartitionResponse:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    active_producers: tuple[DescribedProducer, ...] = wire(array(DescribedProducer))


@nested
class DescribeProducersTopicResponse:
    name: str = wire(string)
    partitions: tuple[DescribeProducersPartitionResponse, ...] = wire(array(DescribeProducersPartitionResponse))


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    throttle_time_ms: int = wire(int32, default=0)
    topics: tuple[DescribeProducersTopicResponse, ...] = wire(array(DescribeProducersTopicResponse))


@message(api_key=65, versions="0", flexible="0+", elements_max=100_000)
class DescribeTransactionsRequest:
    transactional_ids: tuple[str, ...] = wire(array(string))


@nested
class DescribedTransactionTopic:
    topic: str = wire(string)
    partitions: tuple[int, ...] = wire(array(int32))


@nested
class DescribedTransaction:
    error_code: int = wire(int16)
    transactional_id: str = wire(string)
    transaction_state: str = wire(string)
    transaction_timeout_ms: int = wire(int32)
    transaction_start_time_ms: int = wire(int64)
    producer_id: int = wire(int64)
    producer_epoch: int = wire(int16)
    topics: tuple[DescribedTransactionTopic, ...] = wire(array(DescribedTransactionTopic))


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    transaction_states: tuple[DescribedTransaction, ...] = wire(array(DescribedTransaction))


@message(api_key=66, versions="0-2", flexible="0+", elements_max=100_000)
class ListTransactionsRequest:
    state_filters: tuple[str, ...] = wire(array(string))
    producer_id_filters: tuple[int, ...] = wire(array(int64))
    duration_filter: int = wire(int64, "1+", default=-1)
    transactional_id_pattern: str | None = wire(string, "2+", nullable="2+", default=None)


@nested
class ListedTransaction:
    transactional_id: str = wire(string)
    producer_id: int = wire(int64)
    transaction_state: str = wire(string)


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    unknown_state_filters: tuple[str, ...] = wire(array(string), default=())
    transaction_states: tuple[ListedTransaction, ...] = wire(array(ListedTransaction), default=())
