"""Orders: money that goes from one account to another. A ledger has two entries for each."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

ORDERS, LEDGER = "orders", "ledger"
"""Topics."""
ACCOUNTS = 40
AMOUNT_MAX = 500


class Order(NamedTuple):
    number: int
    giver: int
    taker: int
    amount: int

    @classmethod
    def of(cls, content: bytes) -> Order:
        return cls(*json.loads(content))

    def content(self) -> bytes:
        return json.dumps(self).encode()


class Entry(NamedTuple):
    """One side of an order in an account's history."""

    order: int
    account: int
    amount: int

    @classmethod
    def of(cls, content: bytes) -> Entry:
        return cls(*json.loads(content))

    def content(self) -> bytes:
        return json.dumps(self).encode()


def orders(count: int, seed: int) -> Iterator[Order]:
    choice = random.Random(seed)
    for number in range(count):
        giver, taker = choice.sample(range(ACCOUNTS), 2)
        yield Order(number, giver, taker, choice.randint(1, AMOUNT_MAX))


def booked(order: Order) -> tuple[Entry, Entry]:
    return Entry(order.number, order.giver, -order.amount), Entry(order.number, order.taker, order.amount)


class Audit(NamedTuple):
    """The faults of a ledger."""

    missing: int
    """Orders without an entry."""
    half: int
    """Orders with one of their two entries."""
    repeated: int
    """Entries that are there more than once."""
    foreign: int
    """Entries of no order."""
    total: int
    """The sum of all amounts: money that came from nowhere, or went there."""

    @property
    def is_clean(self) -> bool:
        return not any(self)


def audit(given: Iterable[Order], ledger: Iterable[Entry]) -> Audit:
    found = Counter(ledger)
    missing = half = repeated = 0
    expected: set[Entry] = set()
    for order in given:
        sides = booked(order)
        expected.update(sides)
        there = sum(found[side] > 0 for side in sides)
        missing += there == 0
        half += there == 1
        repeated += sum(max(found[side] - 1, 0) for side in sides)
    return Audit(
        missing,
        half,
        repeated,
        sum(count for entry, count in found.items() if entry not in expected),
        sum(entry.amount * count for entry, count in found.items()),
    )
