"""A consumer group as a noun: its members, its leader, and what they have agreed on. It decides nothing.

It holds two kinds of state. The logged state (`persisted`, and with it generation, protocol, leader, members and
assignments as of that record) changes in `restore` alone, which replays a record, live and after a restart alike. The
rest (waiting joins, pending members, the generation being agreed on) is lost with the process; members then join
again.

Invariants: it changes state only through `move_to`, which asserts the move against `MOVES`, and through `restore`,
which takes the state that a record of the log proves; a static instance id names exactly one member; the leader is a
member; `awaiting_join` members are those with a join ticket; only members are in `pending_sync`; a pending member is no
member yet.

The states and the moves between them:

    Empty ──────────────► PreparingRebalance ◄──────────┐
      ▲                      │          ▲               │
      └── nobody is left ────┤          │ join, leave,  │ join, leave, timeout
                             ▼          │ timeout       │
                   CompletingRebalance ─┴── leader's assignment ──► Stable

Answers call a consumer group that does not exist `Dead`; no group in memory is ever in that state.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping

from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.members.member import Member, topics_of
from mainstem.kernel import untrack
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import GroupMetadataValue, MemberMetadata
from mainstem.protocol.messages.consumer_protocol import PROTOCOL_TYPE
from mainstem.protocol.messages.group_membership import JoinGroupRequestProtocol


class ConsumerGroupState(enum.Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    """No members; perhaps committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for members to join the next generation."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The generation's members are fixed; waiting for the leader's assignment."""
    STABLE = "Stable"
    """Every member can have the assignment of this generation."""
    DEAD = "Dead"


MOVES: dict[ConsumerGroupState, frozenset[ConsumerGroupState]] = {
    ConsumerGroupState.EMPTY: frozenset({ConsumerGroupState.PREPARING_REBALANCE}),
    ConsumerGroupState.PREPARING_REBALANCE: frozenset(
        {ConsumerGroupState.COMPLETING_REBALANCE, ConsumerGroupState.EMPTY}
    ),
    ConsumerGroupState.COMPLETING_REBALANCE: frozenset(
        {ConsumerGroupState.STABLE, ConsumerGroupState.PREPARING_REBALANCE}
    ),
    ConsumerGroupState.STABLE: frozenset({ConsumerGroupState.PREPARING_REBALANCE}),
    ConsumerGroupState.DEAD: frozenset(),
}
"""State → the states that may follow it."""


def can_rebalance(state: ConsumerGroupState) -> bool:
    """Whether a rebalance can start now (one that is being prepared cannot start again)."""
    return ConsumerGroupState.PREPARING_REBALANCE in MOVES[state]


Protocols = tuple[JoinGroupRequestProtocol, ...]


