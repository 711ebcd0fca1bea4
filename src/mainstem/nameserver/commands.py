"""The commands that change the metadata, as they stand in its log, and the events that tell of them.

A command is complete: everything random or timed (ids, numbers, the slot table) was chosen before it was
logged, so that applying it gives the same state on every node and at every recovery. One log entry is a
`LoggedChange`: the commands that came of one request, applied together or not at all. Encoded form: one byte of
format version, then msgpack: 1, a command alone (all of version 0.1's entries, and snapshots), a map whose key `type`
names it; 2, a `LoggedChange`. Within a version, fields are neither removed nor given a new meaning; a command or field
that this program does not know is refused, not skipped.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from mainstem.model import Topic

FORMAT_VERSION_COMMAND = 1
FORMAT_VERSION_CHANGE = 2
INCARNATION_BYTES = 16


class CreateCluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="create_cluster"):
    """Always the first command. `slots` gives the write group of each of the 4,096 slots."""

    cluster_id: str
    write_groups: int
    slots: list[int]


class RegisterNode(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="register_node"
):
    """A node joined, or came back with other addresses. `host` and `port` are for Kafka clients."""

    node_id: int
    host: str
    port: int
    rack: str | None = None
    rpc: str = ""
    """`host:port` for other nodes."""
    incarnation: bytes = b""
    """16 bytes that name the node's directory: another one is another node. Empty: registered by version 0.1."""
    roles: list[str] = []
    version: str = ""


class PlaceGroups(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="place_groups"):
    """Per write group the nodes that hold its replicas; the first one is to lead it."""

    replicas: list[list[int]]


class MoveReplica(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="move_replica"):
    """The replica of a group on node `old` is to move to node `new`."""

    group: int
    old: int
    new: int


class CreateTopic(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="create_topic"
):
    """`number` is the next topic number; numbers only go up and are never given twice."""

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


class AllocateProducerIds(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="allocate_producer_ids"
):
    """The ids from `first` on, `count` of them, belong to `node_id`."""

    node_id: int
    first: int
    count: int


class AdvanceCounters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="advance_counters"):
    """Stands in snapshots: numbers below these were given, even where nothing that bears them is left."""

    topic_number: int
    producer_id: int


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why item number `item` of a request was not accepted; `kind` names the error's class."""

    item: int
    kind: str
    message: str


class RememberChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="remember_change"):
    """Stands in snapshots: the change of this request is made, so that it is not made again when it comes once more.
    `subjects`: per accepted item the number of its topic."""

    request: bytes
    at_ms: int
    subjects: list[int]
    refusals: list[Refusal]


Command = (
    CreateCluster
    | RegisterNode
    | PlaceGroups
    | MoveReplica
    | CreateTopic
    | AddPartitions
    | ChangeTopicConfigs
    | DeleteTopic
    | AllocateProducerIds
    | AdvanceCounters
    | RememberChange
)


class LoggedChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one request changes. `request` (16 bytes) names it for those who ask again, empty where nobody can;
    `at_ms` is the leader's clock, by which old requests are forgotten on all nodes alike."""

    commands: list[Command]
    request: bytes = b""
    at_ms: int = 0
    refusals: list[Refusal] = []


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_change_decoder: msgspec.msgpack.Decoder[LoggedChange] = msgspec.msgpack.Decoder(LoggedChange)


def encode_command(command: Command) -> bytes:
    return bytes((FORMAT_VERSION_COMMAND,)) + _encoder.encode(command)


def decode_command(data: bytes) -> Command:
    """Raises ValueError naming what is wrong when the bytes are no command of this format version."""
    if not data:
        raise ValueError("an empty command")
    if data[0] != FORMAT_VERSION_COMMAND:
        raise ValueError(f"command format version {data[0]}, this program reads {FORMAT_VERSION_COMMAND}")
    try:
        return _decoder.decode(memoryview(data)[1:])
    except msgspec.DecodeError as error:
        raise ValueError(f"not a command this program knows: {error}") from error


def encode_change(change: LoggedChange) -> bytes:
    return bytes((FORMAT_VERSION_CHANGE,)) + _encoder.encode(change)


def decode_change(data: bytes) -> LoggedChange:
    """A log entry, of this format or a command alone. Raises ValueError as `decode_command` does."""
    if not data or data[0] != FORMAT_VERSION_CHANGE:
        return LoggedChange([decode_command(data)])
    try:
        return _change_decoder.decode(memoryview(data)[1:])
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


class GroupsPlaced(NamedTuple):
    """The replicas of write groups are on other nodes than before: all of them now, preferred leader first."""

    placements: Mapping[int, tuple[int, ...]]


TopicEvent = TopicCreated | PartitionsAdded | TopicConfigsChanged | TopicDeleted
ClusterEvent = NodeRegistered | GroupsPlaced
Event = TopicEvent | ClusterEvent
