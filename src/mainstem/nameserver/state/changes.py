"""Turns what a caller wants into commands, judged by the present state. No I/O; the caller hands in
randomness.

Each item of a request is accepted or refused on its own, in order, as if those accepted before it were made
already.
"""

from __future__ import annotations

import asyncio
import base64
import random
import uuid
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from mainstem.model import (
    SCRAM_MECHANISMS,
    SLOTS,
    FeatureLevel,
    NodeRole,
    ScramCredential,
    Topic,
    slot_of,
    slots_in_turns,
)
from mainstem.nameserver.errors import (
    CredentialRefused,
    InvalidAcl,
    InvalidPlacement,
    InvalidQuota,
    InvalidToken,
    NameserverError,
    UnknownToken,
    UnknownTopic,
    kind_of,
)
from mainstem.nameserver.state.commands import (
    AddAcl,
    AddDelegationToken,
    AddPartitions,
    AddWriteGroups,
    AllocateProducerIds,
    ChangeQuotas,
    ChangeResourceConfigs,
    ChangeTopicConfigs,
    Command,
    CreateCluster,
    CreateTopic,
    DeleteTopic,
    Event,
    KeepSlot,
    MoveReplica,
    MoveSlot,
    MoveTokenExpiry,
    PartitionsAdded,
    PlaceWriteGroups,
    PreferLeader,
    RaiseFeatureLevel,
    Refusal,
    RegisterNode,
    RemoveAcl,
    RemoveDelegationToken,
    RemoveNode,
    RemoveScramCredential,
    SetDraining,
    SettleSlot,
    SlotMoveBegins,
    SlotMoved,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
)
from mainstem.nameserver.state.plans.reduced_slots import (
    QUEUES_TRIED_FOR_ALL_MAX,
    QUEUES_TRIED_MAX,
    check_named,
    number_beside,
)
from mainstem.nameserver.state.plans.replica_classes import class_for, factor_for, number_for
from mainstem.nameserver.state.plans.replica_placement import place_write_groups
from mainstem.nameserver.state.plans.write_group_growth import grown
from mainstem.nameserver.state.scram_table import set_command
from mainstem.nameserver.state.state import PRODUCER_IDS_PER_BLOCK, MetadataState
from mainstem.nameserver.state.tenant_changes import removal_of, setting_of
from mainstem.nameserver.state.tenant_rules import RETENTION
from mainstem.nameserver.state.topic_table import PendingChanges
from mainstem.rpc.messages.metadata import (
    WantAclRemovals,
    WantAcls,
    WantConfigs,
    WantCredentials,
    WantDeletions,
    WantDraining,
    Wanted,
    WantedAcl,
    WantedCredential,
    WantedQuotas,
    WantedTopic,
    WantFeatureLevel,
    WantMove,
    WantNode,
    WantNodeRemoval,
    WantPartitions,
    WantPlacement,
    WantPreference,
    WantProducerIds,
    WantQuotas,
    WantResourceConfigs,
    WantSlotKept,
    WantSlotMove,
    WantSlotMoveBegun,
    WantSlotMoved,
    WantSlotSettled,
    WantTenant,
    WantTenantRemoval,
    WantToken,
    WantTokenExpiry,
    WantTokenRemovals,
    WantTopics,
    WantWriteGroups,
)
from mainstem.security.acls.acl import Operation, PatternType, Permission, ResourceKind
from mainstem.security.quotas.quota import entity_of

COMMANDS_PER_TURN = 250
"""Commands that are made or applied between two turns of the event loop: about 2 ms."""


class Made(NamedTuple):
    """The commands of the accepted items, in order, and why the other items were refused."""

    commands: list[Command]
    refusals: list[Refusal]
    logged: Callable[[], None] | None = None
    """Called once the metadata has logged the commands, and no more if that did not come about."""


class Ids:
    """Makes the ids that must be unique: of topics, requests and clusters."""

    def __init__(self, randomness: random.Random) -> None:
        self._randomness = randomness

    def topic_id(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._randomness.randbytes(16), version=4)

    def request(self) -> bytes:
        return self._randomness.randbytes(16)

    def cluster_id(self) -> str:
        while True:
            text = base64.urlsafe_b64encode(self.topic_id().bytes).decode().rstrip("=")
            if not text.startswith("-"):  # command lines would take it for an option
                return text


