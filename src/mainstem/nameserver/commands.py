"""The commands that change the metadata, as they stand in its log, and the events that tell of them.

A command is complete: everything random or timed (ids, numbers, the slot table) was chosen before it was
logged, so that applying it gives the same state on every node and at every recovery. Encoded form: one byte
of format version, then a msgpack map whose key `type` names the command. Within a version, fields are neither
removed nor given a new meaning; a command or field that this program does not know is refused, not skipped.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import msgspec

from mainstem.model import Topic

FORMAT_VERSION = 1


class CreateCluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="create_cluster"):
    """Always the first command. `slots` gives the write group of each of the 4,096 slots."""

    cluster_id: str
    write_groups: int
    slots: list[int]


class RegisterNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="register_node"):
    """A node joined, or advertises another address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


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


Command = (
    CreateCluster
    | RegisterNode
    | CreateTopic
    | AddPartitions
    | ChangeTopicConfigs
    | DeleteTopic
    | AllocateProducerIds
    | AdvanceCounters
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode_command(command: Command) -> bytes:
    return bytes((FORMAT_VERSION,)) + _encoder.encode(command)


def decode_command(data: bytes) -> Command:
    """Raises ValueError naming what is wrong when the bytes are no command of this format version."""
    if not data:
        raise ValueError("an empty command")
    if data[0] != FORMAT_VERSION:
        raise ValueError(f"command format version {data[0]}, this program reads {FORMAT_VERSION}")
    try:
        return _decoder.decode(memoryview(data)[1:])
    except msgspec.DecodeError as error:
        raise ValueError(f"not a command this program knows: {error}") from error


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


Event = TopicCreated | PartitionsAdded | TopicConfigsChanged | TopicDeleted
