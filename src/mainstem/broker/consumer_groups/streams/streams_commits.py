"""Whether a member of a streams group may commit and fetch offsets, by its epoch."""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.broker.consumer_groups.modern.described import MEMBER_EPOCHS_FROM
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroup
from mainstem.broker.consumer_groups.streams.streams_member import StreamsMember
from mainstem.broker.consumer_groups.streams.tasks import TaskId
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_commit import OffsetCommitRequest
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from mainstem.protocol.messages.producer_transactions import TxnOffsetCommitRequest


def commit_error(group: StreamsGroup, request: OffsetCommitRequest, version: int) -> ErrorCode:
    """Whether a member, or an administrator while there are none, may commit."""
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and group.empty:
        return ErrorCode.NONE
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if version < MEMBER_EPOCHS_FROM:
        return ErrorCode.UNSUPPORTED_VERSION
    rows = ((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
    known = epoch == member.current.epoch or _had_then(group, member, epoch, rows)
    return ErrorCode.NONE if known else ErrorCode.STALE_MEMBER_EPOCH


def txn_commit_error(group: StreamsGroup, request: TxnOffsetCommitRequest) -> ErrorCode:
    """Whether the member that a transactional producer names may commit; older producers name none."""
    epoch = request.generation_id
    if epoch < 0 and (group.empty or (not request.member_id and request.group_instance_id is None)):
        return ErrorCode.NONE
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    rows = ((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
    known = epoch == member.current.epoch or _had_then(group, member, epoch, rows)
    return ErrorCode.NONE if known else ErrorCode.ILLEGAL_GENERATION


def _had_then(group: StreamsGroup, member: StreamsMember, epoch: int, rows: Iterable[tuple[str, int]]) -> bool:
    """Whether a member runs the tasks that read these partitions, and did so at an earlier epoch of its own already:
    then the commit is its own, made before it heard of the present epoch."""
    if group.topology is None or not 0 < epoch < member.current.epoch:
        return False
    readers: dict[str, list[str]] = {}
    for part in group.topology.subtopologies:
        for topic in {*part.source_topics, *(info.name for info in part.repartition_source_topics)}:
            readers.setdefault(topic, []).append(part.subtopology_id)
    since = member.current.since
    return all(
        any(since.get(TaskId(subtopology, partition), epoch + 1) <= epoch for subtopology in readers.get(topic, ()))
        for topic, partition in rows
    )


def fetch_error(group: StreamsGroup, request: OffsetFetchRequestGroup) -> ErrorCode:
    """Whether the sender, a member if it says so, may fetch offsets."""
    if request.member_id is None and request.member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(request.member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if request.member_epoch == member.current.epoch else ErrorCode.STALE_MEMBER_EPOCH
