"""ShareAcknowledge: a member of a share group says what became of records that it acquired."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.redirects import Leaders
from mainstem.broker.request_context import RequestContext
from mainstem.broker.share_groups.sessions import FINAL_EPOCH, INITIAL_EPOCH
from mainstem.broker.share_serving.share_requests import (
    ShareRows,
    acknowledge,
    asked,
    end_session,
    endpoints,
    leader_of,
    member_of,
)
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import (
    AcknowledgedPartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)


async def handle(broker: Broker, request: ShareAcknowledgeRequest, call: RequestContext) -> ShareAcknowledgeResponse:
    member = member_of(request)
    if isinstance(member, ErrorCode):
        return _refused(member)
    epoch = request.share_session_epoch
    if epoch == INITIAL_EPOCH:  # what a new session has acquired is nothing
        return _refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    session = broker.shares.sessions.enter(member, epoch, broker.clock.now_ms(), call.session.connection_id)
    if isinstance(session, ErrorCode):
        return _refused(session)
    rows = ShareRows()
    await acknowledge(broker, call, member, asked(request), rows, renews=request.is_renew_ack)
    if epoch == FINAL_EPOCH:
        await end_session(broker, member, session)
    return _answer(broker, call, member.group_id, rows)


def _refused(code: ErrorCode) -> ShareAcknowledgeResponse:
    return ShareAcknowledgeResponse(error_code=code, error_message=code.message, responses=())


def _answer(broker: Broker, call: RequestContext, group_id: str, rows: ShareRows) -> ShareAcknowledgeResponse:
    leaders = Leaders(broker, call.session.listener)
    topics = []
    for topic_id, partitions in rows.by_topic.items():
        answers = tuple(
            AcknowledgedPartition(
                partition_index=index,
                error_code=row.acknowledge_error,
                error_message=None if row.acknowledge_error is ErrorCode.NONE else row.acknowledge_error.message,
                current_leader=leader_of(leaders, broker, topic_id, index, row),
            )
            for index, row in partitions.items()
        )
        topics.append(ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=answers))
    return ShareAcknowledgeResponse(
        error_code=ErrorCode.NONE,
        acquisition_lock_timeout_ms=broker.shares.config_of(group_id).lock_duration_ms,
        responses=tuple(topics),
        node_endpoints=endpoints(leaders),
    )
