"""Answers name the leader where a client asks this node for a partition that another node leads: so clients of
current versions need not ask for metadata first.

The kernel writes Produce and Fetch answers and knows of no other node. The codec takes apart an answer with such a
partition, which is rare, and writes it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mainstem.broker.broker import Broker
from mainstem.broker.partitions import find_topic
from mainstem.model import Buffer, Node, Topic, nodes_at
from mainstem.ports import Scattered, joined
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.headers import parse_response_header, response_frame
from mainstem.protocol.messages import fetch, produce
from mainstem.protocol.schema import declaration_of

PARTITIONS_MAX = 500
"""Partitions in an answer that is written again: some milliseconds. Clients of larger ones ask for metadata
instead."""

_LENGTH_BYTES = 4
_LED_BY_OTHERS = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})

R = TypeVar("R", fetch.FetchResponse, produce.ProduceResponse)


def redirected(
    broker: Broker,
    response_class: type[R],
    version: int,
    frame: Sequence[Buffer | Scattered],
    partitions: int,
    listener: str,
) -> list[Buffer] | None:
    """The frame of a Produce or Fetch response of about `partitions` partitions, with the leaders of those that this
    node does not lead, or not in the epoch that the client knows: it refuses them, or has passed on what the client
    sent. None where these are too many; `frame` is as it was then. `listener` is the one that the client came by."""
    if partitions > PARTITIONS_MAX:
        return None
    encoded = memoryview(joined(frame))[_LENGTH_BYTES:]
    api_key = declaration_of(response_class).api_key
    assert api_key is not None, "a response has the key of its API"
    correlation_id, position = parse_response_header(encoded, api_key, version)
    response = codec.read(response_class, version, encoded, position)
    leaders = Leaders(broker, listener)
    if isinstance(response, fetch.FetchResponse):
        named: Any = _fetch_response(leaders, response)
    else:
        named = _produce_response(leaders, response)
    return response_frame(correlation_id, api_key, version, codec.write_parts(named, version))


class Leaders:
    """The leaders that one answer names, and their addresses. Clients are sent only to nodes that are known
    to live."""

    def __init__(self, broker: Broker, listener: str) -> None:
        self._broker = broker
        self._alive = {node.node_id: node for node in nodes_at(broker.cluster.alive_nodes(), listener)}
        self.named: dict[int, Node] = {}

    def topic(self, name: str, topic_id: Any) -> Topic | None:
        found = find_topic(self._broker, name or topic_id)
        return None if isinstance(found, ErrorCode) else found

    def of(self, topic: Topic | None, partition: int, error_code: int, *, taken: bool = False) -> dict[str, int]:
        """The fields of a `LeaderIdAndEpoch`; none where no leader is known. `taken`: also where there is no error, as
        what the client sent was passed on."""
        if topic is None or not (error_code in _LED_BY_OTHERS or (taken and error_code == ErrorCode.NONE)):
            return {}
        leadership = self._broker.leadership
        queue_id = topic.queue_id(partition)
        if error_code == ErrorCode.NONE and leadership.serves_here(queue_id):
            return {}
        replicas = leadership.replicas(leadership.group_of(queue_id))
        node = self._alive.get(self._broker.routing.broker_of(queue_id))
        if node is None or (node.node_id == self._broker.node_id and not leadership.serves_here(queue_id)):
            return {}
        self.named[node.node_id] = node
        return {"leader_id": node.node_id, "leader_epoch": replicas.leader_epoch}


def _produce_response(leaders: Leaders, response: produce.ProduceResponse) -> produce.ProduceResponse:
    topics = []
    for answered in response.responses:
        topic = leaders.topic(answered.name, answered.topic_id)
        partitions = tuple(
            replace(
                item,
                current_leader=produce.LeaderIdAndEpoch(**leaders.of(topic, item.index, item.error_code, taken=True)),
            )
            for item in answered.partition_responses
        )
        topics.append(replace(answered, partition_responses=partitions))
    endpoints = tuple(
        produce.NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
        for node in leaders.named.values()
    )
    return replace(response, responses=tuple(topics), node_endpoints=endpoints)


def _fetch_response(leaders: Leaders, response: fetch.FetchResponse) -> fetch.FetchResponse:
    topics = []
    for answered in response.responses:
        topic = leaders.topic(answered.topic, answered.topic_id)
        partitions = tuple(
            replace(
                item,
                current_leader=fetch.LeaderIdAndEpoch(**leaders.of(topic, item.partition_index, item.error_code)),
            )
            for item in answered.partitions
        )
        topics.append(replace(answered, partitions=partitions))
    endpoints = tuple(
        fetch.NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
        for node in leaders.named.values()
    )
    return replace(response, responses=tuple(topics), node_endpoints=endpoints)
