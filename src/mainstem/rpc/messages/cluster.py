"""Requests of nodes and operators to the leaders of write groups, and reports that nodes give to operators."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.model import FeatureLevel
from mainstem.rpc.errors import Refused
from mainstem.rpc.messages.loads import MOVES_TOLD_MAX, ToldBalancer, ToldLoads, ToldMove, ToldSlotMove
from mainstem.rpc.wire.method import Method, Nothing

GROUPS_MAX = 4096
RANGES_MAX = 10_000
"""Items in one request, a few hundred KB."""

WriteGroupNumber = Annotated[int, msgspec.Meta(ge=0, lt=GROUPS_MAX)]
WriteGroupNumbers = Annotated[list[WriteGroupNumber], msgspec.Meta(max_length=GROUPS_MAX)]
TopicNumber = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
Partition = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]


class WriteGroupsNotLed(Refused):
    """The node does not lead one of the write groups; the change may be made in those that it leads."""

    kind = "write group not led"


class CreateQueues(msgspec.Struct, frozen=True):
    """Log (topic number, first partition, count) in each of these write groups."""

    groups: WriteGroupNumbers
    ranges: Annotated[list[tuple[TopicNumber, Partition, Partition]], msgspec.Meta(max_length=RANGES_MAX)]


class DeleteQueues(msgspec.Struct, frozen=True):
    groups: WriteGroupNumbers
    topic_numbers: Annotated[list[TopicNumber], msgspec.Meta(max_length=RANGES_MAX)]


CREATE_QUEUES = Method(96, "queues.create", CreateQueues, Nothing, (WriteGroupsNotLed,), nodes_only=True)
DELETE_QUEUES = Method(97, "queues.delete", DeleteQueues, Nothing, (WriteGroupsNotLed,), nodes_only=True)


class TransferRefused(Refused):
    """The leadership cannot go to that node; the message says why."""

    kind = "transfer refused"


class MemberState(msgspec.Struct, frozen=True):
    """A node's part in a write group, as its leader knows it."""

    node: int
    match_index: int
    """The last block that the node is known to hold durably."""
    active: bool
    """Heard from lately."""
    voter: bool


class LedWriteGroup(msgspec.Struct, frozen=True):
    """A write group that the node leads."""

    group: int
    term: int
    serves: bool
    last_index: int
    committed: int
    members: list[MemberState]


class NodeReport(msgspec.Struct, frozen=True):
    http: str
    uptime_seconds: float
    led: list[LedWriteGroup]
    level_oldest: int = FeatureLevel.FIRST
    level_newest: int = FeatureLevel.FIRST
    """The feature levels at which the node can work."""
    not_back: list[int] = []
    """Write groups whose replica has forgotten something and has no vote until it has that back."""
    forgot: str = ""
    """How that came."""
    waiting: dict[int, str] = {}
    """Write groups in which the node takes no part until their blocks can be read again, and why."""
    store: str = ""
    """The shared store; empty: the node has a disk 2 of its own."""
    loads: ToldLoads | None = None
    """Of all nodes, from the metadata leader; None: the node is not that, or its version does not measure them."""
    moves: Annotated[list[ToldMove], msgspec.Meta(max_length=MOVES_TOLD_MAX)] = []
    """Those that the node remembers to have begun as the metadata leader, the newest last."""
    slot_moves: Annotated[list[ToldSlotMove], msgspec.Meta(max_length=MOVES_TOLD_MAX)] = []
    """The same of slots, which moved between write groups."""
    balancer: ToldBalancer | None = None
    """None: the node does not lead the metadata, or its balancer is off."""


class TransferLeader(msgspec.Struct, frozen=True):
    group: WriteGroupNumber
    to: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    close_behind: bool = False
    """Refuse if that node is silent, or lacks more than the newest blocks."""


class MembersOf(msgspec.Struct, frozen=True):
    group: WriteGroupNumber


class WriteGroupMembers(msgspec.Struct, frozen=True):
    """A write group's members, as committed by a majority that confirmed the leader after it was asked."""

    index: int
    """The last committed block."""
    members: list[int]
    """Learners included."""


class WriteGroupBytes(msgspec.Struct, frozen=True):
    """The bytes that a node copies for a replica of a write group, as one that has a replica counts them."""

    bytes: Annotated[int, msgspec.Meta(ge=0)]


REPORT = Method(112, "cluster.report", Nothing, NodeReport, nodes_only=True)
TRANSFER_LEADER = Method(
    113, "cluster.transfer_leader", TransferLeader, Nothing, (WriteGroupsNotLed, TransferRefused), nodes_only=True
)
WRITE_GROUP_MEMBERS = Method(
    114, "cluster.group_members", MembersOf, WriteGroupMembers, (WriteGroupsNotLed,), nodes_only=True
)
WRITE_GROUP_BYTES = Method(
    115, "cluster.group_bytes", MembersOf, WriteGroupBytes, (WriteGroupsNotLed,), nodes_only=True
)
"""Asked for plans that people look at: a node adds its files up for the answer."""
