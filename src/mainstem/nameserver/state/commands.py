"""The commands that change the metadata, as they stand in its log, and the events that tell of them.

A command is complete: everything random or timed (ids, numbers, the slot table) was chosen before it was logged, so
that applying it gives the same state on every node and at every recovery. One log entry is a `LoggedChange`: the
commands of one request, applied together or not at all. Encoded form: one byte of format version, then msgpack.
Version 1 is a single command (all of version 0.1's entries, and snapshots): a map whose key `type` names it. Version
2 is a `LoggedChange`. Within a version, fields are neither removed nor given a new meaning.

Programs of different age share a log. A new command or field is logged only at a feature level that all members read
(`level_of`). A program refuses a command that it does not know, unless the command carries the key `optional`: then
the program keeps it as it came and hands it on in snapshots (`UnknownCommand`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

import msgspec

from mainstem.model import SLOTS, Buffer, FeatureLevel, ScramCredential, ScramMechanism, Topic
from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission, ResourceKind
from mainstem.security.quotas.quota import TENANT
from mainstem.security.tokens.delegation_token import DelegationToken

FORMAT_VERSION_COMMAND = 1
FORMAT_VERSION_CHANGE = 2
INCARNATION_BYTES = 16


class CreateCluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="create_cluster"):
    """Always the first command. `slots` gives the write group of each of the 4,096 slots; of a cluster
    that was adopted, of those of each class that it had."""

    cluster_id: str
    write_groups: int
    slots: list[int]


class RegisterNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="register_node"):
    """A node joined, or came back with other addresses. `host` and `port` are for Kafka clients."""

    node_id: int
    host: str
    port: int
    rack: str | None = None
    rpc: str = ""
    """`host:port` for other nodes."""
    incarnation: bytes = b""
    """16 bytes that name the node's directory: a node with another directory is another node. Empty: version
    0.1 registered it."""
    roles: list[str] = []
    version: str = ""
    endpoints: list[tuple[str, str, int]] = []
    """Name, host and port of each listener; empty: one is told by `host` and `port`. From `SECURED` on."""
    machine: str | None = None
    """The label of the machine that it shares with other nodes; empty: it has one of its own; None: the node has not
    said yet. From `ELASTIC` on."""


class PlaceWriteGroups(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="place_groups"):
    """Per write group the nodes that hold its replicas, preferred leader first."""

    replicas: list[list[int]]


class AddWriteGroups(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="add_groups"):
    """More write groups, numbered from `first` on. A snapshot has one such command for all that were ever added."""

    first: int
    founders: list[list[int]]
    """Per new write group the nodes that begin its log, preferred leader first. They stay on record: a node that hears
    late of the write group has to begin with the same members as the others did."""
    slots: list[int]
    """The write group of each of the 4,096 slots from now on, of the first class and then of each further one: from
    `CLASSED` on there may be several. A class has as many replicas as its write groups have."""


class MoveSlot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="move_slot"):
    """The slot and the queues that hash to it shall move to another write group."""

    slot: int
    group: int
    number: int
    """How often the slot has moved then."""


class SlotMoveBegins(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="slot_move_begins"):
    """This move of the slot cannot be taken back any more: the write group in which it is may fence it from now on."""

    slot: int
    group: int
    number: int


class KeepSlot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="keep_slot"):
    """This move of the slot, which has not begun, is taken back."""

    slot: int
    group: int
    number: int


class SlotMoved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="slot_moved"):
    """The slot is in this write group from now on."""

    slot: int
    group: int
    number: int
    others: list[int]
    """The write groups besides it that have records of the slot's queues, in the order in which the slot left them."""


class SettleSlot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="settle_slot"):
    """All that there is of the slot's queues is in its write group."""

    slot: int
    number: int


class MoveReplica(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="move_replica"):
    """The write group's replica on node `old` moves to node `new`."""

    group: int
    old: int
    new: int


class PreferLeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="prefer_leader"):
    """The write group's replica on this node is to lead it."""

    group: int
    node_id: int


class SetDraining(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="set_draining"):
    """The node gives away what it holds, and gets nothing; or no longer."""

    node_id: int
    draining: bool


class RemoveNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="remove_node"):
    """The node is no part of the cluster any more, and its id is not given again for long."""

    node_id: int


class CreateTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="create_topic"):
    """`number` is the next topic number: numbers only go up, and none is used twice."""

    name: str
    number: int
    topic_id: uuid.UUID
    partitions: int
    replication_factor: int
    configs: dict[str, str] = {}
    internal: bool = False


class AddPartitions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="add_partitions"):
    number: int
    total: int


class ChangeTopicConfigs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="change_topic_configs"):
    """Per Kafka config name its new value, None to remove the override."""

    number: int
    changes: dict[str, str | None]


class DeleteTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="delete_topic"):
    number: int


class AllocateProducerIds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="allocate_producer_ids"):
    """The ids from `first` on, `count` of them, belong to `node_id`."""

    node_id: int
    first: int
    count: int


class AdvanceCounters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="advance_counters"):
    """Snapshots hold it: all numbers below these were given out, even if nothing that bears them is left."""

    topic_number: int
    producer_id: int


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why item number `item` of a request was refused; `kind` names the error's class."""

    item: int
    kind: str
    message: str


class AclCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tells of one access rule."""

    kind: ResourceKind
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    @property
    def acl(self) -> Acl:
        return Acl(self.kind, self.name, self.pattern, self.principal, self.host, self.operation, self.permission)


class AddAcl(AclCommand, frozen=True, forbid_unknown_fields=True, tag="add_acl"):
    """The access rule is added; one that is there already stays as it is."""


class RemoveAcl(AclCommand, frozen=True, forbid_unknown_fields=True, tag="remove_acl"):
    """The access rule goes, if it is there."""


class SetScramCredential(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="set_scram_credential"
):
    """A user's credential for one mechanism is kept, in place of the one before. `absent_users_secret` counts where the
    cluster has none yet."""

    user: str
    mechanism: ScramMechanism
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes
    absent_users_secret: bytes = b""

    @property
    def credential(self) -> ScramCredential:
        return ScramCredential(self.mechanism, self.salt, self.iterations, self.stored_key, self.server_key)

    def __repr__(self) -> str:
        return f"SetScramCredential({self.user!r}, {self.mechanism.value}, …)"  # the rest is secret


class RemoveScramCredential(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="remove_scram_credential"):
    user: str
    mechanism: ScramMechanism


class KeepAbsentUsersSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="keep_absent_users_secret"):
    """Snapshots hold it: what credentials of users that do not exist are made up with."""

    secret: bytes

    def __repr__(self) -> str:
        return "KeepAbsentUsersSecret(…)"


class ChangeQuotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="change_quotas"):
    """Quotas of one entity: its parts, as kind and name (None: the default of the kind), and by key the new value,
    None to remove it."""

    entity: list[tuple[str, str | None]]
    changes: dict[str, float | None]


class ChangeResourceConfigs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="change_resource_configs"):
    """Per Kafka config name its new value, None to remove it. `kind` is Kafka's resource type of what is no topic; of
    brokers the name is an id, or empty for all of them."""

    kind: int
    name: str
    changes: dict[str, str | None]


class SetTenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="set_tenant"):
    """Makes a tenant, or takes the place of what it was. None: no ceiling."""

    name: str
    prefix: str
    retention_ms_max: int | None = None
    queues_max: int | None = None
    users: list[str] = []


class RemoveTenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="remove_tenant"):
    name: str


class AddDelegationToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="add_delegation_token"):
    """A delegation token is kept; of its secret nothing is."""

    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    issued_ms: int
    expires_ms: int
    ends_ms: int

    @property
    def token(self) -> DelegationToken:
        return DelegationToken(
            self.token_id, self.owner, self.requester, tuple(self.renewers), self.issued_ms, self.expires_ms,
            self.ends_ms,
        )  # fmt: skip


class MoveTokenExpiry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="move_token_expiry"):
    """The delegation token expires at another time, if it is there."""

    token_id: str
    expires_ms: int


class RemoveDelegationToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="remove_delegation_token"):
    """The delegation token goes, if it is there."""

    token_id: str


class RememberChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="remember_change"):
    """Snapshots hold it: this request was carried out, so that it is not carried out again when it comes once
    more. `subjects`: per accepted item the number of its topic."""

    request: bytes
    at_ms: int
    subjects: list[int]
    refusals: list[Refusal]


class RaiseFeatureLevel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="raise_feature_level"):
    """From here on the log may hold whatever programs of this level read. It is logged only when all nodes
    can read the level: a program that knows of no levels stops at the command itself."""

    level: int


class UnknownCommand(NamedTuple):
    """A command of a later version that is marked optional. The text of `optional` names its subject: the
    next command of the same type with the same subject takes its place."""

    type: str
    optional: str
    encoded: bytes


KnownCommand = (
    CreateCluster
    | RaiseFeatureLevel
    | RegisterNode
    | PlaceWriteGroups
    | MoveReplica
    | PreferLeader
    | AddWriteGroups
    | MoveSlot
    | SlotMoveBegins
    | KeepSlot
    | SlotMoved
    | SettleSlot
    | SetDraining
    | RemoveNode
    | CreateTopic
    | AddPartitions
    | ChangeTopicConfigs
    | DeleteTopic
    | AllocateProducerIds
    | AdvanceCounters
    | AddAcl
    | RemoveAcl
    | SetScramCredential
    | RemoveScramCredential
    | KeepAbsentUsersSecret
    | ChangeQuotas
    | ChangeResourceConfigs
    | SetTenant
    | RemoveTenant
    | AddDelegationToken
    | MoveTokenExpiry
    | RemoveDelegationToken
    | RememberChange
)
Command = KnownCommand | UnknownCommand


def level_of(command: Command) -> FeatureLevel:
    """The lowest feature level at which the command, with the fields it has, may be logged."""
    match command:
        case UnknownCommand():
            return FeatureLevel.HARDENED
        case RegisterNode(machine=str()):
            return FeatureLevel.ELASTIC
        case RegisterNode(endpoints=[_, *_]):
            return FeatureLevel.SECURED
        case AddAcl() | RemoveAcl() | SetScramCredential() | RemoveScramCredential() | KeepAbsentUsersSecret():
            return FeatureLevel.SECURED
        case ChangeQuotas(entity=entity) if any(kind == TENANT for kind, _ in entity):
            return FeatureLevel.TENANTED
        case ChangeQuotas() | SetTenant() | RemoveTenant():
            return FeatureLevel.SECURED
        case AddDelegationToken() | MoveTokenExpiry() | RemoveDelegationToken():
            return FeatureLevel.TENANTED
        case SetDraining() | RemoveNode() | PreferLeader():
            return FeatureLevel.ELASTIC
        case AddWriteGroups(slots=slots):
            return FeatureLevel.CLASSED if len(slots) > SLOTS else FeatureLevel.REGROUPED
        case ChangeResourceConfigs():
            return FeatureLevel.CONFIGURED
        case MoveSlot() | SlotMoved() | SettleSlot():
            return FeatureLevel.MOVABLE
        case SlotMoveBegins() | KeepSlot():
            return FeatureLevel.RECALLABLE
        case _:
            return FeatureLevel.FIRST


_KNOWN_TYPES = frozenset(str(kind.__struct_config__.tag) for kind in get_args(KnownCommand))


class LoggedChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All that one request changes. `request` (16 bytes) names the request, so that a caller who asks again
    gets the outcome; it is empty where no caller can. `at_ms` is the leader's clock, by which all nodes alike
    forget old requests."""

    commands: list[Command]
    request: bytes = b""
    at_ms: int = 0
    refusals: list[Refusal] = []


