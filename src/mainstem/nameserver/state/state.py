"""The metadata as a state machine: commands in, topics and nodes out. No I/O, no clock, no randomness.

Strategy: `check` refuses a command against the present state before it is logged; `apply` changes the state
and is the only place that does, live and at recovery alike. `apply` trusts that the command was checked, so
rules may be tightened later without an old log becoming unreadable; a command that does not fit at all (an
unknown topic number, a number given twice) can only come from a broken log and raises `InconsistentCommand`.
A snapshot is a shorter log with the same end state: `commands()` gives it. `topic_table`, `node_table`, `acl_table`,
`scram_table`, `quota_table`, `config_table` and `token_table` hold the nouns and their rules; this module routes each
command to them.

Invariant: the same commands lead to the same state on every node.

The state remembers for a while which requests were carried out, so that a repeated request changes nothing. A caller
whose answer got lost asks the next leader with the same request id. Time is that of the log (`at_ms` of the changes),
so that all nodes remember and forget alike.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from mainstem.model import (
    OWN_LEVELS,
    SLOTS,
    FeatureLevel,
    LevelRange,
    Node,
    NodeRole,
    ResourceType,
    Topic,
    is_slot_table,
    slot_of,
)
from mainstem.nameserver.errors import (
    FeatureLevelTooLow,
    InconsistentCommand,
    InvalidAcl,
    InvalidQuota,
    InvalidToken,
    NameserverError,
    TooManyAcls,
    TooManyQuotas,
    TooManyTokens,
    UnknownToken,
)
from mainstem.nameserver.state.commands import (
    AddAcl,
    AddDelegationToken,
    AddPartitions,
    AddWriteGroups,
    AdvanceCounters,
    AllocateProducerIds,
    BrokerConfigsChanged,
    ChangeQuotas,
    ChangeResourceConfigs,
    ChangeTopicConfigs,
    Command,
    CreateCluster,
    CreateTopic,
    DeleteTopic,
    Event,
    FeatureLevelRaised,
    KeepAbsentUsersSecret,
    KeepSlot,
    LoggedChange,
    MoveReplica,
    MoveSlot,
    MoveTokenExpiry,
    PlaceWriteGroups,
    PreferLeader,
    RaiseFeatureLevel,
    RegisterNode,
    RememberChange,
    RemoveAcl,
    RemoveDelegationToken,
    RemoveNode,
    RemoveScramCredential,
    RemoveTenant,
    SetDraining,
    SetScramCredential,
    SetTenant,
    SettleSlot,
    SlotMoveBegins,
    SlotMoved,
    SlotWished,
    TopicConfigsChanged,
    UnknownCommand,
    WriteGroupsAdded,
    level_of,
)
from mainstem.nameserver.state.moving_slots import MovingSlots
from mainstem.nameserver.state.node_table import NodeTable, check_own_levels, is_partial
from mainstem.nameserver.state.plans.reduced_slots import (
    NONE_REDUCED,
    REDUCED_MAX,
    check_more_partitions,
    check_new_topic,
    slot_to_restore,
)
from mainstem.nameserver.state.plans.replica_classes import Factors, factors_of
from mainstem.nameserver.state.plans.write_group_growth import check_class, check_slots, check_total, used_slots
from mainstem.nameserver.state.resource_configs.broker_configs import TOPIC_CONFIG_OF
from mainstem.nameserver.state.resource_configs.config_table import ConfigTable
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.scram_table import ScramTable
from mainstem.nameserver.state.tenant_rules import TenantRules, tenant_of
from mainstem.nameserver.state.topic_table import NOTHING_PENDING, PendingChanges, TopicTable
from mainstem.security.acls.acl import fault_of
from mainstem.security.acls.acl_table import ACLS_MAX, AclTable
from mainstem.security.quotas import quota
from mainstem.security.quotas.quota_table import ENTITIES_MAX, QuotaTable
from mainstem.security.tokens.delegation_token import DelegationToken
from mainstem.security.tokens.delegation_token import fault_of as fault_of_token
from mainstem.security.tokens.token_table import TOKENS_MAX, TOKENS_OF_OWNER_MAX, TokenTable

REMEMBERED_MS = 10 * 60 * 1000
"""Callers give up after seconds; after minutes none of their messages is still under way."""
REQUESTS_MAX = 20_000
"""Some tens of changes per second, for as long as `REMEMBERED_MS`."""


class RememberedChanges:
    def __init__(self) -> None:
        self._changes: dict[bytes, RememberChange] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._changes)

    def of(self, request: bytes) -> RememberChange | None:
        return self._changes.get(request) if request else None

    def add(self, change: RememberChange) -> None:
        self._changes[change.request] = change
        while self._changes:
            oldest = next(iter(self._changes.values()))
            if len(self._changes) <= REQUESTS_MAX and oldest.at_ms > change.at_ms - REMEMBERED_MS:
                return
            del self._changes[oldest.request]

    def commands(self) -> Iterator[RememberChange]:
        return iter(tuple(self._changes.values()))


PRODUCER_IDS_PER_BLOCK = 1_000  # as Kafka: at most this many ids are lost at a restart
PRODUCER_ID_MAX = 0x7FFF_FFFF_FFFF_FFFF


class MetadataState:
    """The whole state. `defaults`: those of topics, on this node; `levels`: the feature levels at which this program
    can work. `has_remote_store`: whether topics may have a remote tier."""

    def __init__(
        self,
        defaults: TopicDefaults,
        levels: LevelRange = OWN_LEVELS,
        *,
        has_remote_store: bool = False,
    ) -> None:
        self._levels = levels
        self._defaults = defaults
        self.topic_table = TopicTable(defaults.in_force({}), has_remote_store=has_remote_store)
        self.node_table = NodeTable()
        self.moving_slots = MovingSlots()
        self._has_remote_store = has_remote_store
        self.acl_table = AclTable()
        self.scram_table = ScramTable()
        self.quota_table = QuotaTable()
        self.config_table = ConfigTable()
        self.tenant_rules = TenantRules(self.topic_table)
        self.token_table = TokenTable()
        self.remembered = RememberedChanges()
        self._cluster: CreateCluster | None = None
        self._next_producer_id = 0
        self._feature_level = FeatureLevel.FIRST
        self._is_behind_defaults = False
        """Whether topics still have the settings that followed from earlier defaults."""
        self._unknown: dict[tuple[str, str], UnknownCommand] = {}
        """Kept for the versions that know them, in the order in which they were logged last."""

    # lookups

    @property
    def feature_level(self) -> FeatureLevel:
        """The level at which the cluster may write: it never goes down."""
        return self._feature_level

    @property
    def cluster(self) -> CreateCluster | None:
        """The cluster's id and slot table; None before the first command."""
        return self._cluster

    @property
    def nodes(self) -> Sequence[Node]:
        return tuple(self.node_table.nodes.values())

    @property
    def topics(self) -> Mapping[str, Topic]:
        """By name. The mapping is live: copy it before an await."""
        return self.topic_table.by_name

    @property
    def partitions_total(self) -> int:
        return self.topic_table.partitions_total

    @property
    def next_topic_number(self) -> int:
        return self.topic_table.next_number

    @property
    def next_producer_id(self) -> int:
        return self._next_producer_id

    @property
    def placements(self) -> Mapping[int, tuple[int, ...]]:
        """Per write group its replicas' nodes, preferred leader first; empty until the write groups are
        placed."""
        return self.node_table.placements

    def node(self, node_id: int) -> Node | None:
        return self.node_table.nodes.get(node_id)

    def registered(self, node_id: int) -> RegisterNode | None:
        """All that a node registered of itself."""
        return self.node_table.registered.get(node_id)

    def topic(self, name: str) -> Topic | None:
        return self.topic_table.by_name.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self.topic_table.by_id.get(topic_id)

    def topic_by_number(self, number: int) -> Topic | None:
        return self.topic_table.by_number.get(number)

    def was_deleted(self, number: int) -> bool:
        """Whether a topic of this number existed and was deleted by a command. False for a number that this
        state has never given out: its data must be kept."""
        return self.topic_table.was_deleted(number)

    def with_configs(self, topic: Topic, changes: Mapping[str, str | None]) -> Topic:
        """The topic as it would be with these configs set (a value) and removed (None)."""
        return self.topic_table.with_configs(topic, changes)

    @property
    def factors(self) -> Factors:
        """The replication factors of the classes of write groups, by class; empty until they are placed."""
        if self._cluster is None:
            return ()
        return factors_of(self._cluster.slots, self.placements, self.moving_slots.numbers.keys(), REDUCED_MAX)

    @property
    def reduced_slots(self) -> frozenset[int]:
        """The slots that are kept fewer times than topics ask for which are created in their class, or soon will be."""
        if not self.placements or not self.moving_slots.known:
            return NONE_REDUCED
        return self.moving_slots.reduced(self._slots, self.placements, self.factors)

    def slot_to_restore(self) -> MoveSlot | None:
        """The move of a slot back to its class, if that has many reduced ones, and one of them has no queue."""
        if self._has_remote_store and self._feature_level < FeatureLevel.STORED:
            return None
        if not (reduced := self.reduced_slots):
            return None
        moving = self.moving_slots
        waiting = moving.wishes.keys() | moving.others.keys()
        found = slot_to_restore(reduced, waiting, self._slots, self.placements, self.factors, self.topics.values())
        return MoveSlot(*found, moving.next_number(found[0])) if found is not None else None

    def write_group(self, queue_id: int) -> int:
        """The write group of a queue, whether or not it exists."""
        assert self._cluster is not None, "no cluster was created yet"
        slots, slot = self._cluster.slots, slot_of(queue_id)
        return slots[slot if slot < len(slots) else slot % SLOTS]  # as `model.all_slots` has it

    # before the log

    def check(self, command: Command, pending: PendingChanges = NOTHING_PENDING) -> None:
        """Raise a `NameserverError` when the command must not be logged, with `pending` to be applied before."""
        self._check_level(level_of(command))
        match command:
            case CreateCluster():
                self._check_cluster(command)
            case RaiseFeatureLevel(level=level):
                if level <= self._feature_level:
                    raise NameserverError(
                        f"the cluster is at feature level {self._feature_level}; a level never goes down"
                    )
                if level not in list(FeatureLevel):
                    raise NameserverError(f"there is no feature level {level} yet")
            case RegisterNode():
                if self.placements and is_partial(command):  # a new cluster begins at the newest level
                    self._check_level(FeatureLevel.ELASTIC)
                self.node_table.check_node(command)
            case PlaceWriteGroups():
                assert self._cluster is not None, "the cluster comes first"
                self.node_table.check_placement(command, self._cluster.write_groups)
            case MoveReplica():
                self.node_table.check_move(command)
                self._check_replica(command.group)
            case MoveSlot():
                if len(self.placements.get(command.group, ())) > 1:
                    self._check_level(FeatureLevel.CHAINED)
                if command.group in self.moving_slots.others.get(command.slot, ()):
                    self._check_level(FeatureLevel.RETURNING)
                if not self._keeps_nodes(command):
                    self._check_level(FeatureLevel.HOSTING)
                topics = self.topic_table.by_number.values()
                if self._reduces(command):
                    self._check_level(FeatureLevel.REDUCED)
                if self._has_remote_store:
                    self._check_level(FeatureLevel.STORED)
                self.moving_slots.check_wish(command, self._slots, self.placements, self.factors)
                self._check_level(self.moving_slots.level_of(command.slot, topics))
            case SlotMoveBegins():
                self.moving_slots.check_begin(command)
            case KeepSlot():
                self.moving_slots.wish_to_recall(command.slot)
            case SlotMoved():
                self.moving_slots.check_moved(command)
            case PreferLeader():
                self.node_table.check_preference(command)
            case AddWriteGroups():
                self._check_added(command)
            case SetDraining():
                self.node_table.check_draining(command)
                if command.draining:
                    for group in self.node_table.held_by(command.node_id):
                        self._check_replica(group)
            case RemoveNode():
                self.node_table.check_removal(command)
            case CreateTopic():
                nodes = len(self.node_table.with_role(NodeRole.STORAGE))
                self.topic_table.check_new(command, pending, nodes, self.factors)
                check_new_topic(command.name, command.number, command.partitions, self.reduced_slots)
                self.tenant_rules.check_new(command, pending)
                self._check_tiering_level(command)
            case AddPartitions():
                self.topic_table.check_more_partitions(command)
                topic = self.topic_table.by_number[command.number]
                check_more_partitions(topic, command.total, self.reduced_slots)
                self.tenant_rules.check_more_partitions(command)
            case ChangeTopicConfigs():
                self.topic_table.check_configs(command)
                self.tenant_rules.check_configs(command)
                topic = self.topic_table.by_number[command.number]
                after = self.with_configs(topic, command.changes)
                self.moving_slots.check_configs(topic, after, kept_move=self._kept_move)
                self._check_tiering_level(command)
            case DeleteTopic():
                self.topic_table.check_deletion(command, pending)
            case AllocateProducerIds():
                if command.first + command.count > PRODUCER_ID_MAX:
                    raise NameserverError("all producer ids have been given")
            case AddAcl():
                self._check_acl(command, pending)
            case SetScramCredential() | RemoveScramCredential():
                self.scram_table.check(command, pending)
            case ChangeQuotas():
                self._check_quotas(command, pending)
            case ChangeResourceConfigs():
                self.config_table.check(command.kind, command.name, command.changes)
                if command.kind == ResourceType.BROKER:
                    self._check_topic_defaults(command)
            case AddDelegationToken() | MoveTokenExpiry():
                self._check_token(command)
            case SetTenant():
                self.tenant_rules.check_tenant(command)
                if len(self.acl_table) + len(tenant_of(command).rules()) > ACLS_MAX:
                    raise TooManyAcls(
                        f"the cluster takes {ACLS_MAX} access rules, too few for the users of this tenant"
                    )

    def _check_topic_defaults(self, command: ChangeResourceConfigs) -> None:
        """Raises `InvalidConfig`, `TenantCeiling` for defaults that a topic cannot have."""
        if not command.changes.keys() & TOPIC_CONFIG_OF.keys():
            return
        brokers = self.config_table.of_kind(ResourceType.BROKER)
        brokers[command.name] = self.config_table.after(command.kind, command.name, command.changes)
        for before, after in self.topic_table.check_defaults(self._defaults.in_force(brokers, command.name)):
            self.moving_slots.check_configs(before, after, kept_move=self._kept_move)
            self.tenant_rules.check_default(after)

    def _check_token(self, command: AddDelegationToken | MoveTokenExpiry) -> None:
        kept = self.token_table.get(command.token_id)
        if isinstance(command, MoveTokenExpiry):
            if kept is None:
                raise UnknownToken("there is no such delegation token")
            if not kept.issued_ms <= command.expires_ms <= kept.ends_ms:
                raise InvalidToken("a delegation token expires after it was issued, and before it ends")
            return
        if (fault := fault_of_token(command.token)) is not None or kept is not None:
            raise InvalidToken(fault or "there is a delegation token of this id already")
        if len(self.token_table) >= TOKENS_MAX:
            raise TooManyTokens(f"the cluster keeps {TOKENS_MAX} delegation tokens, and takes no more")
        if self.token_table.owned_by(command.owner) >= TOKENS_OF_OWNER_MAX:
            raise TooManyTokens(f"the owner has {TOKENS_OF_OWNER_MAX} delegation tokens, and gets no more")

    def _keeps_nodes(self, command: MoveSlot) -> bool:
        """Whether a slot moves between write groups on the same nodes, as far as there are such write groups."""
        placements = self.placements
        if not 0 <= command.slot < len(self._slots) or command.group not in placements:
            return True  # refused for another reason
        return set(placements[self._slots[command.slot]]) == set(placements[command.group])

    def _reduces(self, command: MoveSlot) -> bool:
        """Whether this move brings a slot to a write group with fewer replicas than its class has."""
        if not 0 <= command.slot < len(self._slots) or command.group not in self.placements:
            return False  # refused for another reason
        return len(self.placements[command.group]) < self.factors[command.slot // SLOTS]

    def _check_replica(self, group: int) -> None:
        self.moving_slots.check_replica(group, self._slots, pinned=self._pins)

    @property
    def _pins(self) -> bool:
        """Whether replicas stay as long as queues have records in several write groups."""
        return self._feature_level < FeatureLevel.UNPINNED

    @property
    def _kept_move(self) -> bool:
        """Whether queues move that are compacted alone, and so keep records in several write groups for good."""
        return self._feature_level >= FeatureLevel.KEPT

    def staying(self) -> Mapping[int, str]:
        """The write groups whose replicas must stay where they are for the sake of queues that move, and why."""
        return self.moving_slots.staying(self._slots, pinned=self._pins)

    def moves_waiting_for(self, nodes: Collection[int]) -> list[int]:
        """The slots whose moves can be taken back, and wait for one of these nodes."""
        return self.moving_slots.waiting_for(nodes, self._slots, self.placements)

    def _check_level(self, needed: FeatureLevel) -> None:
        if needed > self._feature_level:
            raise FeatureLevelTooLow.of(self._feature_level, needed)

    def _check_tiering_level(self, command: CreateTopic | ChangeTopicConfigs) -> None:
        """Every node has to know what the write groups' logs say of a remote tier before a topic may have one."""
        if self.topic_table.switches_tiering_on(command):
            self._check_level(FeatureLevel.TIERED)

    def _check_acl(self, command: AddAcl, pending: PendingChanges) -> None:
        acl = command.acl
        if (fault := fault_of(acl)) is not None:
            raise InvalidAcl(fault)
        if acl in self.acl_table or len(self.acl_table) + len(pending.acls) < ACLS_MAX:
            return
        added = sum(it not in self.acl_table for it in pending.acls - {acl})
        if len(self.acl_table) + added >= ACLS_MAX:
            raise TooManyAcls(
                f"the cluster has {ACLS_MAX} access rules, and takes no more: remove some, or have one rule for a "
                "prefix take the place of many"
            )

    def _check_quotas(self, command: ChangeQuotas, pending: PendingChanges) -> None:
        try:
            entity = quota.entity_of(command.entity)
        except ValueError as error:
            raise InvalidQuota(str(error)) from None
        if (fault := quota.fault_of(entity, command.changes)) is not None:
            raise InvalidQuota(fault)
        if entity in self.quota_table or all(value is None for value in command.changes.values()):
            return
        added = sum(it not in self.quota_table for it in pending.with_quotas - {entity})
        if len(self.quota_table) + added >= ENTITIES_MAX:
            raise TooManyQuotas(
                f"the cluster has quotas of {ENTITIES_MAX} entities, and takes no more: remove some, or have a default "
                "take the place of many"
            )

    def _check_cluster(self, command: CreateCluster) -> None:
        assert self._cluster is None, "a cluster is created once"
        assert is_slot_table(command.slots, command.write_groups), "one write group per slot"

    def used_slots(self) -> set[int]:
        """The slots that no new write group takes over: queues hash to them, or they move, or have moved."""
        return used_slots(self.topic_table.by_number.values(), len(self._slots)) | self.moving_slots.known

    @property
    def _notes_begins(self) -> bool:
        """Whether it is noted when moves of slots begin."""
        return self._feature_level >= FeatureLevel.RECALLABLE

    @property
    def _slots(self) -> Sequence[int]:
        assert self._cluster is not None, "the cluster comes first"
        return self._cluster.slots

    def _check_added(self, command: AddWriteGroups) -> None:
        assert self._cluster is not None, "the cluster comes first"
        check_total(command.first + len(command.founders), self._cluster.write_groups)
        self.node_table.check_added(command)
        check_slots(command, self._slots, self.used_slots())
        check_class(command, self.factors, self.next_topic_number)

    # after the log

    def apply(self, command: Command) -> Event | None:
        """Change the state; returns the event for its listeners. Raises `InconsistentCommand`, with the state
        unchanged, when the command cannot follow those before it."""
        if self._cluster is None and not isinstance(command, CreateCluster):
            raise InconsistentCommand("the first command does not create the cluster")
        match command:
            case CreateCluster():
                if self._cluster is not None or not is_slot_table(command.slots, command.write_groups):
                    raise InconsistentCommand("the cluster is created twice, or its slot table is not whole")
                self._cluster = command
                return None
            case RaiseFeatureLevel(level=level):
                return self._raise_level(level)
            case UnknownCommand():
                key = (command.type, command.optional)
                self._unknown.pop(key, None)
                self._unknown[key] = command
                return None
            case RegisterNode():
                return self.node_table.register(command)
            case PlaceWriteGroups():
                return self.node_table.place(command)
            case MoveReplica():
                return self.node_table.move(command)
            case PreferLeader():
                return self.node_table.prefer(command)
            case AddWriteGroups():
                return self._add_write_groups(command)
            case MoveSlot():
                self.moving_slots.wish(command, begun=not self._notes_begins)
                return SlotWished(command.slot)
            case SlotMoveBegins():
                self.moving_slots.begin(command)
                return None
            case KeepSlot():
                self.moving_slots.keep(command)
                return None
            case SlotMoved():
                return self._move_slot(command)
            case SettleSlot():
                return self._slots_changed() if self.moving_slots.settle(command) else None
            case SetDraining():
                self.node_table.drain(command)
                return None
            case RemoveNode():
                return self.node_table.remove(command)
            case CreateTopic():
                return self._followed(self.topic_table.create(command))
            case AddPartitions():
                return self._followed(self.topic_table.add_partitions(command))
            case ChangeTopicConfigs():
                return self.topic_table.change_configs(command)
            case DeleteTopic():
                return self._followed(self.topic_table.delete(command))
            case AllocateProducerIds(first=first, count=count):
                if first != self._next_producer_id:
                    raise InconsistentCommand(f"producer ids from {first}, not {self._next_producer_id}")
                self._next_producer_id = first + count
                return None
            case AdvanceCounters(topic_number=topic_number, producer_id=producer_id):
                if topic_number < self.next_topic_number or producer_id < self._next_producer_id:
                    raise InconsistentCommand("counters go back")
                self.topic_table.next_number, self._next_producer_id = topic_number, producer_id
                return None
            case RemoveAcl():
                self.acl_table.remove(command.acl)
                return None
            case AddAcl():
                self.acl_table.add(command.acl)
                return None
            case SetScramCredential() | RemoveScramCredential() | KeepAbsentUsersSecret():
                self.scram_table.apply(command)
                return None
            case ChangeQuotas(entity=entity, changes=changes):
                self.quota_table.change(tuple(entity), changes)
                return None
            case ChangeResourceConfigs(kind=kind, name=name, changes=changes):
                self.config_table.change(kind, name, changes)
                return self._brokers_configured() if kind == ResourceType.BROKER else None
            case SetTenant() | RemoveTenant():
                self.tenant_rules.apply(command)
                return None
            case AddDelegationToken(token=token):
                self.token_table.put(token)
                return None
            case MoveTokenExpiry(token_id=token_id, expires_ms=expires_ms):
                if (kept := self.token_table.get(token_id)) is not None:
                    self.token_table.put(kept._replace(expires_ms=expires_ms))
                return None
            case RemoveDelegationToken(token_id=token_id):
                self.token_table.remove(token_id)
                return None
            case RememberChange():
                self.remembered.add(command)
                return None

    def _add_write_groups(self, command: AddWriteGroups) -> WriteGroupsAdded:
        assert self._cluster is not None, "the cluster comes first"
        total = command.first + len(command.founders)
        if not is_slot_table(command.slots, total) or command.first > self._cluster.write_groups:
            raise InconsistentCommand(
                f"write groups from {command.first} on, where there are "
                f"{self._cluster.write_groups}, or slots of write groups that there are not"
            )
        self._cluster = replace(self._cluster, write_groups=total, slots=command.slots)
        self.node_table.add(command)
        return self._slots_changed()

    def _move_slot(self, command: SlotMoved) -> WriteGroupsAdded:
        assert self._cluster is not None, "the cluster comes first"
        if not 0 <= command.group < self._cluster.write_groups or command.slot >= len(self._slots):
            raise InconsistentCommand(f"slot {command.slot} moves to write group {command.group}, which there is not")
        self.moving_slots.moved(command)
        slots = list(self._cluster.slots)
        slots[command.slot] = command.group
        self._cluster = replace(self._cluster, slots=slots)
        return self._slots_changed()

    def _slots_changed(self) -> WriteGroupsAdded:
        moving = self.moving_slots
        return WriteGroupsAdded(dict(self.placements), self._slots, dict(moving.numbers), dict(moving.others))

    def _followed(self, event: Event) -> Event:
        self.tenant_rules.follow(event)
        return event

    def _raise_level(self, level: int) -> FeatureLevelRaised:
        """Raises `UnreadableFeatureLevel`: this program may be unable to read the entries that follow."""
        check_own_levels(level, self._levels)
        if level <= self._feature_level:
            raise InconsistentCommand(f"feature level {level} behind level {self._feature_level}")
        self._feature_level = FeatureLevel(level)
        return FeatureLevelRaised(self._feature_level)

    def _brokers_configured(self) -> BrokerConfigsChanged:
        defaults = self._defaults.in_force(self.config_table.of_kind(ResourceType.BROKER))
        if defaults != self.topic_table.defaults:
            self.topic_table.use(defaults)
            self._is_behind_defaults = True
        return BrokerConfigsChanged()

    def reconsidered_topics(self) -> Iterator[TopicConfigsChanged]:
        """Give topics the settings that follow from other defaults, one after the other, as it is asked for the next.
        Callers that have applied commands ask for all of them, before others see the state."""
        if self._is_behind_defaults:
            yield from self.topic_table.reconsidered()
            self._is_behind_defaults = False

    def remember(self, change: LoggedChange, subjects: Sequence[int]) -> None:
        """Remember a change whose commands were applied and whose caller may ask again."""
        if change.request:
            self.remembered.add(RememberChange(change.request, change.at_ms, list(subjects), list(change.refusals)))

    # snapshots

    def _added(self) -> list[Command]:
        founders = self.node_table.founders
        return [added_command(founders, self._cluster.slots)] if founders and self._cluster is not None else []

    def commands(self) -> Iterator[Command]:
        """The shortest log that leads to this state; changes made while it is read do not show in it."""
        if self._cluster is None:
            return iter(())
        counters = AdvanceCounters(topic_number=self.next_topic_number, producer_id=self._next_producer_id)
        raised = [RaiseFeatureLevel(self._feature_level)] if self._feature_level > FeatureLevel.FIRST else []
        return chain(
            (self._cluster,), raised, self.node_table.commands(), self._added(),
            list(self.moving_slots.commands(self._cluster.slots, recallable=self._notes_begins)),
            self.topic_table.commands(), (counters,),
            [AddAcl(*acl) for acl in self.acl_table], self.scram_table.commands(),
            [ChangeQuotas(list(entity), dict(values)) for entity, values in self.quota_table],
            [ChangeResourceConfigs(kind, name, dict(configs)) for (kind, name), configs in self.config_table],
            self.tenant_rules.commands(), [token_command(token) for token in self.token_table],
            self.remembered.commands(), tuple(self._unknown.values()),
        )  # fmt: skip


def added_command(founders: Mapping[int, Sequence[int]], slots: Sequence[int]) -> AddWriteGroups:
    """One command that adds all of these write groups."""
    return AddWriteGroups(min(founders), [list(founders[group]) for group in sorted(founders)], list(slots))


def token_command(token: DelegationToken) -> AddDelegationToken:
    token_id, owner, requester, renewers, issued_ms, expires_ms, ends_ms = token
    return AddDelegationToken(token_id, owner, requester, list(renewers), issued_ms, expires_ms, ends_ms)
