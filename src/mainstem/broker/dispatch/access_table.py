"""The operations that clients must be allowed for each API, as in Kafka: one row per API, so that no route is
forgotten.

A row says who checks. `Whole`: one check decides the request, which is refused before its handler sees it. `Each`: a
check per item of the request; the handler gets those that are allowed, and the others are refused. `Inside`: the
handler checks, since the answer depends on more than that; the row's text says what. `Open`: nothing is checked.

The authorizer itself is asked by `guard.py` and by the handlers. A route without a row is not served where there is an
authorizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mainstem.broker.broker import Broker
from mainstem.protocol.error_codes import ErrorCode
from mainstem.security.acls.acl import CLUSTER_NAME, Operation, ResourceKind

CODES: Mapping[ResourceKind, ErrorCode] = {
    ResourceKind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceKind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceKind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceKind.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceKind.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The error of a request that may not use a resource of a kind."""


class Resource(NamedTuple):
    kind: ResourceKind
    name: str


class Open(NamedTuple):
    """Every connected client may ask."""

    why: str


class Inside(NamedTuple):
    """The handler checks."""

    what: str


class Whole(NamedTuple):
    operation: Operation
    resource_of: Callable[[Any], Resource]
    """The resource that a request is about."""


class Each(NamedTuple):
    operation: Operation
    items: str
    """The field of the request with its items."""
    resource_of: Callable[[Broker, Any, int], Resource | None]
    """The resource that an item is about, in a version; None: the handler refuses it for another reason."""
    partitions: str = ""
    """The field of an item with its partitions, if there can be many."""
    or_on_cluster: Operation | None = None
    """The operation on the cluster that is enough for all items."""


class Both(NamedTuple):
    whole: Whole
    each: Each
    also: Whole | None = None
    """Checked behind `whole`, where there is one."""


Access = Open | Inside | Whole | Each | Both


def _cluster(request: Any) -> Resource:
    return Resource(ResourceKind.CLUSTER, CLUSTER_NAME)


def _group(request: Any) -> Resource:
    return Resource(ResourceKind.GROUP, request.group_id)


def _sharing_group(request: Any) -> Resource:
    return Resource(ResourceKind.GROUP, request.group_id or "")


def _group_item(broker: Broker, item: str, version: int) -> Resource:
    return Resource(ResourceKind.GROUP, item)


def _group_described(broker: Broker, item: Any, version: int) -> Resource:
    return Resource(ResourceKind.GROUP, item.group_id)


def _transactional(request: Any) -> Resource:
    return Resource(ResourceKind.TRANSACTIONAL_ID, request.transactional_id)


def _transactional_item(broker: Broker, item: str, version: int) -> Resource:
    return Resource(ResourceKind.TRANSACTIONAL_ID, item)


def _topic_item(broker: Broker, item: Any, version: int) -> Resource:
    return Resource(ResourceKind.TOPIC, item.name)


def _topic_of_epoch(broker: Broker, item: Any, version: int) -> Resource:
    return Resource(ResourceKind.TOPIC, item.topic)


COMMIT_BY_ID_FROM = 10


def _committed(broker: Broker, item: Any, version: int) -> Resource | None:
    if version < COMMIT_BY_ID_FROM:
        return Resource(ResourceKind.TOPIC, item.name)
    topic = broker.metadata.topic_by_id(item.topic_id)
    return None if topic is None else Resource(ResourceKind.TOPIC, topic.name)


_CONFIGURED = {2: ResourceKind.TOPIC, 4: ResourceKind.CLUSTER, 8: ResourceKind.CLUSTER, 16: ResourceKind.CLUSTER,
               32: ResourceKind.GROUP}  # fmt: skip
"""Kafka's types of what has configs: topic, broker, a broker's loggers, client metrics, consumer group."""


def _configured(broker: Broker, item: Any, version: int) -> Resource | None:
    kind = _CONFIGURED.get(item.resource_type)
    if kind is None:
        return None
    return Resource(kind, CLUSTER_NAME if kind is ResourceKind.CLUSTER else item.resource_name)