class _KnownChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `LoggedChange` whose commands are all known, as nearly all are; decoded in one pass."""

    commands: list[KnownCommand]
    request: bytes = b""
    at_ms: int = 0
    refusals: list[Refusal] = []


class _RawChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `LoggedChange` whose commands are decoded one by one."""

    commands: list[msgspec.Raw]
    request: bytes = b""
    at_ms: int = 0
    refusals: list[Refusal] = []


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[KnownCommand] = msgspec.msgpack.Decoder(KnownCommand)
_change_decoder = msgspec.msgpack.Decoder(_KnownChange)
_raw_change_decoder = msgspec.msgpack.Decoder(_RawChange)


def encode_command(command: Command) -> bytes:
    encoded = command.encoded if isinstance(command, UnknownCommand) else _encoder.encode(command)
    return bytes((FORMAT_VERSION_COMMAND,)) + encoded


def decode_command(data: bytes) -> Command:
    """Raises ValueError naming what is wrong when the bytes are no command of this format version."""
    if not data:
        raise ValueError("an empty command")
    if data[0] != FORMAT_VERSION_COMMAND:
        raise ValueError(f"command format version {data[0]}, this program reads {FORMAT_VERSION_COMMAND}")
    try:
        return _command(memoryview(data)[1:])
    except msgspec.DecodeError as error:
        raise ValueError(f"not a command this program knows: {error}") from error


