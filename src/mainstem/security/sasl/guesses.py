"""Addresses that guess: the more of their attempts fail, the longer each of them takes.

The first failures of an address cost it nothing but the usual delay, since a client with an old password is no
attacker. From then on each doubles the delay of the address's attempts, right ones included, up to some seconds; a
minute without a failure halves what is held against it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

FREE_FAILURES = 5
"""A person mistypes a password that often, a service with an old one tries a few times at once."""

DELAY_SECONDS_MAX = 8.0
"""Clients wait longer than that for an answer (Kafka's: 30 seconds)."""

FORGIVEN_SECONDS = 60.0

ADDRESSES_MAX = 10_000
"""Addresses that are remembered, those that failed last: about 2 MB. A guesser with more addresses is bounded by what
the node hashes in a second."""


class _Failures(NamedTuple):
    failures: float
    at: float


class Guesses:
    """`delay_seconds`: what a failed attempt takes at least (connection.failed.authentication.delay.ms)."""

    def __init__(self, delay_seconds: float) -> None:
        self._delay_seconds = delay_seconds
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, host: str, now: float) -> None:
        """An attempt of that address failed."""
        count = self._left(host, now)
        self._failures[host] = _Failures(count + 1, now)
        self._failures.move_to_end(host)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def delay_seconds(self, host: str, now: float) -> float:
        """How long the next attempt of an address waits before anybody looks at it."""
        over = self._left(host, now) - FREE_FAILURES
        if over < 1:
            return 0.0
        return float(min(DELAY_SECONDS_MAX, max(self._delay_seconds, 0.01) * 2.0 ** min(over, 30.0)))

    def _left(self, host: str, now: float) -> float:
        known = self._failures.get(host)
        return 0.0 if known is None else float(known.failures * 0.5 ** ((now - known.at) / FORGIVEN_SECONDS))
