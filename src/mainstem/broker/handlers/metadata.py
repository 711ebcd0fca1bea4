"""Metadata: the nodes, and the requested topics, of which unknown ones may be created.

The handler first finds the entries of the answer, then encodes them; both yield to the event loop every millisecond
or so, however large the request.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from mainstem.broker.admin.topic_admin import is_internal
from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.broker.topics.topic_descriptions import Entry, Operations, TopicDescriptions
from mainstem.errors import LeaderMissing, MainstemError
from mainstem.model import FACTOR_OF_CLUSTER, NodeRole, Topic, nodes_at
from mainstem.nameserver.errors import MetadataUnavailable, TopicExists
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.metadata import (
    AUTHORIZED_OPERATIONS_UNKNOWN,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from mainstem.protocol.schema import ZERO_UUID
from mainstem.security.acls.acl import CLUSTER_NAME, Operation, ResourceKind
from mainstem.security.acls.authorizer import EVERYTHING, SessionVerdicts
from mainstem.security.audit.audit_log import of_session
from mainstem.security.audit.config import DENIED

NAMES_PER_TURN = 500
"""Topics looked up within one turn of the event loop: less than a millisecond."""

UNKNOWN_COSTS_NAMES = 20
"""A name without a topic takes as long as so many others: it is checked as if it were to be created."""

TOPICS_CREATED_MAX = 100
"""Topics created by one request. A client asks again for topics that are still unknown, so the rest is only
delayed."""

_ASK_BY_ID_FROM = 12
_EMPTY_IS_ALL_UNTIL = 0


async def handle(broker: Broker, request: MetadataRequest, call: RequestContext) -> MetadataResponse:
    everything = request.topics is None or (not request.topics and call.version <= _EMPTY_IS_ALL_UNTIL)
    operations: Operations = AUTHORIZED_OPERATIONS_UNKNOWN
    if request.include_topic_authorized_operations:
        operations = partial(_operations, broker, call)
        if broker.authorizer is None:
            operations = EVERYTHING.operations(ResourceKind.TOPIC, "")
    entries: Sequence[Entry] | None = None
    if not everything:
        entries = await _named_topics(broker, request, call, operations)
    elif broker.authorizer is not None:
        entries = await _topics_shown(broker, call)
    alive = {node.node_id for node in nodes_at(broker.cluster.alive_nodes(), call.session.listener)}
    apart = frozenset(node.node_id for node in broker.metadata.nodes() if NodeRole.BROKER not in node.roles)
    if entries is None:
        assert isinstance(operations, int), "the same for all topics, where nobody judges"
        topics = await broker.all_topics.encode(
            broker.metadata, broker.leadership, alive, call.version, operations, broker.turns, broker.routing, apart
        )
    else:
        topics = await TopicDescriptions(
            broker.leadership, alive, call.version, operations, broker.turns, broker.routing, apart
        ).encode(entries)
    cluster_operations = AUTHORIZED_OPERATIONS_UNKNOWN
    if request.include_cluster_authorized_operations:
        cluster_operations = operations_on_cluster(broker, call)
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes_at(broker.broker_list.nodes(call.session.software_name), call.session.listener)
        ),
        cluster_id=broker.metadata.cluster_id(),
        controller_id=controller_id(broker, alive),
        topics=topics,
        cluster_authorized_operations=cluster_operations,
    )


def operations_on_cluster(broker: Broker, call: RequestContext) -> int:
    """The operations that the client is allowed on the cluster, a bit each. As in Kafka, whoever may not describe the
    cluster is not told."""
    verdicts = broker.verdicts(call.session)
    if not verdicts.allows_on_cluster(Operation.DESCRIBE):
        return 0
    return verdicts.operations(ResourceKind.CLUSTER, CLUSTER_NAME)


def _operations(broker: Broker, call: RequestContext, topic: str) -> int:
    return broker.verdicts(call.session).operations(ResourceKind.TOPIC, topic)


async def _topics_shown(broker: Broker, call: RequestContext) -> list[Topic]:
    """All topics that the client may describe."""
    shown = []
    pace = broker.turns.pace(NAMES_PER_TURN)
    for topic in list(broker.metadata.topics()):
        await pace.step()
        if broker.verdicts(call.session).allows(Operation.DESCRIBE, ResourceKind.TOPIC, topic.name):
            shown.append(topic)
    return shown


def controller_id(broker: Broker, alive: Container[int]) -> int:
    """The node that clients send changes of topics to: the metadata's leader. While none is known it is this
    node: any node passes changes on and waits for a leader."""
    leader = broker.cluster.metadata_leader
    return leader if leader in alive else broker.node_id


async def _named_topics(
    broker: Broker, request: MetadataRequest, call: RequestContext, operations: Operations
) -> Sequence[Entry]:
    entries: list[Entry] = []
    creatable: dict[int, str] = {}
    """Names to create, with the places of their entries."""
    creations_max = TOPICS_CREATED_MAX if request.allow_auto_topic_creation else 0
    if not broker.config.auto_create_topics:
        creations_max = 0
    pace = broker.turns.pace(NAMES_PER_TURN)
    seen: set[str | UUID | tuple[str, UUID] | None] = set()
    """Names or ids as they are in the request, which keeps them anyway: making a hundred thousand pairs of
    them would have one turn of the loop free them, in ten milliseconds."""
    for asked in request.topics or ():
        await pace.step()
        who: str | UUID | tuple[str, UUID] | None = asked.name
        if asked.topic_id != ZERO_UUID:
            who = asked.topic_id if asked.name is None else (asked.name, asked.topic_id)
        if who in seen:
            continue
        seen.add(who)
        if asked.name is None or asked.topic_id != ZERO_UUID:
            entries.append(_by_id(broker, asked, call))
            continue
        verdicts = broker.verdicts(call.session)
        if not verdicts.allows(Operation.DESCRIBE, ResourceKind.TOPIC, asked.name):
            entries.append(_refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, asked.name))
            if broker.audit is not None:  # lists leave topics out; this one was asked for
                topic = f"topic:{asked.name}"
                broker.audit.add(of_session(DENIED, call.session, call.client_id, "DESCRIBE", topic, DENIED))
            continue
        found: Topic | ErrorCode | None = broker.metadata.topic(asked.name)
        if found is None and creations_max and not _may_create(verdicts, asked.name):
            found = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif found is None and len(creatable) < creations_max and not is_internal(broker, asked.name):
            creatable[len(entries)] = asked.name
            found = ErrorCode.LEADER_NOT_AVAILABLE
        elif found is None:
            found = await unknown_topic(broker, asked.name)
            await pace.step(UNKNOWN_COSTS_NAMES)
        entries.append(found if isinstance(found, Topic) else _missing(found, asked.name, operations))
    if creatable:
        made = await broker.auto_creation.topics(list(creatable.values()))
        for place, name in creatable.items():
            outcome = _told(broker, name, made[name])
            entries[place] = outcome if isinstance(outcome, Topic) else _missing(outcome, name, operations)
    return entries


def _may_create(verdicts: SessionVerdicts, name: str) -> bool:
    return verdicts.allows_on_cluster(Operation.CREATE) or verdicts.allows(Operation.CREATE, ResourceKind.TOPIC, name)


async def unknown_topic(broker: Broker, name: str) -> Topic | ErrorCode:
    """The answer for a topic that does not exist, and is not created."""
    try:
        # an illegal name is told apart from one that merely does not exist; no change that is under way is waited for
        await broker.metadata_admin.create_topic(name, 1, FACTOR_OF_CLUSTER, {}, validate_only=True)
    except MainstemError as refusal:
        return _told(broker, name, refusal)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _told(broker: Broker, name: str, outcome: Topic | MainstemError) -> Topic | ErrorCode:
    """The outcome of a creation, for a client that asked for the topic."""
    if isinstance(outcome, MetadataUnavailable | LeaderMissing):
        return ErrorCode.LEADER_NOT_AVAILABLE  # as for a topic that is being created: clients ask again
    if isinstance(outcome, TopicExists):  # another node created it meanwhile
        return broker.metadata.topic(name) or ErrorCode.LEADER_NOT_AVAILABLE
    return error_of_refusal(outcome) if isinstance(outcome, MainstemError) else outcome


def _by_id(broker: Broker, asked: MetadataRequestTopic, call: RequestContext) -> Entry:
    if call.version < _ASK_BY_ID_FROM:
        return _refused(ErrorCode.INVALID_REQUEST, asked.name or "")
    topic = broker.metadata.topic_by_id(asked.topic_id)
    if topic is None:
        return MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id, partitions=()
        )
    if not broker.verdicts(call.session).allows(Operation.DESCRIBE, ResourceKind.TOPIC, topic.name):
        return MetadataResponseTopic(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=None, topic_id=asked.topic_id, partitions=()
        )
    return topic


def _missing(error: ErrorCode, name: str, operations: Operations) -> MetadataResponseTopic:
    """A topic that is not there. As in Kafka, whoever may know that is told what it could do with the topic."""
    refused = _refused(error, name)
    if error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return refused
    allowed = operations if isinstance(operations, int) else operations(name)
    return replace(refused, topic_authorized_operations=allowed)


def _refused(error: ErrorCode, name: str) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error, name=name, partitions=())
