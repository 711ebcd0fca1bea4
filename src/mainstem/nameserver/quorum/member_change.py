"""The metadata quorum replaces a lost member by another: learner, voter, removal of the old one, one step at
a time.

The leader does it. The new node gets the log as a learner and votes once it has caught up; only then is the old one
removed, so that there are never fewer voters than before. A change that is begun again after a failure keeps the
steps that were done.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from mainstem.model import NodeRole
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import InvalidMembership, MetadataUnavailable
from mainstem.nameserver.quorum.proposer import NotLeading
from mainstem.nameserver.state.replica import ChangeOutcome, MetadataReplica
from mainstem.raft import ChangeKind, Membership, MembershipChange, MembershipRefused

CATCH_UP_SECONDS_MAX = 120.0
PAUSE_SECONDS = 0.1


class ChangingQuorum(Protocol):
    @property
    def node_id(self) -> int: ...

    @property
    def serves(self) -> bool: ...

    @property
    def membership(self) -> Membership: ...

    def change_membership(self, change: MembershipChange) -> int: ...


async def change_member(
    group: ChangingQuorum, replica: MetadataReplica, ports: ClusterPorts, old: int, new: int
) -> None:
    """Replace voter `old` (0: none, only add) by node `new` (0: none, only remove). Raises `NotLeading`,
    `Unsettled`, `MetadataUnavailable`, `InvalidMembership`."""
    _check(group.membership, replica, old, new)
    try:
        async with asyncio.timeout(CATCH_UP_SECONDS_MAX):
            if new:
                if new not in group.membership.members:
                    await _step(group, replica, ports, MembershipChange(ChangeKind.ADD_LEARNER, new))
                if new not in group.membership.voters:
                    await _step(group, replica, ports, MembershipChange(ChangeKind.PROMOTE, new))
            if old and old in group.membership.members:
                await _step(group, replica, ports, MembershipChange(ChangeKind.REMOVE, old))
    except TimeoutError:
        raise MetadataUnavailable(
            f"node {new or old}: the change of the metadata quorum's members was not done within "
            f"{CATCH_UP_SECONDS_MAX:.0f} s; it may be begun again"
        ) from None


def _check(membership: Membership, replica: MetadataReplica, old: int, new: int) -> None:
    if old == new:
        raise InvalidMembership(f"node {old} cannot replace itself; give two nodes, or 0 for none")
    node = replica.state.node(new) if new else None
    if new and node is None:
        raise InvalidMembership(f"node {new} is not registered in this cluster; start it first")
    if node is not None and NodeRole.NAMESERVER not in node.roles:
        raise InvalidMembership(f"node {new} does not have the role nameserver; start it with the role first")
    if old and old not in membership.members and (not new or new not in membership.voters):
        voters = ", ".join(map(str, sorted(membership.voters)))
        raise InvalidMembership(f"node {old} is no member of the metadata quorum; its voters are {voters}")


async def _step(
    group: ChangingQuorum, replica: MetadataReplica, ports: ClusterPorts, change: MembershipChange
) -> ChangeOutcome:
    """Try the step until it is applied: the core refuses it while a learner is behind or another step is
    under way."""
    while True:
        if not group.serves:
            raise NotLeading("this node does not lead the metadata quorum any more")
        try:
            return await replica.expect_index(group.change_membership(change))
        except MembershipRefused as error:
            if change.kind is not ChangeKind.PROMOTE:
                raise InvalidMembership(str(error)) from error
        except MetadataUnavailable:
            pass
        await ports.sleep(PAUSE_SECONDS)