ACCESS: Mapping[int, Access] = {
    0: Inside("WRITE on each topic"),
    1: Inside("READ on each topic, in each round of a fetch that waits"),
    2: Each(Operation.DESCRIBE, "topics", _topic_item, "partitions"),
    3: Inside("DESCRIBE on each topic; CREATE on the topic or the cluster to create it"),
    8: Both(Whole(Operation.READ, _group), Each(Operation.READ, "topics", _committed, "partitions")),
    9: Inside("DESCRIBE on the group, and on each topic"),
    10: Inside("DESCRIBE on the group or the transactional id"),
    11: Whole(Operation.READ, _group),
    12: Whole(Operation.READ, _group),
    13: Whole(Operation.READ, _group),
    14: Whole(Operation.READ, _group),
    15: Each(Operation.DESCRIBE, "groups", _group_item),
    16: Inside("DESCRIBE on the cluster, or on each group"),
    17: Open("clients say how they will authenticate"),
    18: Open("clients learn how to speak"),
    19: Inside("CREATE on the cluster, or on each topic; DESCRIBE_CONFIGS on the topic to see its configs"),
    20: Inside("DELETE on each topic"),
    21: Each(Operation.DELETE, "topics", _topic_item, "partitions"),
    22: Inside("WRITE on the transactional id; without one IDEMPOTENT_WRITE on the cluster, or WRITE on some topic"),
    23: Each(Operation.DESCRIBE, "topics", _topic_of_epoch, "partitions", Operation.CLUSTER_ACTION),
    24: Inside("WRITE on the transactional id and on each topic; from version 4 on CLUSTER_ACTION on the cluster"),
    25: Inside("WRITE on the transactional id, READ on the group"),
    26: Inside("WRITE on the transactional id"),
    27: Inside("ALTER or CLUSTER_ACTION on the cluster"),
    28: Both(
        Whole(Operation.WRITE, _transactional),
        Each(Operation.READ, "topics", _topic_item, "partitions"),
        Whole(Operation.READ, _group),
    ),
    29: Whole(Operation.DESCRIBE, _cluster),
    30: Whole(Operation.ALTER, _cluster),
    31: Whole(Operation.ALTER, _cluster),
    32: Each(Operation.DESCRIBE_CONFIGS, "resources", _configured),
    33: Each(Operation.ALTER_CONFIGS, "resources", _configured),
    34: Inside("ALTER on the cluster"),  # its response has other items than its request
    35: Whole(Operation.DESCRIBE, _cluster),
    36: Open("clients authenticate"),
    37: Each(Operation.ALTER, "topics", _topic_item),
    38: Inside("CREATE_TOKENS on another user to make tokens for it"),
    39: Inside("the token's owner and its renewers"),
    40: Inside("the token's owner and its renewers"),
    41: Inside("DESCRIBE on tokens of others, or DESCRIBE_TOKENS on their owners"),
    42: Each(Operation.DELETE, "groups_names", _group_item),
    43: Whole(Operation.ALTER, _cluster),
    44: Each(Operation.ALTER_CONFIGS, "resources", _configured),
    45: Whole(Operation.ALTER, _cluster),
    46: Whole(Operation.DESCRIBE, _cluster),
    47: Whole(Operation.DELETE, _group),  # and READ on each topic: its handler checks them
    48: Whole(Operation.DESCRIBE_CONFIGS, _cluster),
    49: Whole(Operation.ALTER_CONFIGS, _cluster),
    50: Inside("DESCRIBE on the cluster"),  # its response has an error for the whole, and for each user
    51: Inside("ALTER on the cluster"),  # its request has two lists
    55: Whole(Operation.DESCRIBE, _cluster),
    57: Whole(Operation.ALTER, _cluster),
    60: Inside("nothing; DESCRIBE on the cluster to see what is allowed on it"),
    64: Whole(Operation.ALTER, _cluster),
    61: Each(Operation.READ, "topics", _topic_item, "partition_indexes"),
    65: Each(Operation.DESCRIBE, "transactional_ids", _transactional_item),
    66: Inside("DESCRIBE on each transactional id"),
    68: Whole(Operation.READ, _group),  # and DESCRIBE on each topic: its handler checks them
    69: Each(Operation.DESCRIBE, "group_ids", _group_item),  # and DESCRIBE on their topics: its handler checks them
    71: Open("clients learn what to tell of themselves"),
    72: Open("clients tell what they were asked for, within bounds"),
    74: Whole(Operation.DESCRIBE_CONFIGS, _cluster),
    75: Inside("DESCRIBE on each topic"),
    80: Whole(Operation.ALTER, _cluster),
    81: Whole(Operation.ALTER, _cluster),
    76: Whole(Operation.READ, _group),  # and DESCRIBE on each topic: its handler checks them
    77: Each(Operation.DESCRIBE, "group_ids", _group_item),  # and DESCRIBE on their topics: its handler checks them
    88: Whole(Operation.READ, _group),  # and DESCRIBE on each topic, CREATE of internal ones: its handler checks them
    89: Each(Operation.DESCRIBE, "group_ids", _group_item),  # and DESCRIBE on their topics: its handler checks them
    78: Whole(Operation.READ, _sharing_group),  # and READ on each topic: its handler checks them
    79: Whole(Operation.READ, _sharing_group),  # and READ on each topic: its handler checks them
    83: Whole(Operation.CLUSTER_ACTION, _cluster),
    84: Whole(Operation.CLUSTER_ACTION, _cluster),
    85: Whole(Operation.CLUSTER_ACTION, _cluster),
    86: Whole(Operation.CLUSTER_ACTION, _cluster),
    87: Whole(Operation.CLUSTER_ACTION, _cluster),
    90: Each(Operation.DESCRIBE, "groups", _group_described),  # and DESCRIBE on topics: its handler checks them
    91: Whole(Operation.READ, _group),  # and READ on each topic: its handler checks them
    92: Whole(Operation.DELETE, _group),  # and READ on each topic: its handler checks them
}  # fmt: skip
"""By API key. Rows of APIs that this node does not serve are for those that it will."""
