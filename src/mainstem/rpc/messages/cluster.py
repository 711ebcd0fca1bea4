"""Reports that nodes give to operators, and requests of operators to a write group's leader."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.model import FeatureLevel
from mainstem.rpc.errors import Refused
from mainstem.rpc.messages.queues import Group, GroupsNotLed
from mainstem.rpc.wire.method import Method, Nothing


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


class LedGroup(msgspec.Struct, frozen=True):
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
    led: list[LedGroup]
    level_oldest: int = FeatureLevel.FIRST
    level_newest: int = FeatureLevel.FIRST
    """The feature levels at which the node can work."""
    not_back: list[int] = []
    """Write groups whose replica has forgotten something and has no vote until it has that back."""
    forgot: str = ""
    """How that came."""
    waiting: dict[int, str] = {}
    """Write groups in which the node takes no part until their blocks can be read again, and why."""


class TransferLeader(msgspec.Struct, frozen=True):
    group: Group
    to: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class MembersOf(msgspec.Struct, frozen=True):
    group: Group


class GroupMembers(msgspec.Struct, frozen=True):
    """A write group's members, as committed by a majority that confirmed the leader after it was asked."""

    index: int
    """The last committed block."""
    members: list[int]
    """Learners included."""


REPORT = Method(112, "cluster.report", Nothing, NodeReport, nodes_only=True)
TRANSFER_LEADER = Method(
    113, "cluster.transfer_leader", TransferLeader, Nothing, (GroupsNotLed, TransferRefused), nodes_only=True
)
GROUP_MEMBERS = Method(114, "cluster.group_members", MembersOf, GroupMembers, (GroupsNotLed,), nodes_only=True)
