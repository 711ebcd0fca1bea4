"""Reading in a share group (KIP-932), in two APIs.

ShareFetch: acquire records of partitions, and acknowledge others on the way. ShareAcknowledge: acknowledge alone.
Partitions are followed by a share session, known by group and member, which moves an epoch on with each request.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.model import Buffer
from mainstem.protocol.schema import (
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    nested,
    records,
    string,
    struct,
    uuid,
    wire,
)

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
"""The types of acknowledgements. The acquired record does not exist; is done; goes to another; goes to nobody; stays
with the member for longer."""

BATCH_OPTIMIZED, RECORD_LIMIT = range(2)
"""Whether a fetch may acquire more than `max_records` where that keeps batches whole."""


@nested
class AcknowledgementBatch:
    first_offset: int = wire(int64)
    last_offset: int = wire(int64)
    acknowledge_types: tuple[int, ...] = wire(array(int8))


@nested
class ShareFetchPartition:
    partition_index: int = wire(int32)
    acknowledgement_batches: tuple[AcknowledgementBatch, ...] = wire(array(AcknowledgementBatch))


@nested
class ShareFetchTopic:
    topic_id: UUID = wire(uuid)
    partitions: tuple[ShareFetchPartition, ...] = wire(array(ShareFetchPartition))


@nested
class ForgottenShareTopic:
    topic_id: UUID = wire(uuid)
    partitions: tuple[int, ...] = wire(array(int32))


@message(api_key=78, versions="1-2", flexible="0+")
class ShareFetchRequest:
    group_id: str | None = wire(string, nullable="0+", default=None)
    member_id: str | None = wire(string, nullable="0+")
    share_session_epoch: int = wire(int32)
    max_wait_ms: int = wire(int32)
    min_bytes: int = wire(int32)
    max_bytes: int = wire(int32, default=0x7FFFFFFF)
    max_records: int = wire(int32)
    batch_size: int = wire(int32)
    share_acquire_mode: int = wire(int8, "2+", default=0, ignorable=True)
    is_renew_ack: bool = wire(boolean, "2+", default=False)
    topics: tuple[ShareFetchTopic, ...] = wire(array(ShareFetchTopic))
    forgotten_topics_data: tuple[ForgottenShareTopic, ...] = wire(array(ForgottenShareTopic))


@nested
class ShareLeader:
    leader_id: int = wire(int32, default=-1)
    leader_epoch: int = wire(int32, default=-1)


@nested
class AcquiredRecords:
    first_offset: int = wire(int64)
    last_offset: int = wire(int64)
    delivery_count: int = wire(int16)


@nested
class SharePartitionData:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    acknowledge_error_code: int = wire(int16, default=0)
    acknowledge_error_message: str | None = wire(string, nullable="0+", default=None)
    current_leader: ShareLeader = wire(struct(ShareLeader), default=ShareLeader())
    records: Buffer | tuple[Buffer, ...] = wire(records)
    acquired_records: tuple[AcquiredRecords, ...] = wire(array(AcquiredRecords), default=())


@nested
class ShareFetchableTopicResponse:
    topic_id: UUID = wire(uuid)
    partitions: tuple[SharePartitionData, ...] = wire(array(SharePartitionData))


@nested
class ShareEndpoint:
    node_id: int = wire(int32)
    host: str = wire(string)
    port: int = wire(int32)
    rack: str | None = wire(string, nullable="0+", default=None)


@message(api_key=78, versions="1-2", flexible="0+")
class ShareFetchResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = wire(int32, default=0)
    responses: tuple[ShareFetchableTopicResponse, ...] = wire(array(ShareFetchableTopicResponse))
    node_endpoints: tuple[ShareEndpoint, ...] = wire(array(ShareEndpoint), default=())


@nested
class AcknowledgePartition:
    partition_index: int = wire(int32)
    acknowledgement_batches: tuple[AcknowledgementBatch, ...] = wire(array(AcknowledgementBatch))


@nested
class AcknowledgeTopic:
    topic_id: UUID = wire(uuid)
    partitions: tuple[AcknowledgePartition, ...] = wire(array(AcknowledgePartition))


@message(api_key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeRequest:
    group_id: str | None = wire(string, nullable="0+", default=None)
    member_id: str | None = wire(string, nullable="0+")
    share_session_epoch: int = wire(int32)
    is_renew_ack: bool = wire(boolean, "2+", default=False)
    topics: tuple[AcknowledgeTopic, ...] = wire(array(AcknowledgeTopic))


@nested
class AcknowledgedPartition:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    current_leader: ShareLeader = wire(struct(ShareLeader), default=ShareLeader())


@nested
class ShareAcknowledgeTopicResponse:
    topic_id: UUID = wire(uuid)
    partitions: tuple[AcknowledgedPartition, ...] = wire(array(AcknowledgedPartition))


@message(api_key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = wire(int32, "2+", default=0, ignorable=True)
    responses: tuple[ShareAcknowledgeTopicResponse, ...] = wire(array(ShareAcknowledgeTopicResponse))
    node_endpoints: tuple[ShareEndpoint, ...] = wire(array(ShareEndpoint), default=())
