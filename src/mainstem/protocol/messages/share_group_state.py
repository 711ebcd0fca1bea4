"""The state of share groups over partitions, as the brokers of a cluster ask whoever keeps it.

InitializeShareGroupState: a group begins with a partition, or begins anew, at an offset.
ReadShareGroupState: all that is known, for the broker that gives the partition's records out from now on.
WriteShareGroupState: what became of records.
DeleteShareGroupState: a group is to know nothing of a partition any more.
ReadShareGroupStateSummary: how far a group is.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.messages.share_state_records import ShareStateBatch
from mainstem.protocol.schema import array, int16, int32, int64, message, nested, string, uuid, wire

UNINITIALIZED = -1
"""The start of a partition that nobody has read yet; in a request to write: as it was."""

ANY_EPOCH = -1
"""An epoch that is not compared."""


@nested
class InitializedPartition:
    partition: int = wire(int32)
    state_epoch: int = wire(int32)
    start_offset: int = wire(int64)


@nested
class InitializedTopic:
    topic_id: UUID = wire(uuid)
    partitions: tuple[InitializedPartition, ...] = wire(array(InitializedPartition))


@message(api_key=83, versions="0", flexible="0+")
class InitializeShareGroupStateRequest:
    group_id: str = wire(string)
    topics: tuple[InitializedTopic, ...] = wire(array(InitializedTopic))


@nested
class StatePartitionResult:
    """Of a request that changes state."""

    partition: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)


@nested
class StateTopicResult:
    topic_id: UUID = wire(uuid)
    partitions: tuple[StatePartitionResult, ...] = wire(array(StatePartitionResult))


@message(api_key=83, versions="0", flexible="0+")
class InitializeShareGroupStateResponse:
    results: tuple[StateTopicResult, ...] = wire(array(StateTopicResult))


@nested
class StateReadPartition:
    partition: int = wire(int32)
    leader_epoch: int = wire(int32)


@nested
class StateReadTopic:
    topic_id: UUID = wire(uuid)
    partitions: tuple[StateReadPartition, ...] = wire(array(StateReadPartition))


@message(api_key=84, versions="0", flexible="0+")
class ReadShareGroupStateRequest:
    group_id: str = wire(string)
    topics: tuple[StateReadTopic, ...] = wire(array(StateReadTopic))


@nested
class StateOfPartition:
    partition: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    state_epoch: int = wire(int32)
    start_offset: int = wire(int64)
    state_batches: tuple[ShareStateBatch, ...] = wire(array(ShareStateBatch))


@nested
class StateOfTopic:
    topic_id: UUID = wire(uuid)
    partitions: tuple[StateOfPartition, ...] = wire(array(StateOfPartition))


@message(api_key=84, versions="0", flexible="0+")
class ReadShareGroupStateResponse:
    results: tuple[StateOfTopic, ...] = wire(array(StateOfTopic))


@nested
class WrittenPartition:
    partition: int = wire(int32)
    state_epoch: int = wire(int32)
    leader_epoch: int = wire(int32)
    start_offset: int = wire(int64)
    delivery_complete_count: int = wire(int32, "1+", default=-1, ignorable=True)
    state_batches: tuple[ShareStateBatch, ...] = wire(array(ShareStateBatch))


@nested
class WrittenTopic:
    topic_id: UUID = wire(uuid)
    partitions: tuple[WrittenPartition, ...] = wire(array(WrittenPartition))


@message(api_key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateRequest:
    group_id: str = wire(string)
    topics: tuple[WrittenTopic, ...] = wire(array(WrittenTopic))


@message(api_key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateResponse:
    results: tuple[StateTopicResult, ...] = wire(array(StateTopicResult))


@nested
class ForgottenStatePartition:
    partition: int = wire(int32)


@nested
class ForgottenStateTopic:
    topic_id: UUID = wire(uuid)
    partitions: tuple[ForgottenStatePartition, ...] = wire(array(ForgottenStatePartition))


@message(api_key=86, versions="0", flexible="0+")
class DeleteShareGroupStateRequest:
    group_id: str = wire(string)
    topics: tuple[ForgottenStateTopic, ...] = wire(array(ForgottenStateTopic))


@message(api_key=86, versions="0", flexible="0+")
class DeleteShareGroupStateResponse:
    results: tuple[StateTopicResult, ...] = wire(array(StateTopicResult))


@message(api_key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest:
    group_id: str = wire(string)
    topics: tuple[StateReadTopic, ...] = wire(array(StateReadTopic))


@nested
class SummaryOfPartition:
    partition: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    state_epoch: int = wire(int32)
    leader_epoch: int = wire(int32)
    start_offset: int = wire(int64)
    delivery_complete_count: int = wire(int32, "1+", default=-1, ignorable=True)


@nested
class SummaryOfTopic:
    topic_id: UUID = wire(uuid)
    partitions: tuple[SummaryOfPartition, ...] = wire(array(SummaryOfPartition))


@message(api_key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse:
    results: tuple[SummaryOfTopic, ...] = wire(array(SummaryOfTopic))
