"""Tenants that have filled disk 1 bring less for a while, and nobody else does."""

from __future__ import annotations

import pytest
from tests.fakes.clock import FakeClock

from mainstem.security.quotas.disk_shares import BEGINS_AT, RATE_MIN, DiskShares, fillers

MIB = 1 << 20


@pytest.mark.parametrize(
    ("unsplit", "found"),
    [
        ({}, set()),
        ({"flood": 900}, set()),
        ({"flood": 900, "quiet": 1}, {"flood"}),
        ({"flood": 900, "": 1}, {"flood"}),
        ({"": 900, "quiet": 1}, {""}),
        ({"a": 60, "b": 40}, set()),
        ({"a": 40, "b": 40, "c": 1}, set()),
        ({"a": 40, "b": 40, "c": 1, "d": 1}, {"a", "b"}),
        ({"flood": 60, "a": 10, "b": 10, "c": 10, **{str(number): 1 for number in range(10)}}, {"flood"}),
        ({str(number): 5 for number in range(100)}, set()),
    ],
)
def test_who_has_much_more_than_others_has_filled_the_disk(unsplit: dict[str, int], found: set[str]) -> None:
    assert fillers(unsplit) == found


def held_flood() -> tuple[FakeClock, DiskShares]:
    """A tenant that brought 100 MiB in the last second, and has much more to be split than the quiet one."""
    clock = FakeClock()
    shares = DiskShares(clock.monotonic)
    clock.advance(1.0)
    assert shares.brought("flood", 100 * MIB) == 0
    assert shares.brought("quiet", MIB) == 0
    shares.look(-0.9, fillers({"flood": 1000 * MIB, "quiet": 10 * MIB}))
    return clock, shares


def test_nobody_is_held_while_there_is_room() -> None:
    clock = FakeClock()
    shares = DiskShares(clock.monotonic)
    for _ in range(10):
        clock.advance(1.0)
        assert shares.brought("flood", 100 * MIB) == 0
        shares.look(BEGINS_AT, fillers({"flood": 1000 * MIB, "quiet": 10 * MIB}))
    assert not shares.held


def test_who_has_filled_the_disk_waits_and_nobody_else_does() -> None:
    _, shares = held_flood()
    assert shares.held == {"flood": pytest.approx(100 * MIB)}
    assert shares.brought("flood", 100 * MIB) == 0, "a second's worth is free"
    assert shares.brought("flood", 50 * MIB) == pytest.approx(0.5)
    assert shares.brought("quiet", 500 * MIB) == 0
    assert shares.brought("", 500 * MIB) == 0


def test_the_rate_falls_while_the_room_does_and_has_a_least() -> None:
    clock, shares = held_flood()
    pressure = -0.9
    rates = []
    for _ in range(10):
        clock.advance(1.0)
        pressure += 0.05
        shares.look(pressure)
        rates.append(shares.held["flood"])
    assert rates[0] == pytest.approx(50 * MIB)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == RATE_MIN
    assert shares.brought("flood", 2 * MIB) == pytest.approx(1.0)


def test_the_rate_rises_while_the_room_does_and_falls_in_any_case_where_all_are_slowed() -> None:
    clock, shares = held_flood()
    clock.advance(1.0)
    shares.look(-0.95)
    assert shares.held["flood"] == pytest.approx(125 * MIB)
    for pressure in (0.3, 0.2, 0.1, 0.0):
        clock.advance(1.0)
        before = shares.held["flood"]
        shares.look(pressure)
        assert shares.held["flood"] == pytest.approx(before / 2)


def test_who_brings_as_much_as_it_may_is_held_on_and_who_does_not_is_let_go() -> None:
    clock, shares = held_flood()
    for _ in range(5):
        clock.advance(1.0)
        shares.brought("flood", int(shares.held["flood"]))
        shares.look(BEGINS_AT - 0.5)
    assert shares.held["flood"] > 200 * MIB
    clock.advance(1.0)
    shares.look(BEGINS_AT - 0.5)
    assert not shares.held


def test_who_has_no_more_than_others_any_more_is_let_go_and_the_next_one_is_held() -> None:
    clock, shares = held_flood()
    clock.advance(1.0)
    shares.brought("quiet", 10 * MIB)
    shares.look(-0.5, fillers({"flood": 10 * MIB, "quiet": 900 * MIB}))
    assert shares.held == {"quiet": pytest.approx(10 * MIB)}
