"""The shares of connections in the memory for requests."""

from __future__ import annotations

import random
from functools import partial

from mainstem.server.bounds.request_budget import HOST_SHARE, LARGE_SHARE, USUAL_BYTES_MAX, Account, RequestBudget
from mainstem.server.receive_buffer import START_BYTES

USUAL = USUAL_BYTES_MAX + START_BYTES
LARGE = 10 * USUAL_BYTES_MAX


def filled(budget: RequestBudget, host: str, capacity: int, count: int) -> list[Account]:
    """Accounts of one address that got a buffer, of as many that wanted one."""
    accounts = [Account(host) for _ in range(count)]
    return [account for account in accounts if budget.grow(account, capacity)]


def test_one_address_gets_its_share_and_leaves_the_rest_to_others() -> None:
    budget = RequestBudget(100 * USUAL_BYTES_MAX)
    assert len(filled(budget, "a", USUAL, 1000)) == 100 // HOST_SHARE
    assert len(filled(budget, "b", USUAL, 1000)) == 100 // HOST_SHARE
    assert filled(budget, "c", USUAL, 10) == []
    assert len(filled(budget, "c", START_BYTES, 10)) == 10
    assert budget.bytes_taken == budget.bytes_max


def test_large_requests_leave_room_for_usual_ones() -> None:
    budget = RequestBudget(100 * USUAL_BYTES_MAX)
    for host in "abcd":
        filled(budget, host, LARGE, 1000)
    large = budget.bytes_taken
    assert 0 < large <= budget.bytes_max // LARGE_SHARE + LARGE
    assert len(filled(budget, "e", USUAL, 1000)) >= 100 // HOST_SHARE - LARGE // USUAL_BYTES_MAX


def test_the_one_that_has_grown_for_longest_may_always_go_on_and_then_the_next() -> None:
    budget = RequestBudget(2 * USUAL_BYTES_MAX)
    first, second = Account("a"), Account("a")
    assert budget.grow(first, USUAL // 2)
    assert budget.grow(second, USUAL // 2)
    assert not budget.grow(second, LARGE)
    assert budget.grow(first, LARGE)
    woken: list[str] = []
    budget.wait(second, LARGE, lambda: woken.append("second"))
    assert budget.scarce
    budget.resized(first, START_BYTES)
    assert woken == ["second"]
    assert budget.grow(second, LARGE)
    assert not budget.scarce


def test_who_waits_is_woken_in_the_order_of_coming_and_as_many_as_may_go_on() -> None:
    budget = RequestBudget(4 * USUAL_BYTES_MAX)
    holders = filled(budget, "a", USUAL, 10)
    waiting = {name: Account("a") for name in "xyz"}
    woken: list[str] = []
    for name, account in waiting.items():
        assert not budget.grow(account, USUAL)
        budget.wait(account, USUAL, partial(woken.append, name))
    budget.drop(waiting["y"])
    for holder in holders:
        budget.drop(holder)
    assert woken == ["x", "z"]


def test_what_is_charged_is_what_is_held_whatever_happens() -> None:
    rng = random.Random(7)
    budget = RequestBudget(20 * USUAL_BYTES_MAX)
    accounts = [Account(host) for host in "abc" for _ in range(5)]
    kept: dict[Account, list[int]] = {account: [] for account in accounts}
    for _ in range(5_000):
        account = rng.choice(accounts)
        match rng.randrange(5):
            case 0 | 1:
                budget.grow(account, rng.choice([START_BYTES, USUAL // 3, USUAL, LARGE]))
            case 2:
                budget.resized(account, START_BYTES)
            case 3:
                kept[account].append(rng.randrange(1_000_000))
                budget.keep(account, kept[account][-1])
            case 4 if kept[account]:
                budget.give(account, kept[account].pop())
        assert budget.bytes_taken == sum(account.held for account in accounts)
        assert all(account.kept == sum(kept[account]) for account in accounts)
    for account in accounts:
        for size in kept[account]:
            budget.give(account, size)
        budget.drop(account)
    assert budget.bytes_taken == 0
    assert budget.idle
