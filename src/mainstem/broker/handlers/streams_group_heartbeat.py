"""StreamsGroupHeartbeat. Topics that the client may not describe are refused. Internal topics that the application
lacks are made before the answer, which still names them as missing: the next heartbeat finds them. If they cannot be
made, the answer says why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mainstem.broker.admin.group_visibility import NAMES_PER_TURN, may_describe_all
from mainstem.broker.admin.topic_admin import create_topics, is_internal
from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.streams.streams_heartbeat import refused_streams
from mainstem.broker.consumer_groups.streams.topology import ApplicationTopic, Status, told, topics_of
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.model import NewTopic
from mainstem.nameserver.errors import InvalidTopicName, TopicExists
from mainstem.nameserver.state.topic_table import check_topic_name
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsTopology,
)
from mainstem.security.acls.acl import Operation, ResourceKind


async def handle(
    broker: Broker, request: StreamsGroupHeartbeatRequest, call: RequestContext
) -> StreamsGroupHeartbeatResponse:
    if request.topology is not None:
        refusal = await _judge(broker, request.topology, call)
        if refusal is not None:
            return refusal
    answer = await broker.groups.membership.streams_heartbeat(request, call)
    if not answer.to_make:
        return answer.response
    troubles = await _make(broker, answer.to_make, call)
    return _with_troubles(answer.response, troubles) if troubles else answer.response


async def _judge(
    broker: Broker, topology: StreamsTopology, call: RequestContext
) -> StreamsGroupHeartbeatResponse | None:
    """Why the client may not run this topology; None: it may."""
    names = _names(topology)
    pace = broker.turns.pace(NAMES_PER_TURN)
    for name in names:
        await pace.step()
        if is_internal(broker, name):
            why = f"topic {name!r} is internal: an application can neither read nor own it"
            return refused_streams(ErrorCode.STREAMS_INVALID_TOPOLOGY, why)
        try:
            check_topic_name(name)
        except InvalidTopicName as fault:
            return refused_streams(ErrorCode.STREAMS_INVALID_TOPOLOGY, str(fault))
    if not await may_describe_all(broker, call, names):
        return refused_streams(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return None


def _names(topology: StreamsTopology) -> list[str]:
    written = {name for part in topology.subtopologies for name in part.repartition_sink_topics}
    return sorted(topics_of(topology) | written)


async def _make(broker: Broker, topics: Iterable[ApplicationTopic], call: RequestContext) -> list[str]:
    """Create internal topics; returns why some could not be made."""
    verdicts = broker.verdicts(call.session)
    anywhere = verdicts.allows_on_cluster(Operation.CREATE)
    mutations = broker.mutations(call.session, call.client_id, strict=False)
    troubles: list[str] = []
    forbidden: list[str] = []
    wanted: list[NewTopic] = []
    for info, partitions in topics:
        if not anywhere and not verdicts.allows(Operation.CREATE, ResourceKind.TOPIC, info.name):
            forbidden.append(info.name)
            continue
        copies = info.replication_factor if info.replication_factor > 0 else broker.config.default_replication_factor
        configs = {config.key: config.value for config in info.topic_configs}
        mutations.take(partitions)
        wanted.append(NewTopic(info.name, partitions, copies, configs))
    if forbidden:
        troubles.append(f"the client may not CREATE the topics {told(sorted(forbidden))}")
    try:
        made = await create_topics(broker, wanted) if wanted else []
    except MainstemError as refusal:
        return [*troubles, str(refusal)]
    for asked, outcome in zip(wanted, made, strict=True):
        if isinstance(outcome, MainstemError) and not isinstance(outcome, TopicExists):
            troubles.append(f"{asked.name}: {outcome}")
    return troubles


def _with_troubles(response: StreamsGroupHeartbeatResponse, troubles: list[str]) -> StreamsGroupHeartbeatResponse:
    """The answer, with what stood in the way of the missing topics."""
    return replace(
        response,
        status=tuple(
            replace(status, status_detail=f"{status.status_detail}; {told(troubles)}")
            if status.status_code == Status.MISSING_INTERNAL_TOPICS
            else status
            for status in response.status or ()
        ),
    )
