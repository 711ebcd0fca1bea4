"""The changes that may be asked for over HTTP: the bodies of requests, and what each is to the access rules."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

GIVEN_UP_AT_ONCE_MAX = 100
"""Files in one request to give up: each is read first."""


class Change(Protocol):
    """The body of a POST: what somebody wants to have done, in the words of the audit."""

    @property
    def operation(self) -> str: ...

    @property
    def resource(self) -> str: ...


class FeatureLevelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/feature-level`."""

    level: int

    @property
    def operation(self) -> str:
        return "RaiseFeatureLevel"

    @property
    def resource(self) -> str:
        return "cluster:"


class RetainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/store/retain`."""

    @property
    def operation(self) -> str:
        return "RetainStore"

    @property
    def resource(self) -> str:
        return "store:"


class GiveUpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/store/give-up`."""

    names: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=1000)]], msgspec.Meta(min_length=1, max_length=GIVEN_UP_AT_ONCE_MAX)
    ]
    """Of files, or of objects."""
    by: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    """The operator who gives them up."""
    dry_run: bool
    without: list[int] = []
    """Nodes that are not asked whether they have the records."""

    @property
    def operation(self) -> str:
        return "GiveUpFiles"

    @property
    def resource(self) -> str:
        return "file:" + ",".join(self.names)


class TenantRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/tenants/set`. Of a tenant that is altered, what is not said stays as it is. Null: no
    ceiling, no quota."""

    name: str
    how: Literal["create", "replace", "alter"] = "create"
    """Whether there may be a tenant of this name: none, one or none, one."""
    prefix: str | UnsetType = UNSET
    retention_ms_max: int | UnsetType | None = UNSET
    queues_max: int | UnsetType | None = UNSET
    users: list[str] | UnsetType = UNSET
    quotas: dict[str, float | None] = {}
    """Quotas of all its users together, by Kafka's keys."""

    @property
    def operation(self) -> str:
        return f"{self.how.title()}Tenant"

    @property
    def resource(self) -> str:
        return f"tenant:{self.name}"


class TenantRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/tenants/remove`."""

    name: str

    @property
    def operation(self) -> str:
        return "RemoveTenant"

    @property
    def resource(self) -> str:
        return f"tenant:{self.name}"


class ReplaceNodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/replace`."""

    old: int
    new: int

    @property
    def operation(self) -> str:
        return "ReplaceNode"

    @property
    def resource(self) -> str:
        return f"node:{self.old}"


class DrainNodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/drain`."""

    node: int
    cancel: bool = False
    """The node keeps what it has, and may get replicas again."""

    @property
    def operation(self) -> str:
        return "CancelDrain" if self.cancel else "DrainNode"

    @property
    def resource(self) -> str:
        return f"node:{self.node}"


class WriteGroupsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/write-groups`."""

    total: int
    """How many the cluster is to have."""
    replication_factor: int | None = None
    """How many replicas each new one has; None: as many as the first ones."""

    @property
    def operation(self) -> str:
        return "AddWriteGroups"

    @property
    def resource(self) -> str:
        return "cluster"


class MoveQueueRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/move-queue`."""

    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
    to: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)] | None
    """The write group; None: the queue stays where it is, a move that has not begun is taken back."""

    @property
    def operation(self) -> str:
        return "CancelMoveOfQueue" if self.to is None else "MoveQueue"

    @property
    def resource(self) -> str:
        return f"topic:{self.topic}"


class RebalanceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/rebalance`."""

    dry_run: bool = False
    """Only tell the moves."""

    @property
    def operation(self) -> str:
        return "Rebalance"

    @property
    def resource(self) -> str:
        return "cluster"


class RemoveNodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/remove`."""

    node: int

    @property
    def operation(self) -> str:
        return "RemoveNode"

    @property
    def resource(self) -> str:
        return f"node:{self.node}"


class TransferLeaderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a POST to `/v1/cluster/transfer-leader`."""

    group: int
    to: int

    @property
    def operation(self) -> str:
        return "TransferLeader"

    @property
    def resource(self) -> str:
        return f"write_group:{self.group}"
