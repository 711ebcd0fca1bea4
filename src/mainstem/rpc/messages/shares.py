"""The questions of nodes to each other about share groups: the state of a group over a partition lies with the node
that serves the partition."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec

from mainstem.rpc.wire.method import Method

PARTITIONS_MAX = 1_000
"""Partitions that one message is about."""

SharedPartitionNamed = tuple[UUID, int]
"""Topic id, partition."""


class ForgetShareGroup(msgspec.Struct, frozen=True):
    """A group is about to be deleted."""

    group_id: str


class ShareGroupForgotten(msgspec.Struct, frozen=True):
    """`forgotten`: of all that the node serves, and that is committed; else the caller asks again."""

    forgotten: bool


class AskBegun(msgspec.Struct, frozen=True):
    """Which partitions has a group begun to read, of those that the node serves?"""

    group_id: str


class BegunTold(msgspec.Struct, frozen=True):
    """`partitions` None: the node cannot tell now."""

    partitions: list[SharedPartitionNamed] | None


class AskStandings(msgspec.Struct, frozen=True):
    group_id: str
    partitions: Annotated[list[SharedPartitionNamed], msgspec.Meta(max_length=PARTITIONS_MAX)]


class StandingTold(msgspec.Struct, frozen=True, array_like=True):
    """The fields of `broker.share_groups.share_states.ShareStanding`."""

    error: int
    start: int
    done: int
    leader_epoch: int
    log_start: int
    end: int


class StandingsTold(msgspec.Struct, frozen=True):
    """In the order of the partitions."""

    standings: list[StandingTold]


class BeginAnew(msgspec.Struct, frozen=True):
    """Have a group begin at other offsets; (topic id, partition, offset), None to have it know nothing."""

    group_id: str
    state_epoch: int
    starts: Annotated[list[tuple[UUID, int, int | None]], msgspec.Meta(max_length=PARTITIONS_MAX)]


class BegunAnew(msgspec.Struct, frozen=True):
    """Kafka's error codes, in the order of the partitions."""

    codes: list[int]


class WindowQuestion(msgspec.Struct, frozen=True):
    """An event of a window in a partition of the topic of states; `kind` is the number of the event among
    `broker.share_groups.window_events.WINDOW_EVENTS`, `event` its fields."""

    index: int
    group_id: str
    topic_id: UUID
    partition: int
    kind: int
    event: bytes


class WindowTold(msgspec.Struct, frozen=True):
    """The answer to the event, or Kafka's code of the refusal."""

    answer: bytes = b""
    refusal: int = 0


FORGET_SHARE_GROUP = Method(143, "shares.forget", ForgetShareGroup, ShareGroupForgotten, nodes_only=True)
BEGUN = Method(144, "shares.begun", AskBegun, BegunTold, nodes_only=True)
STANDINGS = Method(145, "shares.standings", AskStandings, StandingsTold, nodes_only=True)
BEGIN_ANEW = Method(146, "shares.begin_anew", BeginAnew, BegunAnew, nodes_only=True)
WINDOW_EVENT = Method(151, "shares.window", WindowQuestion, WindowTold, nodes_only=True)