class ConsumerGroup:
    """One classic consumer group. A new one is empty, and the log does not know it."""

    def __init__(self, group_id: str, holdings: Holdings | None = None) -> None:
        """`holdings`: the account that is charged for the members."""
        self.group_id = group_id
        self._holdings = holdings or Holdings()
        self.bytes_held = 0
        """By its members."""
        self.state = ConsumerGroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self._subscribed: frozenset[bytes] | None = None
        self._subscribed_known = False
        self.persisted: GroupMetadataValue | None = None

        self.pending_members: set[str] = set()
        """Ids that were given out and with which no join has come yet."""
        self.pending_sync: set[str] = set()
        """Members of this generation that have not asked for their assignment."""
        self.awaiting_join = 0
        self.delay_left_ms: int | None = None
        """While the first members of an empty consumer group gather: how much longer they may be made to
        wait, in ms."""
        self.newcomers = False
        """A member joined since the last check, so gathering goes on."""
        self.gone = False
        """Another kind of group has taken its place, or none."""
        self._supporters: Counter[str] = Counter()
        for thing in (self, self.pending_members, self.pending_sync, self._supporters):
            untrack(thing)  # nothing that a group holds knows the group, and there may be a hundred thousand

    def move_to(self, state: ConsumerGroupState) -> None:
        assert state in MOVES[self.state], f"group {self.group_id!r}: {self.state} cannot become {state}"
        self.state = state

    @property
    def vacant(self) -> bool:
        """Whether only the name is left: no member, none expected, nothing in the log."""
        return not self.members and not self.pending_members and self.persisted is None

    @property
    def empty(self) -> bool:
        return self.state is ConsumerGroupState.EMPTY

    @property
    def consumers(self) -> bool:
        return self.protocol_type == PROTOCOL_TYPE

    @property
    def all_joined(self) -> bool:
        return self.awaiting_join == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def subscribes_to(self, topic: str) -> bool:
        """Whether offsets of a topic are in use. A consumer group whose subscriptions cannot be read counts
        as subscribed to everything: better to keep an offset than to lose it."""
        subscribed = self._subscribed_topics()
        if subscribed is None:
            return self.consumers
        return topic.encode() in subscribed

    @property
    def subscriptions_known(self) -> bool:
        """Whether the members' subscriptions can be read."""
        return self._subscribed_topics() is not None

    def _subscribed_topics(self) -> frozenset[bytes] | None:
        """Parsed on demand, which is rare and may be never: members are free to send megabytes of
        subscriptions with every join."""
        if not self._subscribed_known:
            subscriptions = [member.metadata(self.protocol) for member in self.members.values()]
            self._subscribed = topics_of(self.protocol_type, subscriptions)
            self._subscribed_known = True
        return self._subscribed

    def supports(self, protocol_type: str, protocols: Iterable[JoinGroupRequestProtocol]) -> bool:
        """Whether a client with these protocols can be a member along with the present ones."""
        names = {protocol.name for protocol in protocols}
        if self.state is ConsumerGroupState.EMPTY or not self.members:
            return bool(protocol_type) and bool(names)
        if protocol_type != self.protocol_type:
            return False
        return any(self._supporters[name] == len(self.members) for name in names)

    def selected_protocol(self, instead: Mapping[str, Protocols] | None = None) -> str | None:
        """The protocol of the next generation: of those that all members support, the one with most votes.
        None: they have none in common. `instead` replaces the protocols of some members, by member id."""
        ballots: Iterable[Protocols] = (member.protocols for member in self.members.values())
        if instead is None:
            common = {name for name, count in self._supporters.items() if count == len(self.members)}
        else:
            ballots = [instead.get(member_id, member.protocols) for member_id, member in self.members.items()]
            common = set.intersection(*({protocol.name for protocol in ballot} for ballot in ballots))
        if len(common) < 2:
            return next(iter(common), None)
        votes: Counter[str] = Counter()
        for ballot in ballots:
            for protocol in ballot:
                if protocol.name in common:
                    votes[protocol.name] += 1
                    break
        return votes.most_common(1)[0][0]

    # --- members -------------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str) -> None:
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._charge(member, member.size_bytes)
        self.awaiting_join += member.join_ticket is not None
        self._supporters.update({protocol.name for protocol in member.protocols})
        self.pending_members.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Forget a member, or a pending one. Its requests must have been answered."""
        self.pending_members.discard(member_id)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        assert member.join_ticket is None
        assert member.sync_ticket is None
        self._charge(member, 0)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        self._withdraw(member)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old_member_id: str, member: Member) -> None:
        """Put a member in the place of another with the same instance id, leadership included."""
        led = self.leader == old_member_id
        assert self.protocol_type is not None
        protocol_type = self.protocol_type
        self.remove(old_member_id)
        self.add(member, protocol_type)
        if led:
            self.leader = member.member_id

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._withdraw(member)
        member.protocols = protocols
        self._charge(member, member.size_bytes)
        self._supporters.update({protocol.name for protocol in protocols})

    def _charge(self, member: Member, size_bytes: int) -> None:
        more, member.charged = size_bytes - member.charged, size_bytes
        self.bytes_held += more
        self._holdings.change(member.client_host, more)

    def abandon(self) -> None:
        """The consumer group is gone: give up what its members hold."""
        for member in self.members.values():
            self._charge(member, 0)

    def _withdraw(self, member: Member) -> None:
        self._supporters.subtract({protocol.name for protocol in member.protocols})
        self._supporters += Counter()  # drops protocols that no member supports any more

    def set_join_ticket(self, member: Member, ticket: int | None) -> None:
        self.awaiting_join += (ticket is not None) - (member.join_ticket is not None)
        member.join_ticket = ticket

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that joined; False when no member did."""
        if self.leader is not None and self.members[self.leader].join_ticket is not None:
            return True
        for member in self.members.values():
            if member.join_ticket is not None:
                self.leader = member.member_id
                return True
        return False

    # --- logged state --------------------------------------------------------------------------------

    def forget_subscriptions(self) -> None:
        """Members, or their metadata, have changed: parse the subscriptions anew when asked."""
        self._subscribed = None
        self._subscribed_known = False

    def begin_generation(self) -> None:
        """Fix the members that joined as the next generation. The log learns of it with its assignment."""
        self.move_to(ConsumerGroupState.COMPLETING_REBALANCE)
        self.generation += 1
        self.protocol = self.selected_protocol()
        assert self.protocol is not None, "members are only admitted with a protocol in common"
        self.delay_left_ms = None
        self.forget_subscriptions()

    def assigned(self, wall_ms: int, members: Iterable[MemberMetadata]) -> GroupMetadataValue:
        """The record of the present generation with the assignments in these rows, one for each member."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=wall_ms,
            members=tuple(members),
        )

    def take_assignments(self, value: GroupMetadataValue) -> None:
        """`restore`, by a record with assignments of the present generation: it changes these alone. `charge` has yet
        to be called for each member."""
        self.persisted = value
        for row in value.members:
            self.members[row.member_id].assignment = row.assignment
        self.move_to(ConsumerGroupState.STABLE)

    def charge(self, member: Member) -> None:
        """See to it that the holdings are charged for what a member holds."""
        self._charge(member, member.size_bytes)

    def emptied(self, wall_ms: int) -> GroupMetadataValue:
        """The record of the next generation, which has no members."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation + 1,
            protocol=None,
            leader=None,
            current_state_timestamp=wall_ms,
            members=(),
        )

    def replaced(self, wall_ms: int, old_member_id: str, new: Member) -> GroupMetadataValue:
        """The record of the present generation with a member in the place of another."""
        members = {**self.members}
        members[old_member_id] = new
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=new.member_id if self.leader == old_member_id else self.leader,
            current_state_timestamp=wall_ms,
            members=tuple(member.persisted(self.protocol, member.assignment) for member in members.values()),
        )

    def restore(self, value: GroupMetadataValue) -> None:
        """Take over a record's state. Members that are here already keep what the log does not know of them:
        which requests wait, and the protocols they offered besides the one chosen.

        The one place besides `move_to` that sets the state: to what the record proves."""
        known = self.members
        self.abandon()
        self.begin_restoring(value)
        for row in value.members:
            self.restore_member(value, row, known.get(row.member_id))
        self.end_restoring(value)

    def begin_restoring(self, value: GroupMetadataValue) -> None:
        self.persisted = value
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.leader = None
        self.members = {}
        self.static_members = {}
        self.delay_left_ms = None
        self.awaiting_join = 0
        self._supporters.clear()

    def restore_member(self, value: GroupMetadataValue, row: MemberMetadata, known: Member | None) -> None:
        self.add(_restored(value.protocol, row, known), value.protocol_type)

    def end_restoring(self, value: GroupMetadataValue) -> None:
        if value.leader in self.members:
            self.leader = value.leader
        self.pending_sync &= self.members.keys()
        self.state = ConsumerGroupState.STABLE if self.members else ConsumerGroupState.EMPTY
        self.forget_subscriptions()


