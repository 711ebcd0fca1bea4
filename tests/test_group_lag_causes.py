"""The rule for what holds a group up."""

from __future__ import annotations

from typing import Any

import pytest

from mainstem.group_lag import (
    CAUSES,
    IDLE,
    NO_LEADER,
    REBALANCE_LOOP,
    REBALANCING,
    SLOW_MEMBER,
    SLOW_SECONDS,
    THROTTLED,
    cause,
    first_cause,
    lag_between,
)

ALL: dict[str, Any] = {
    "leaderless": True, "lag": 5, "seconds": SLOW_SECONDS, "has_member": True, "rebalancing": True, "loops": True,
    "throttled": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("without", "why"),
    [
        ({}, NO_LEADER),
        ({"leaderless": False}, REBALANCE_LOOP),
        ({"leaderless": False, "loops": False}, REBALANCING),
        ({"leaderless": False, "loops": False, "rebalancing": False}, THROTTLED),
        ({"leaderless": False, "loops": False, "rebalancing": False, "throttled": False}, SLOW_MEMBER),
        ({"leaderless": False, "loops": False, "rebalancing": False, "has_member": False}, IDLE),
        ({"leaderless": False, "lag": 0}, None),
        ({"leaderless": False, "lag": None}, None),
        ({"leaderless": False, "loops": False, "rebalancing": False, "throttled": False, "seconds": 1.0}, None),
        ({"leaderless": False, "loops": False, "rebalancing": False, "throttled": False, "seconds": None}, None),
    ],
)
def test_the_cause_that_explains_most_is_told(without: dict[str, Any], why: str | None) -> None:
    assert cause(**{**ALL, **without}) == why


def test_a_group_has_the_first_of_its_partitions_causes() -> None:
    assert first_cause([None, SLOW_MEMBER, IDLE]) == IDLE
    assert first_cause([None]) is None
    assert first_cause(CAUSES) == NO_LEADER


def test_what_retention_took_is_no_lag() -> None:
    assert lag_between(3, 5, 9) == 4
    assert lag_between(None, 5, 9) == 4
    assert lag_between(7, 5, 9) == 2
    assert lag_between(12, 5, 9) == 0, "a commit behind the end"
