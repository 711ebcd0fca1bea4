"""A member with an epoch of its own: what it said of itself, and how far it is."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mainstem.broker.consumer_groups.epochs.assigned_partitions import Partitions
from mainstem.kernel import untrack

V = TypeVar("V")
C = TypeVar("C")

MEMBER_BYTES = 2048
"""Bytes of a member without its subscription: the objects, its ids, its timers."""

NAME_BYTES = 64
"""Bytes of a name beside its text."""


class ReconciliationState(enum.IntEnum):
    """Kafka's numbers, as records have them."""

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    """The member has yet to confirm that it gave up partitions, or tasks."""
    UNRELEASED_PARTITIONS = 3
    """Partitions or tasks of the member's target still belong to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    """How far a member is."""

    epoch: int = 0
    previous_epoch: int = 0
    state: int = ReconciliationState.STABLE
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)
    """Partitions that the member was told to give up, until it confirms that."""

    def __post_init__(self) -> None:
        untrack(self)  # nothing of what a member holds knows the member


@dataclass(slots=True)
class EpochMember(Generic[V, C]):
    """A member by its records. Without metadata: the log has yet to tell of it."""

    member_id: str
    current: C
    """How far it is, as its protocol has it."""
    metadata: V | None = None
    charged: int = 0
    """Bytes that the holdings are charged for it."""

    def __post_init__(self) -> None:
        untrack(self)  # nothing that a member holds knows the member, and a group may have ten thousand


def member_bytes(member_id: str, texts: Iterable[str | None], topic_names: Iterable[str]) -> int:
    """Roughly the memory of a member with these texts and subscriptions."""
    size = MEMBER_BYTES + 2 * len(member_id) + sum(len(text or "") for text in texts)
    return size + sum(NAME_BYTES + len(name) for name in topic_names)
