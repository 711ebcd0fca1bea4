"""The nameserver's refusals, and the errors of a damaged log.

The refusals (everything but `MetadataUnavailable`, `MetadataCorrupt`, `InconsistentCommand` and `ForeignDirectory`)
are the caller's fault and leave the metadata as it was; the broker maps each class to a Kafka error code. They keep
their class between nodes: `kind_of` and `refusal_of`.
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
    """The name is illegal, or Kafka's metrics would take it for that of an existing topic."""


class InvalidPartitions(NameserverError):
    """The partition count is out of bounds, or not larger than the present one."""


class InvalidReplicationFactor(NameserverError):
    """The topic wants more replicas than there are nodes, or none."""


class InvalidConfig(NameserverError):
    """A topic config has an unknown key, or a value outside what it takes; the message names both and what is
    allowed."""


class InvalidPlacement(NameserverError):
    """A replica cannot be placed: on an unknown node, twice on one node, or of a write group that does not
    exist."""


class NotMoving(NameserverError):
    """A slot is not on its way to another write group."""


class MoveBegun(NameserverError):
    """A slot is on its way already, and arrives."""


class InvalidRoles(NameserverError):
    """A node cannot have these roles: it holds what a role that it lacks is for."""


class InvalidMembership(NameserverError):
    """The metadata quorum's members cannot be changed like this, or not now; the message says which."""


class NodeIdTaken(NameserverError):
    """Another node has this id and lives; the message says where."""


class NodeWasRemoved(NameserverError):
    """The node is no part of the cluster any more."""


class InvalidAcl(NameserverError):
    """An access rule makes no sense; the message says why."""


class TooManyAcls(NameserverError):
    """The cluster has as many access rules as it takes."""


class InvalidQuota(NameserverError):
    """A quota makes no sense; the message says why."""


class TooManyQuotas(NameserverError):
    """The cluster has quotas of as many entities as it takes."""


class InvalidTenant(NameserverError):
    """A tenant makes no sense, or does not exist; the message says which."""


class TenantCeiling(NameserverError):
    """A topic would take more than its tenant may have; the message names tenant and ceiling."""


class InvalidToken(NameserverError):
    """The delegation token is not well formed, or cannot become what it should."""


class UnknownToken(NameserverError):
    """There is no such delegation token."""


class TooManyTokens(NameserverError):
    """The cluster keeps as many delegation tokens as it can, of this owner or of all."""


class UnknownScramUser(NameserverError):
    """The user has no credential for this mechanism."""


class CredentialRefused(NameserverError):
    """A credential cannot be kept; the message says why, and holds none of its secrets."""


class TooManyUsers(NameserverError):
    """The cluster keeps credentials of as many users as it takes."""


class FeatureLevelTooLow(NameserverError):
    """The cluster is at a feature level at which this cannot be written."""

    @classmethod
    def of(cls, level: int, needed: int) -> FeatureLevelTooLow:
        return cls(
            f"the cluster is at feature level {level}, this takes level {needed}: mainstem cluster feature-level "
            "--raise, once all nodes run a version that has it"
        )


class FeatureLevelNotReady(NameserverError):
    """The cluster cannot be raised to a feature level now; the message says which nodes prevent it."""


class UnreadableFeatureLevel(NameserverError):
    """This node's program, or another node's, cannot work at the feature level of the cluster; that node
    needs another version."""


class MetadataUnavailable(NameserverError):
    """The change cannot be made now: the log failed, the node is stopping, too many changes wait, or no
    majority of the metadata quorum can be reached. The caller may try again."""


class InconsistentCommand(MainstemError):
    """A logged command does not fit the state it is applied to: the log was altered."""


class MetadataCorrupt(NameserverError):
    """Durable metadata cannot be read back. Nothing was changed; the message names file and position."""

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(
            f"metadata file {path} is damaged at byte {position}: {what}. It was left as it is; "
            f"restore write_dir and store_dir as a whole, or have another node take the place of this one"
        )
        self.path = path
        self.position = position


class ForeignDirectory(NameserverError):
    """The directory belongs to another cluster or node, or lost its metadata but still holds messages."""


_REFUSALS: dict[str, type[NameserverError]] = {
    kind.__name__: kind
    for kind in (
        NameserverError,
        TopicExists,
        UnknownTopic,
        InvalidTopicName,
        InvalidPartitions,
        InvalidReplicationFactor,
        InvalidConfig,
        InvalidPlacement,
        NotMoving,
        MoveBegun,
        InvalidRoles,
        InvalidMembership,
        NodeIdTaken,
        NodeWasRemoved,
        InvalidAcl,
        TooManyAcls,
        InvalidQuota,
        TooManyQuotas,
        InvalidTenant,
        TenantCeiling,
        InvalidToken,
        UnknownToken,
        TooManyTokens,
        UnknownScramUser,
        CredentialRefused,
        TooManyUsers,
        FeatureLevelTooLow,
        FeatureLevelNotReady,
        UnreadableFeatureLevel,
        MetadataUnavailable,
    )
}


def kind_of(refusal: NameserverError) -> str:
    """The name of a refusal in calls and in the log."""
    name = type(refusal).__name__
    return name if name in _REFUSALS else NameserverError.__name__


def refusal_of(kind: str, message: str) -> NameserverError:
    """The refusal that travelled under this name; the base class if a newer version named it."""
    return _REFUSALS.get(kind, NameserverError)(message)