async def make_commands(wanted: Wanted, state: MetadataState, ids: Ids, replicas: int) -> Made:
    """The commands for `wanted`. The caller keeps `state` unchanged meanwhile. `replicas`: how many each
    write group gets."""
    makers = _makers(wanted, state, ids, replicas)
    pending, made = PendingChanges(), Made([], [])
    for item, make in enumerate(makers):
        try:
            command = make(len(made.commands))
            state.check(command, pending)
        except NameserverError as refusal:
            made.refusals.append(Refusal(item, kind_of(refusal), str(refusal)))
        else:
            pending.add(command)
            state.tenant_rules.pend(command, pending)
            made.commands.append(command)
        if item % COMMANDS_PER_TURN == COMMANDS_PER_TURN - 1:
            await asyncio.sleep(0)
    return made


def _makers(wanted: Wanted, state: MetadataState, ids: Ids, replicas: int) -> list[Callable[[int], Command]]:
    """One function per item, which makes its command from the number of items accepted before it."""
    match wanted:
        case WantTopics(topics=topics):
            numbers = _TopicNumbers(state)
            return [_creation(topic, state, ids, numbers) for topic in topics]
        case WantDeletions(names=names):
            return [_deletion(name, state) for name in names]
        case WantPartitions(name=name, total=total):
            return [lambda _: AddPartitions(named(state, name).number, total)]
        case WantConfigs(name=name, changes=changes):
            return [lambda _: ChangeTopicConfigs(named(state, name).number, _changes_of(name, changes, state))]
        case WantProducerIds(node_id=node_id):
            return [lambda _: AllocateProducerIds(node_id, state.next_producer_id, PRODUCER_IDS_PER_BLOCK)]
        case WantNode():
            return [lambda _: registration_of(wanted, state.feature_level)]
        case WantMove(group=group, old=old, new=new):
            return [lambda _: MoveReplica(group, old, new)]
        case WantPreference(group=group, node_id=node_id):
            return [lambda _: PreferLeader(group, node_id)]
        case WantWriteGroups():
            return [lambda _: _more_write_groups(wanted, state)]
        case WantSlotMove():
            return [lambda _: _slot_move(wanted, state)]
        case WantSlotMoveBegun(slot=slot, group=group, number=number):
            return [lambda _: SlotMoveBegins(slot, group, number)]
        case WantSlotKept(slot=slot):
            return [lambda _: _recall(slot, state)]
        case WantSlotMoved(slot=slot, group=group, number=number, others=others):
            return [lambda _: SlotMoved(slot, group, number, list(others))]
        case WantSlotSettled(slot=slot, number=number):
            return [lambda _: SettleSlot(slot, number)]
        case WantDraining(node_id=node_id, draining=draining):
            return [lambda _: SetDraining(node_id, draining)]
        case WantNodeRemoval(node_id=node_id):
            return [lambda _: RemoveNode(node_id)]
        case WantFeatureLevel(level=level):
            return [lambda _: RaiseFeatureLevel(level)]
        case WantAcls(acls=acls):
            return [partial(_of_acl, AddAcl, acl) for acl in acls]
        case WantAclRemovals(acls=acls):
            return [partial(_of_acl, RemoveAcl, acl) for acl in acls]
        case WantCredentials(credentials=wanted_credentials, absent_users_secret=proposed, first=first):
            if first and state.scram_table.absent_users_secret:
                return [_no_first_user] * len(wanted_credentials)
            secret = b"" if state.scram_table.absent_users_secret else proposed
            return [partial(_credential, each, secret) for each in wanted_credentials]
        case WantQuotas(quotas=quotas):
            return [partial(_of_quotas, each) for each in quotas]
        case WantResourceConfigs(kind=kind, name=name, changes=changes):
            return [lambda _: ChangeResourceConfigs(kind, name, changes)]
        case WantTenant():
            return setting_of(wanted, state)
        case WantTenantRemoval(name=name):
            return removal_of(name, state)
        case WantToken():
            return [lambda _: _token(wanted)]
        case WantTokenExpiry(token_id=token_id, expires_ms=expires_ms):
            return [lambda _: MoveTokenExpiry(token_id, expires_ms)]
        case WantTokenRemovals(token_ids=token_ids, expired_by_ms=expired_by_ms):
            return [partial(_token_removal, token_id, expired_by_ms, state) for token_id in token_ids]
        case WantPlacement():
            return [lambda _: _placement(state, replicas)]


