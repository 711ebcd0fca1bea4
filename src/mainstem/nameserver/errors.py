"""What the nameserver refuses, and what can be wrong with its log.

The refusals (everything but `MetadataUnavailable`, `MetadataCorrupt` and `ForeignDirectory`) are the asker's
fault and leave the metadata as it was; the broker maps each class to a Kafka error code.
"""

from __future__ import annotations

from mainstem.errors import MainstemError


class NameserverError(MainstemError):
    """Base of all errors of this room."""


class TopicExists(NameserverError):
    """A topic of this name exists already."""


class UnknownTopic(NameserverError):
    """No topic has this name or id."""


class InvalidTopicName(NameserverError):
    """The name is illegal, or could be mistaken for that of an existing topic."""


class InvalidPartitions(NameserverError):
    """A partition count that is out of bounds, or not larger than the present one."""


class InvalidReplicationFactor(NameserverError):
    """More replicas than nodes, or none."""


class InvalidConfig(NameserverError):
    """A topic config with an unknown key or a value it does not take; names both and what is allowed."""


class MetadataUnavailable(NameserverError):
    """The change cannot be made now: the log failed, the node is stopping, or too many changes wait."""


class MetadataCorrupt(NameserverError):
    """Durable metadata cannot be read back. Nothing was changed; the message names file and position."""

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(
            f"metadata file {path} is damaged at byte {position}: {what}. It was left as it is; "
            f"restore the metadata directory from a copy"
        )
        self.path = path
        self.position = position


class ForeignDirectory(NameserverError):
    """The directory belongs to another cluster or node, or lost its metadata but still holds messages."""
