"""The records of consumer groups, and who sends a request."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.broker.machines.result import UnknownRecord
from mainstem.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)


class Caller(NamedTuple):
    """The sender of a request, as far as consumer groups care."""

    version: int
    client_id: str
    client_host: str


class OffsetRecord(NamedTuple):
    """A committed offset; without a value: the offset is forgotten."""

    key: OffsetCommitKey
    value: OffsetCommitValue | None


class GroupRecord(NamedTuple):
    """A consumer group's generation with its members and assignments; without a value: the group is gone."""

    key: GroupMetadataKey
    value: GroupMetadataValue | None


LogRecord = OffsetRecord | GroupRecord | UnknownRecord