def rebalance_timeout_ms(given_ms: int, session_timeout_ms: int) -> int:
    """JoinGroup v0 and old records have no rebalance timeout: the session timeout serves for both."""
    return given_ms if given_ms > 0 else session_timeout_ms


def _restored(protocol: str | None, row: MemberMetadata, known: Member | None) -> Member:
    member = Member(
        member_id=row.member_id,
        instance_id=row.group_instance_id,
        client_id=row.client_id,
        client_host=row.client_host,
        session_timeout_ms=row.session_timeout,
        rebalance_timeout_ms=rebalance_timeout_ms(row.rebalance_timeout, row.session_timeout),
        protocols=(JoinGroupRequestProtocol(name=protocol or "", metadata=row.subscription),),
        assignment=row.assignment,
    )
    if known is not None:
        member.join_ticket, member.sync_ticket, member.new = known.join_ticket, known.sync_ticket, known.new
        if member.protocols[0] in known.protocols:
            member.protocols = known.protocols
    return member


def member_error(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """Checks that a request comes from a present member, and from the newest holder of its instance id."""
    if instance_id is not None:
        holder = group.static_members.get(instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def generation_error(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    """`member_error`, and a check that the member knows the present generation."""
    code = member_error(group, member_id, instance_id)
    if code is ErrorCode.NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return code
