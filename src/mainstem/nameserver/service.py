"""The methods of `rpc.metadata` that other nodes may call, and the parts that answer them here."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mainstem.nameserver.cluster.heartbeats import Heartbeats
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import (
    InvalidMembership,
    MetadataUnavailable,
    NameserverError,
    kind_of,
)
from mainstem.nameserver.quorum.follow import Feed
from mainstem.nameserver.quorum.member_change import change_member
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.proposer import NotLeading, Unsettled
from mainstem.nameserver.quorum.transfer import Transfer
from mainstem.nameserver.requests import WHOLE_REQUEST, Requests
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.metadata import (
    CHANGE,
    CHANGE_MEMBER,
    COMMITTED,
    FETCH_SNAPSHOT,
    FOLLOW,
    HEARTBEAT,
    INTRODUCE,
    LEADERS,
    OFFER_SNAPSHOT,
    REACH,
    ChangeMember,
    Committed,
    Follow,
    FollowPart,
    Introduction,
    ItemRefused,
    MemberChanged,
    NotAvailable,
    NotMetadataLeader,
)
from mainstem.rpc.messages.starts import METADATA_FORGOT, CannotTell, MemberForgot, Remembered
from mainstem.rpc.wire.method import Nothing, Reply


class Introducer:
    """Introduces this node to others as soon as it runs, when there is no quorum yet: it names the voters from
    `quorum_begins` on."""

    def __init__(self, node_id: int, replica: MetadataReplica, handlers: Handlers) -> None:
        self._quorum: MetadataQuorum | None = None
        self._node_id = node_id
        self._replica = replica
        handlers.prompt(INTRODUCE, self._introduce)

    def quorum_begins(self, quorum: MetadataQuorum) -> None:
        """This node has a member of the quorum from now on."""
        assert self._quorum is None, "a node has one member of the metadata quorum"
        self._quorum = quorum

    def _introduce(self, call: RpcCall[Nothing]) -> Reply[Introduction]:
        state = self._replica.state
        return Reply(
            Introduction(
                node_id=self._node_id,
                cluster_id=state.cluster.cluster_id if state.cluster is not None else "",
                voters=sorted(self._quorum.membership.voters) if self._quorum is not None else [],
                incarnations={node_id: it.incarnation for node_id, it in state.node_table.registered.items()},
                feature_level=state.feature_level,
            )
        )


class Service:
    def __init__(
        self,
        group: MetadataQuorum,
        replica: MetadataReplica,
        requests: Requests,
        heartbeats: Heartbeats,
        transfer: Transfer,
        ports: ClusterPorts,
    ) -> None:
        self._group = group
        self._replica = replica
        self._ports = ports
        self._feed = Feed(group, replica)
        handlers = ports.handlers
        handlers.unary(CHANGE, requests.answer)
        handlers.unary(CHANGE_MEMBER, self._change_member)
        handlers.prompt(HEARTBEAT, heartbeats.answer)
        handlers.unary(REACH, heartbeats.reacher.answer)
        handlers.prompt(LEADERS, heartbeats.leaders_asked.answer)
        handlers.unary(OFFER_SNAPSHOT, transfer.take)
        handlers.stream(FETCH_SNAPSHOT, transfer.give)
        handlers.stream(FOLLOW, self._follow)
        handlers.unary(METADATA_FORGOT, self._member_forgot)
        handlers.unary(COMMITTED, self._committed)

    async def _committed(self, call: RpcCall[Nothing]) -> Reply[Committed]:
        """Answers nodes that are no members themselves."""
        if not self._group.is_member:
            raise NotAvailable("this node is no member of the metadata quorum itself; ask another")
        try:
            await self._group.read()
        except MetadataUnavailable as error:
            raise NotAvailable(str(error)) from error
        return Reply(Committed(self._replica.applied_index))

    async def _member_forgot(self, call: RpcCall[MemberForgot]) -> Reply[Remembered]:
        assert call.node is not None, "the method is for nodes only"
        try:
            term, index = await self._group.member_forgot(call.node.node_id)
        except NameserverError as error:
            raise CannotTell(str(error)) from error
        return Reply(Remembered(term, index))

    async def _change_member(self, call: RpcCall[ChangeMember]) -> Reply[MemberChanged]:
        old, new = call.request.old, call.request.new
        refusals: list[ItemRefused] = []
        try:
            await change_member(self._group, self._replica, self._ports, old, new)
        except NotLeading as error:
            raise NotMetadataLeader(str(error)) from error
        except (Unsettled, MetadataUnavailable) as error:
            raise NotAvailable(str(error)) from error
        except InvalidMembership as error:
            refusals = [ItemRefused(WHOLE_REQUEST, kind_of(error), str(error))]
        return Reply(MemberChanged(sorted(self._group.membership.voters), refusals))

    async def _follow(self, call: RpcCall[Follow]) -> AsyncIterator[Reply[FollowPart]]:
        try:
            async for part in self._feed.parts(call.request.index):
                yield Reply(part)
        except NameserverError as error:
            raise NotAvailable(str(error)) from error
