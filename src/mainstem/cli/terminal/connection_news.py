"""The news that a person hears of a node that goes away and comes back while a command runs.

librdkafka reconnects by itself and says nothing unless asked. One line on stderr tells when the node is lost, one
when messages flow again; a command that does not wait forever asks `lost_for` how long it has waited.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

LOST_SECONDS_MAX = 30.0
"""How long a command that has an end waits for a node that is gone: longer than a node takes to start again."""


class ConnectionNews:
    """Give `on_error` to a client as its `error_cb`; call `is_back` whenever something has come through."""

    def __init__(self, bootstrap: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._bootstrap = bootstrap
        self._monotonic = monotonic
        self._lost_at: float | None = None

    def on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        # Told when no connection is left, not for each that closes: idle ones do.
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._lost_at is None:
            self._lost_at = self._monotonic()
            click.echo(f"mainstem: lost the node at {self._bootstrap}; trying again", err=True)

    def is_back(self) -> None:
        if self._lost_at is not None:
            self._lost_at = None
            click.echo(f"mainstem: the node at {self._bootstrap} is back", err=True)

    def lost_for(self) -> float:
        """Seconds since the node was lost, 0 while it is not."""
        return 0.0 if self._lost_at is None else self._monotonic() - self._lost_at