class _TopicNumbers:
    """Gives the topics of one request their numbers, each behind that of the one accepted before it."""

    def __init__(self, state: MetadataState) -> None:
        self._classes = len(state.factors)
        self._reduced = state.reduced_slots
        self._lowest = [state.next_topic_number]
        """By how many topics were accepted before, the lowest number that is left."""
        self._queues_left = QUEUES_TRIED_FOR_ALL_MAX
        """That may be hashed in vain for the topics to come."""

    def number(self, accepted: int, which: int, partitions: int) -> int:
        del self._lowest[accepted + 1 :]
        lowest = number_for(self._lowest[-1], which, self._classes)
        number, tried = number_beside(self._reduced, lowest, partitions, min(QUEUES_TRIED_MAX, self._queues_left))
        self._queues_left -= tried
        self._lowest.append(number + 1)
        return number


def _creation(topic: WantedTopic, state: MetadataState, ids: Ids, numbers: _TopicNumbers) -> Callable[[int], Command]:
    factor, factors, internal = topic.replication_factor, state.factors, topic.internal
    which = class_for(factor, factors, internal=internal)
    return lambda accepted: CreateTopic(
        name=topic.name,
        number=numbers.number(accepted, which, topic.partitions),
        topic_id=ids.topic_id(),
        partitions=topic.partitions,
        replication_factor=factor_for(factor, factors, which, internal=internal),
        configs=topic.configs if topic.internal else state.tenant_rules.capped(topic.name, topic.configs),
        internal=topic.internal,
    )


def _changes_of(name: str, changes: dict[str, str | None], state: MetadataState) -> dict[str, str | None]:
    """Changes of a topic's configs; a retention that goes back to the default stays below its tenant's ceiling."""
    return state.tenant_rules.capped(name, dict(changes)) if RETENTION in changes else dict(changes)


def _deletion(name: str, state: MetadataState) -> Callable[[int], Command]:
    return lambda _: DeleteTopic(named(state, name).number)


def _of_acl(kind: type[AddAcl | RemoveAcl], acl: WantedAcl, accepted: int) -> Command:
    """The command about a rule."""
    try:
        resource, pattern = ResourceKind(acl.kind), PatternType(acl.pattern)
        operation, permission = Operation(acl.operation), Permission(acl.permission)
    except ValueError as error:
        raise InvalidAcl(str(error)) from None
    return kind(resource, acl.name, pattern, acl.principal, acl.host, operation, permission)


def _of_quotas(wanted: WantedQuotas, accepted: int) -> Command:
    try:
        return ChangeQuotas(list(entity_of(wanted.entity)), wanted.changes)
    except ValueError as error:
        raise InvalidQuota(str(error)) from None


def _no_first_user(accepted: int) -> Command:
    raise CredentialRefused("the cluster has had its first user already")


def _credential(wanted: WantedCredential, secret: bytes, accepted: int) -> Command:
    mechanism = SCRAM_MECHANISMS.get(wanted.mechanism)
    if mechanism is None:
        raise CredentialRefused(f"there is no mechanism {wanted.mechanism[:64]!r}")
    if not wanted.stored_key:
        return RemoveScramCredential(wanted.user, mechanism)
    credential = ScramCredential(mechanism, wanted.salt, wanted.iterations, wanted.stored_key, wanted.server_key)
    return set_command(wanted.user, credential, secret)


def _token(wanted: WantToken) -> Command:
    return AddDelegationToken(
        wanted.token_id, wanted.owner, wanted.requester, list(wanted.renewers), wanted.issued_ms, wanted.expires_ms,
        wanted.ends_ms,
    )  # fmt: skip


