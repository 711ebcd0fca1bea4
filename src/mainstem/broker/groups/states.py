"""The states of a consumer group and the moves between them.

Invariant: a consumer group changes state only through `Group.move_to`, which asserts the move against `MOVES`, and
through `Group.restore`, which takes the state that a record of the log proves.

    Empty ──────────────► PreparingRebalance ◄──────────┐
      ▲                      │          ▲               │
      └── nobody is left ────┤          │ join, leave,  │ join, leave, timeout
                             ▼          │ timeout       │
                   CompletingRebalance ─┴── leader's assignment ──► Stable

Answers call a consumer group that does not exist `Dead`; no group in memory is ever in that state.
"""

from __future__ import annotations

import enum


class ConsumerGroupState(enum.Enum):
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


MOVES: dict[ConsumerGroupState, frozenset[ConsumerGroupState]] = {
    ConsumerGroupState.EMPTY: frozenset({ConsumerGroupState.PREPARING_REBALANCE}),
    ConsumerGroupState.PREPARING_REBALANCE: frozenset(
        {ConsumerGroupState.COMPLETING_REBALANCE, ConsumerGroupState.EMPTY}
    ),
    ConsumerGroupState.COMPLETING_REBALANCE: frozenset(
        {ConsumerGroupState.STABLE, ConsumerGroupState.PREPARING_REBALANCE}
    ),
    ConsumerGroupState.STABLE: frozenset({ConsumerGroupState.PREPARING_REBALANCE}),
    ConsumerGroupState.DEAD: frozenset(),
}
"""State → the states that may follow it."""


def can_rebalance(state: ConsumerGroupState) -> bool:
    """Whether a rebalance can start now (one that is being prepared cannot start again)."""
    return ConsumerGroupState.PREPARING_REBALANCE in MOVES[state]
