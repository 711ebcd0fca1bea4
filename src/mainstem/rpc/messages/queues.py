"""A node asks the leaders of write groups to create or delete queues."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.rpc.errors import Refused
from mainstem.rpc.wire.method import Method, Nothing

GROUPS_MAX = 4096
RANGES_MAX = 10_000
"""Items in one request, a few hundred KB."""

Group = Annotated[int, msgspec.Meta(ge=0, lt=GROUPS_MAX)]
Groups = Annotated[list[Group], msgspec.Meta(max_length=GROUPS_MAX)]
TopicNumber = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
Partition = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]


class GroupsNotLed(Refused):
    """The node does not lead one of the write groups; the change may be made in those that it leads."""

    kind = "write group not led"


class CreateQueues(msgspec.Struct, frozen=True):
    """Log (topic number, first partition, count) in each of these write groups."""

    groups: Groups
    ranges: Annotated[list[tuple[TopicNumber, Partition, Partition]], msgspec.Meta(max_length=RANGES_MAX)]


class DeleteQueues(msgspec.Struct, frozen=True):
    groups: Groups
    topic_numbers: Annotated[list[TopicNumber], msgspec.Meta(max_length=RANGES_MAX)]


CREATE_QUEUES = Method(96, "queues.create", CreateQueues, Nothing, (GroupsNotLed,), nodes_only=True)
DELETE_QUEUES = Method(97, "queues.delete", DeleteQueues, Nothing, (GroupsNotLed,), nodes_only=True)
