"""The memory that responses may hold, and who gives way when it is too much."""

from __future__ import annotations

from mainstem.server.bounds.response_budget import RESPONSE_BYTES_LEAST, ResponseBudget

MIB = 1024 * 1024


class Waiter:
    def __init__(self) -> None:
        self.told = 0

    def go_on(self) -> None:
        self.told += 1


def test_responses_become_smaller_the_less_is_left() -> None:
    budget = ResponseBudget(64 * MIB)
    rooms = []
    for _ in range(80):
        rooms.append(budget.bytes_free())
        budget.change(MIB)
    assert rooms[0] == 8 * MIB
    assert rooms == sorted(rooms, reverse=True)
    assert rooms[-1] == RESPONSE_BYTES_LEAST


def test_who_waits_is_told_when_there_is_room_again_and_not_before() -> None:
    budget = ResponseBudget(10 * MIB)
    waiter, gone = Waiter(), Waiter()
    budget.change(12 * MIB)
    assert budget.exhausted
    assert not budget.full
    budget.wait(waiter)
    budget.wait(gone)
    budget.forget(gone)
    budget.change(-MIB)
    assert waiter.told == 0
    budget.change(-2 * MIB)
    budget.change(-2 * MIB)
    assert (waiter.told, gone.told) == (1, 0)


def test_beyond_half_of_it_somebody_hears_that_it_is_short() -> None:
    short: list[int] = []
    budget = ResponseBudget(10 * MIB, lambda: short.append(budget.bytes_held))
    for _ in range(6):
        budget.change(MIB)
    budget.change(-MIB)
    assert short == [5 * MIB, 6 * MIB]
    assert budget.bytes_most == 6 * MIB