def _token_removal(token_id: str, expired_by_ms: int | None, state: MetadataState, accepted: int) -> Command:
    token = state.token_table.get(token_id)
    if token is None:
        raise UnknownToken("there is no such delegation token")
    if expired_by_ms is not None and not token.expired(expired_by_ms):
        raise InvalidToken("the delegation token was renewed")
    return RemoveDelegationToken(token_id)


def _placement(state: MetadataState, replicas: int) -> PlaceWriteGroups:
    locations = {node.node_id: node.location for node in state.node_table.with_role(NodeRole.STORAGE)}
    if state.cluster is None or not locations:
        raise InvalidPlacement("there are no nodes with the role storage yet")
    return PlaceWriteGroups(place_write_groups(state.cluster.write_groups, locations, replicas))


def _slot_move(wanted: WantSlotMove, state: MetadataState) -> MoveSlot:
    name, partition, group = wanted.name, wanted.partition, wanted.group
    topic = named(state, name)
    if partition >= topic.partitions:
        raise InvalidPlacement(f"topic {name!r} has {topic.partitions} partitions, and no partition {partition}")
    queue_id = topic.queue_id(partition)
    slot, present = slot_of(queue_id), len(state.placements.get(state.write_group(queue_id), ()))
    copies = len(state.placements.get(group, ()))
    if 0 < copies < present and copies < state.factors[slot // SLOTS]:
        check_named(slot, state.topics.values(), {(name, partition), *wanted.beside}, copies)
    return MoveSlot(slot, group, state.moving_slots.next_number(slot))


def _recall(slot: int, state: MetadataState) -> KeepSlot:
    wish = state.moving_slots.wish_to_recall(slot)
    return KeepSlot(slot, wish.group, wish.number)


def _more_write_groups(wanted: WantWriteGroups, state: MetadataState) -> AddWriteGroups:
    table = state.node_table
    if state.cluster is None or not state.placements:
        raise InvalidPlacement("the cluster has not placed its first write groups yet")
    locations = {
        node.node_id: node.location
        for node in table.with_role(NodeRole.STORAGE)
        if node.node_id in wanted.node_ids and node.node_id not in table.draining
    }
    return grown(
        wanted.total,
        state.cluster.slots,
        state.used_slots(),
        state.factors,
        state.placements,
        locations,
        wanted.replication_factor,
    )


def registration_of(wanted: WantNode, level: int) -> RegisterNode:
    """The command at a feature level: before `SECURED` it does not say where each listener is, before `ELASTIC` not on
    which machine the node runs."""
    said = wanted.endpoints if level >= FeatureLevel.SECURED else ()
    return RegisterNode(
        node_id=wanted.node_id,
        host=wanted.host,
        port=wanted.port,
        rack=wanted.rack,
        rpc=wanted.rpc,
        incarnation=wanted.incarnation,
        roles=list(wanted.roles),
        version=wanted.version,
        endpoints=[(each.listener, each.host, each.port) for each in said],
        machine=wanted.machine if level >= FeatureLevel.ELASTIC else None,
    )


def new_cluster(cluster_id: str, write_groups: int) -> CreateCluster:
    return CreateCluster(
        cluster_id=cluster_id,
        write_groups=write_groups,
        slots=slots_in_turns(write_groups),
    )


def named(state: MetadataState, name: str) -> Topic:
    topic = state.topic(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name[:260]!r}")
    return topic


def subject_of(command: Command) -> int:
    """The number under which the command's outcome is remembered: the topic's number, or the first of the
    producer ids."""
    match command:
        case CreateTopic(number=number) | AddPartitions(number=number):
            return number
        case ChangeTopicConfigs(number=number) | DeleteTopic(number=number):
            return number
        case AllocateProducerIds(first=first):
            return first
        case _:
            return 0


def topic_after(event: Event | None) -> Topic | None:
    """The topic that an event tells of: as it is after the event, or as it was when it was deleted."""
    if isinstance(event, TopicCreated | PartitionsAdded | TopicConfigsChanged | TopicDeleted):
        return event.topic
    return None
