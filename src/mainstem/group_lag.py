"""How far a group is behind, in messages and in seconds, and why: the values, and the one rule for the cause.

The node makes its HTTP view and its metrics of these, and `mainstem group describe` its rows where no node tells them.
A partition's lag in messages counts the offsets from the committed one to its end; its lag in seconds is the age of the
first message of them, by the message's timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

SLOW_SECONDS = 30.0
"""A member that is less behind keeps up: clients commit every five seconds, and some of them less often."""

NO_LEADER = "no leader"
REBALANCE_LOOP = "rebalance loop"
REBALANCING = "rebalancing"
IDLE = "idle"
THROTTLED = "throttled"
SLOW_MEMBER = "slow member"

CAUSES = (NO_LEADER, REBALANCE_LOOP, REBALANCING, IDLE, THROTTLED, SLOW_MEMBER)
"""In the order in which they are told where several hold: what nobody can read explains more than who reads it."""


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """None stands for what is not known, and in `why` for a group that keeps up."""

    topic: str
    partition: int
    committed: int | None = None
    """None: nothing is committed; the lag is all that the partition has."""
    log_start: int | None = None
    end: int | None = None
    """The offset behind the last message."""
    lag: int | None = None
    seconds: float | None = None
    why: str | None = None
    member: str | None = None
    client_id: str | None = None
    host: str | None = None
    """All three of the member that reads the partition."""


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    kind: str
    """`classic`, `consumer` or `streams`."""
    state: str
    members: int
    lag: int
    """Of all partitions whose end is known."""
    seconds: float | None
    """The greatest of those that are known."""
    why: str | None
    """The first of `CAUSES` that holds for a partition."""
    partitions_count: int
    partitions: list[PartitionLag]
    """The worst ones, those with the greatest lag first."""
    cluster_id: str = ""
    """Said where it may not be plain whose group it is."""


def lag_between(committed: int | None, log_start: int, end: int) -> int:
    """Messages yet to be read: what retention took is not among them; where nothing is committed, all there are."""
    return max(end - max(committed or 0, log_start), 0)


def cause(
    *,
    leaderless: bool = False,
    lag: int | None,
    seconds: float | None,
    has_member: bool,
    rebalancing: bool = False,
    loops: bool = False,
    throttled: bool = False,
) -> str | None:
    """The reason why a group is behind in one partition; None: it keeps up. `loops`: the group has had many generations
    of late; `throttled`: a quota holds the member's client back now."""
    if leaderless:
        return NO_LEADER
    if not lag:
        return None
    if loops:
        return REBALANCE_LOOP
    if rebalancing:
        return REBALANCING
    if not has_member:
        return IDLE
    if throttled:
        return THROTTLED
    return SLOW_MEMBER if seconds is not None and seconds >= SLOW_SECONDS else None


def first_cause(causes: Iterable[str | None]) -> str | None:
    """The first of `CAUSES` among these."""
    found = set(causes)
    return next((one for one in CAUSES if one in found), None)