def _command(data: Buffer) -> Command:
    """Raises `msgspec.DecodeError`."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        if (unknown := _if_optional(data)) is None:
            raise
        return unknown


def _if_optional(data: Buffer) -> UnknownCommand | None:
    """A command that this program does not know but may pass over; None: it must know it."""
    found = msgspec.msgpack.decode(data)
    if not isinstance(found, dict):
        return None
    type_, optional = found.get("type"), found.get("optional")
    if not isinstance(type_, str) or not isinstance(optional, str) or type_ in _KNOWN_TYPES:
        return None
    return UnknownCommand(type_, optional, bytes(data))


def encode_change(change: LoggedChange) -> bytes:
    assert not any(isinstance(it, UnknownCommand) for it in change.commands), (
        "a program makes only commands that it knows"
    )
    return bytes((FORMAT_VERSION_CHANGE,)) + _encoder.encode(change)


def decode_change(data: bytes) -> LoggedChange:
    """Decodes a log entry: a `LoggedChange`, or a command alone. Raises ValueError as `decode_command`
    does."""
    if not data or data[0] != FORMAT_VERSION_CHANGE:
        return LoggedChange([decode_command(data)])
    encoded = memoryview(data)[1:]
    try:
        try:
            known = _change_decoder.decode(encoded)
        except msgspec.DecodeError:
            raw = _raw_change_decoder.decode(encoded)
            commands = [_command(memoryview(command)) for command in raw.commands]
            return LoggedChange(commands, raw.request, raw.at_ms, raw.refusals)
        return LoggedChange([*known.commands], known.request, known.at_ms, known.refusals)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a change this program knows: {error}") from error


class TopicCreated(NamedTuple):
    topic: Topic


class PartitionsAdded(NamedTuple):
    """`topic` is the new state; the partitions from `first` on are new."""

    topic: Topic
    first: int


class TopicConfigsChanged(NamedTuple):
    before: Topic
    topic: Topic


class TopicDeleted(NamedTuple):
    topic: Topic


class NodeRegistered(NamedTuple):
    node: RegisterNode


class NodeRemoved(NamedTuple):
    node_id: int


class WriteGroupsPlaced(NamedTuple):
    """Write groups have their replicas on other nodes than before; lists all of them, preferred leader
    first."""

    placements: Mapping[int, tuple[int, ...]]


class WriteGroupsAdded(NamedTuple):
    """There are more write groups than before, with replicas of their own, or slots belong to other ones, or the queues
    of some have no records in others any more."""

    placements: Mapping[int, tuple[int, ...]]
    slots: Sequence[int]
    numbers: Mapping[int, int] = {}
    """How often each slot has moved that has."""
    others: Mapping[int, Sequence[int]] = {}
    """Per slot that has moved, where its queues may have records besides, in the order in which it was there."""


class SlotWished(NamedTuple):
    """A slot shall move to another write group."""

    slot: int


class BrokerConfigsChanged(NamedTuple):
    """Other configs are set for a node, or for all of them."""


class FeatureLevelRaised(NamedTuple):
    level: FeatureLevel


TopicEvent = TopicCreated | PartitionsAdded | TopicConfigsChanged | TopicDeleted
ClusterEvent = (
    NodeRegistered
    | NodeRemoved
    | WriteGroupsPlaced
    | WriteGroupsAdded
    | SlotWished
    | BrokerConfigsChanged
    | FeatureLevelRaised
)
Event = TopicEvent | ClusterEvent
