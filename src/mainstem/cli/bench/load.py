"""Records sent to a topic: as fast as the client takes them, or in an open loop, each at the time that the rate
gives it, whether or not those before it were answered."""

from __future__ import annotations

import random
import string
from collections.abc import Callable

from mainstem.cli.bench.ending import Interruption, RunLimits
from mainstem.cli.bench.sender import BenchSender
from mainstem.cli.bench.tally import Tally

_TURN_RECORDS = 64
"""Sent between two looks at the clock and at what was acknowledged: about 0.1 ms."""
_WAIT_SECONDS_MAX = 0.1
"""How long a slow rate keeps us from seeing Ctrl-C."""

_POOL_BYTES = 4 * 1024 * 1024
"""More than a batch, so that no batch holds a record twice and compresses for that."""
_POOL_RECORDS_MAX = 4096


def random_texts(record_bytes: int, *, seed: int = 0) -> list[bytes]:
    """Records to choose from, of random letters: compression finds the quarter of a byte that a letter does not
    use, and nothing else."""
    letters = (string.ascii_letters + string.digits + "+/").encode()
    source = random.Random(seed)
    count = min(max(_POOL_BYTES // record_bytes, 1), _POOL_RECORDS_MAX)
    return [source.randbytes(record_bytes).translate(letters * 4) for _ in range(count)]


class Load:
    """One run. `partition_of` and `value_of` make record `number` (from 0), due at so many nanoseconds."""

    def __init__(
        self,
        sender: BenchSender,
        tally: Tally,
        *,
        partition_of: Callable[[int], int],
        value_of: Callable[[int, int], bytes],
        interruption: Interruption,
        on_turn: Callable[[], None],
    ) -> None:
        self._sender = sender
        self._tally = tally
        self._partition_of = partition_of
        self._value_of = value_of
        self._interruption = interruption
        self._on_turn = on_turn

    def run(self, limits: RunLimits, *, rate: float | None) -> float:
        """Send until a limit, Ctrl-C, or no hope is left, then wait for what is in flight. The seconds from the
        first record to the last outcome."""
        clock = self._tally.clock
        begun_ns = clock()
        if rate is None:
            self._send_all(limits, begun_ns)
        else:
            self._send_at(rate, limits, begun_ns)
        self.drain()
        return max((self._tally.last_outcome_ns or clock()) - begun_ns, 0) / 1e9

    def drain(self) -> None:
        """Wait for every outcome; a second Ctrl-C or a long silence ends it."""
        while self._tally.in_flight and not self._interruption.came_twice and not self._tally.is_hopeless():
            self._sender.serve(_WAIT_SECONDS_MAX / 10)
            self._on_turn()

    def _gives_up(self) -> bool:
        return self._interruption.came or self._tally.is_hopeless()

    def _waits(self) -> bool:
        self._on_turn()
        return not self._gives_up()

    def _send_all(self, limits: RunLimits, begun_ns: int) -> None:
        number = 0
        while number < limits.records and not self._gives_up():
            if self._tally.clock() - begun_ns >= limits.seconds * 1e9:
                break
            end = min(number + _TURN_RECORDS, limits.records)
            for each in range(number, end):
                self._send(each, self._tally.clock())
            number = end
            self._sender.serve(0)
            self._on_turn()

    def _send_at(self, rate: float, limits: RunLimits, begun_ns: int) -> None:
        number = 0
        while number < limits.records and number < limits.seconds * rate and not self._gives_up():
            due_ns = begun_ns + int(number / rate * 1e9)
            wait_seconds = (due_ns - self._tally.clock()) / 1e9
            if wait_seconds > 0:
                self._sender.serve(min(wait_seconds, _WAIT_SECONDS_MAX))
                self._on_turn()
            else:
                self._send(number, due_ns)
                number += 1
                if not number % _TURN_RECORDS:
                    # Behind the rate there is no waiting in which this would be seen.
                    self._on_turn()

    def _send(self, number: int, due_ns: int) -> None:
        self._sender.send(
            number, self._partition_of(number), self._value_of(number, due_ns), due_ns, self._tally, self._waits
        )
