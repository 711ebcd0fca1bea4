"""ShareFetch and ShareAcknowledge have this in common: the session of a request, its acknowledgements, the rows of its
answer.

A partition whose state is being loaded has nothing to give out yet, and takes no acknowledgement.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from mainstem.broker.broker import Broker
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.partitions import find_partition
from mainstem.broker.redirects import Leaders
from mainstem.broker.request_context import RequestContext
from mainstem.broker.share_groups.records import SharedPartition, WindowKey
from mainstem.broker.share_groups.sessions import ShareMember, ShareSession
from mainstem.broker.share_groups.share_partition import Acquired
from mainstem.errors import MainstemError
from mainstem.model import Buffer
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import (
    REJECT,
    RENEW,
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareEndpoint,
    ShareFetchRequest,
    ShareLeader,
)
from mainstem.security.acls.acl import Operation, ResourceKind

log = logging.getLogger(__name__)

_ONE_FOR_ALL = 1
"""A batch of acknowledgements has one type for all of its offsets, or one for each."""

PARTITIONS_PER_TURN = 100
"""Partitions looked at within one turn of the event loop: about a millisecond."""


class Acknowledgements(NamedTuple):
    partition: SharedPartition
    batches: Sequence[AcknowledgementBatch]


@dataclass(slots=True)
class ShareRow:
    """The answer about one partition."""

    error: ErrorCode = ErrorCode.NONE
    acknowledge_error: ErrorCode = ErrorCode.NONE
    records: tuple[Buffer, ...] = ()
    acquired: Sequence[Acquired] = ()


@dataclass(slots=True)
class ShareRows:
    """The partitions of an answer, by topic."""

    by_topic: dict[UUID, dict[int, ShareRow]] = field(default_factory=dict)

    def of(self, partition: SharedPartition) -> ShareRow:
        return self.by_topic.setdefault(partition.topic_id, {}).setdefault(partition.partition, ShareRow())


def member_of(request: ShareFetchRequest | ShareAcknowledgeRequest) -> ShareMember | ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if not request.member_id:
        return ErrorCode.INVALID_REQUEST
    return ShareMember(request.group_id, request.member_id)


def asked(request: ShareFetchRequest | ShareAcknowledgeRequest) -> Iterator[Acknowledgements]:
    """The partitions that a request names, with what it acknowledges of them."""
    for topic in request.topics:
        for partition in topic.partitions:
            named = SharedPartition(topic.topic_id, partition.partition_index)
            yield Acknowledgements(named, partition.acknowledgement_batches)


def window_of(member: ShareMember, partition: SharedPartition) -> WindowKey:
    return WindowKey(member.group_id, partition.topic_id, partition.partition)


def may_read(broker: Broker, call: RequestContext, topic_id: UUID) -> ErrorCode:
    """Whether a client may read a topic; a topic that does not exist is unknown to everybody."""
    topic = broker.metadata.topic_by_id(topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not broker.verdicts(call.session).allows(Operation.READ, ResourceKind.TOPIC, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def error_of(refusal: CoordinatorRefusal) -> ErrorCode:
    """The error for a client whose partition's state is not served here now: it is to try again."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if refusal.code is not ErrorCode.UNKNOWN_SERVER_ERROR else refusal.code


async def acknowledge(
    broker: Broker,
    call: RequestContext,
    member: ShareMember,
    all_of: Iterable[Acknowledgements],
    rows: ShareRows,
    *,
    renews: bool,
) -> None:
    """Take what a request acknowledges; each partition by itself."""
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    for partition, batches in all_of:
        await pace.step(1 + len(batches))
        if batches:
            row = rows.of(partition)
            row.acknowledge_error = await _acknowledge_one(broker, call, member, partition, batches, renews=renews)


async def _acknowledge_one(
    broker: Broker,
    call: RequestContext,
    member: ShareMember,
    partition: SharedPartition,
    batches: Sequence[AcknowledgementBatch],
    *,
    renews: bool,
) -> ErrorCode:
    if not all(_is_sound(batch, RENEW if renews else REJECT) for batch in batches):
        return ErrorCode.INVALID_REQUEST
    code = may_read(broker, call, partition.topic_id)
    if code is not ErrorCode.NONE:
        return code
    found = await find_partition(broker, partition.topic_id, partition.partition)
    if isinstance(found, ErrorCode):
        return found
    try:
        return await broker.shares.acknowledge(found.queue_id, window_of(member, partition), member.member_id, batches)
    except CoordinatorRefusal as refusal:
        return error_of(refusal)


def _is_sound(batch: AcknowledgementBatch, type_max: int) -> bool:
    types, count = batch.acknowledge_types, batch.last_offset - batch.first_offset + 1
    return (
        0 <= batch.first_offset <= batch.last_offset
        and len(types) in (_ONE_FOR_ALL, count)
        and all(0 <= kind <= type_max for kind in types)
    )


async def end_session(broker: Broker, member: ShareMember, session: ShareSession) -> None:
    """A member closes its session: others get what it has. A partition that clients read from another node by now is
    left alone: what the member has of it may come from there."""
    broker.shares.sessions.close(member)
    queues = []
    for partition in session.followed:
        topic = broker.metadata.topic_by_id(partition.topic_id)
        if topic is None:
            continue
        queue_id = topic.queue_id(partition.partition)
        if broker.routing.serves_here(queue_id):
            queues.append((queue_id, window_of(member, partition)))
    await broker.shares.release(member, queues)


async def end_sessions_of(broker: Broker, sessions: Iterable[tuple[ShareMember, ShareSession]]) -> None:
    """The connection of these sessions has ended: others get what their members have, without waiting for locks."""
    for member, session in sessions:
        try:
            await end_session(broker, member, session)
        except MainstemError as error:
            log.debug("share group %s: records of member %s wait for their locks: %s", *member, error)


def leader_of(leaders: Leaders, broker: Broker, topic_id: UUID, partition: int, row: ShareRow) -> ShareLeader:
    """The leader that an answer names where this node is not it."""
    code = row.error if row.error is not ErrorCode.NONE else row.acknowledge_error
    return ShareLeader(**leaders.of(broker.metadata.topic_by_id(topic_id), partition, code))


def endpoints(leaders: Leaders) -> tuple[ShareEndpoint, ...]:
    return tuple(
        ShareEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
        for node in leaders.named.values()
    )
