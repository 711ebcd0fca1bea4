"""The questions of nodes about the lag of groups: to the coordinator of a group about the whole of it, to the brokers
of its queues about where these end."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.group_lag import GroupLag
from mainstem.rpc.messages.brokers import QueueId
from mainstem.rpc.wire.method import Method

QUEUES_MAX = 1_000
CLIENTS_MAX = 1_000


class AskLagFacts(msgspec.Struct, frozen=True):
    queues: Annotated[list[tuple[QueueId, int]], msgspec.Meta(max_length=QUEUES_MAX)]
    """With the offset of the message whose time is asked for; -1: none is."""
    clients: Annotated[list[tuple[str, str]], msgspec.Meta(max_length=CLIENTS_MAX)]
    """Client ids with their addresses: does a quota hold them back?"""


class LagFactsTold(msgspec.Struct, frozen=True):
    """In the order of the questions."""

    queues: list[tuple[int, int, int | None] | None]
    """Log start, end, and the message's time in ms; None: the node does not have the queue."""
    throttled: list[bool]


class AskGroupLag(msgspec.Struct, frozen=True):
    group_id: str


class GroupLagTold(msgspec.Struct, frozen=True):
    """The lag, or Kafka's code of the refusal."""

    lag: GroupLag | None = None
    refusal: int = 0


ASK_LAG_FACTS = Method(190, "groups.lag_facts", AskLagFacts, LagFactsTold, nodes_only=True)
ASK_GROUP_LAG = Method(191, "groups.lag", AskGroupLag, GroupLagTold, nodes_only=True)
