"""The states of a group and the moves between them.

Invariant: a group changes state only through `Group.move_to`, which asserts the move against `MOVES`, and
through `Group.restore`, which takes the state that a record of the log proves.

    Empty ──────────────► PreparingRebalance ◄──────────┐
      ▲                      │          ▲               │
      └── nobody is left ────┤          │ join, leave,  │ join, leave, timeout
                             ▼          │ timeout       │
                   CompletingRebalance ─┴── leader's assignment ──► Stable

`Dead` is what a group that does not exist is called in answers; no group in memory is ever in it.
"""

from __future__ import annotations

import enum


class GroupState(enum.Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    """No members; perhaps committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for members to join the next generation."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The generation's members are fixed; waiting for the leader's assignment."""
    STABLE = "Stable"
    """Every member can have the assignment of this generation."""
    DEAD = "Dead"


MOVES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.DEAD: frozenset(),
}
"""Which states may follow which."""


def can_rebalance(state: GroupState) -> bool:
    """Whether a rebalance can start now (one that is being prepared cannot start again)."""
    return GroupState.PREPARING_REBALANCE in MOVES[state]
